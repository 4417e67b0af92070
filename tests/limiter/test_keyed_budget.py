"""KeyedBudget: requests and tokens for each user, and for the teams that users share."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
from helpers.calls import Calls, left
from helpers.driving import SteppedClock, one_loop, turns

from aiorate import Budget, KeyedBudget, Lease, Limiter, LimiterClosed, TokenBucket, WaitTooLong
from aiorate.http import Feedback

pytestmark = one_loop


class Tree:
    """Users such as "a1" of team "a", and the guest, who has no team. Requests by user, tokens by team and for all."""

    def __init__(self, clock: SteppedClock) -> None:
        self.clock = clock
        self.asked: list[str] = []
        self.top = Budget(tokens=TokenBucket(100, 1_000), clock=clock)
        self.teams = KeyedBudget[str](lambda team: Budget(tokens=TokenBucket(10, 100), clock=clock), shared=self.top)
        self.users = KeyedBudget[str](self.make, shared=self.team_of)

    def make(self, user: str) -> Budget:
        return Budget(requests=TokenBucket(1, 5), tokens=TokenBucket(20, 200), clock=self.clock, name=user)

    def team_of(self, user: str) -> Budget | None:
        self.asked.append(user)
        return None if user == "guest" else self.teams[user[0]]


@pytest.fixture
def tree(clock: SteppedClock) -> Tree:
    return Tree(clock)


async def test_each_key_has_its_own_budget(clock: SteppedClock) -> None:
    keyed = KeyedBudget[tuple[str, int]](lambda key: Budget(key=TokenBucket(1, 3), requests=TokenBucket(1, 5), clock=clock))
    async with keyed.reserve(("a", 1), key=2) as lease, keyed.reserve(("b", 2)):
        assert isinstance(lease, Lease)
        assert [{"key": 1, "requests": 4}, {"key": 2, "requests": 4}] == [left(keyed[key]) for key in (("a", 1), ("b", 2))]
    assert (2, True, False) == (len(keyed), ("a", 1) in keyed, "a" in keyed)
    assert [("a", 1), ("b", 2)] == sorted(keyed)


async def test_users_share_the_tokens_of_their_team(tree: Tree) -> None:
    async with tree.users.reserve("a1", tokens=60), tree.users.reserve("b1", tokens=60), tree.users.reserve("guest", tokens=200):
        assert {"requests": 4, "tokens": 40} == left(tree.users["a1"])
        assert {"requests": 5, "tokens": 40} == left(tree.users["a2"])
        assert {"tokens": 880} == left(tree.top)
        with pytest.raises(WaitTooLong, match="tokens"):
            await tree.users.reserve("a2", tokens=60, max_wait=1).__aenter__()
    assert Counter(["a1", "b1", "guest", "a2"]) == Counter(tree.asked)


async def test_a_key_with_a_lease_a_debt_or_a_pause_is_kept(tree: Tree) -> None:
    """Also one whose budget other code holds, and a team while one of its users is kept."""
    lease = tree.users.reserve("a1")
    await lease.__aenter__()
    tree.clock.advance(9)
    assert 0 == tree.users.evict()
    lease.settle(requests=20)
    del lease
    tree.clock.advance(9)
    assert 0 == tree.users.evict()
    tree.clock.advance(11)
    tree.users["a1"].pause(9)
    assert 0 == tree.users.evict()
    tree.clock.advance(9)
    held = tree.users["a1"]
    assert (0, 0) == (tree.users.evict(), tree.teams.evict())
    del held

    assert (1, 1) == (tree.users.evict(), tree.teams.evict())
    assert (0, 0) == (len(tree.users), len(tree.teams))


async def test_closing_keys_closes_their_budgets(tree: Tree) -> None:
    """And adds no keys; what they share stays open, and open leases can be settled."""
    calls = Calls(tree.users["a1"], tree.clock)
    await calls.queue("a", tokens=100)
    await calls.queue("b", tokens=10)
    await tree.users.aclose()
    await turns(5)

    assert isinstance(calls.tasks["b"].exception(), LimiterClosed)
    await calls.end("a", tokens=0)
    for user in ("a1", "a2"):
        with pytest.raises(LimiterClosed):
            await tree.users.reserve(user, tokens=5).__aenter__()
    tree.users.observe("a2", Feedback(429, pause=5.0))
    assert (1, {"tokens": 100}) == (len(tree.users), left(tree.teams["a"]))


async def test_bad_arguments_of_keyed_budgets_are_refused(clock: SteppedClock) -> None:
    made: Any = KeyedBudget
    one, top, call = Budget(requests="1/s", clock=clock), Budget(tokens="1/s", clock=clock), lambda key: Budget(requests="1/s")
    twice = made(lambda key: one)
    assert twice["a"] is one
    rows: list[tuple[Any, type[Exception], str]] = [
        (lambda: made(one), TypeError, "function"),
        (lambda: made(call, shared="500/min"), TypeError, "shared"),
        (lambda: made(call, shared=Limiter("1/s")), TypeError, "shared"),
        (lambda: made(call, shared=made(call)), TypeError, "shared"),
        (lambda: made(call, shared=Budget(requests="1/s", max_waiting=1)), ValueError, "max_waiting"),
        (lambda: made(call, max_keys=0), ValueError, "max_keys"),
        (lambda: made(call, idle="x"), TypeError, "idle"),
        (lambda: made(call, scope="thread"), ValueError, "'loop' or 'process'"),
        (lambda: made(lambda key: "1/s").reserve("a"), TypeError, "'a'.* str"),
        (lambda: made(call, shared=lambda key: Limiter("1/s")).reserve("a"), TypeError, "'a'"),
        (lambda: made(call).reserve([]), TypeError, "hashable"),
        (lambda: made(call).reserve("a", words=1), TypeError, "requests"),
        (lambda: copy.copy(made(call)), TypeError, "copied"),
        (lambda: twice["b"], ValueError, "'b'.*each key"),
        (lambda: made(lambda key: top, shared=top)["b"], ValueError, "'b'.*each key"),
        (lambda: made(lambda key: Budget(requests="1/s", shared=Budget(words="1/s")), shared=top)["b"], ValueError, "'b'.*shares"),
        (lambda: made(lambda key: Budget(requests="1/s", words=Limiter("1/s")), shared=top)["b"], ValueError, "'b'.*shares a limit"),
    ]
    for make, error, hint in rows:
        with pytest.raises(error, match=hint):
            make()
    assert ["a"] == list(twice)
