"""KeyedBudget: requests and tokens for each user, and for the teams that users share."""

from __future__ import annotations

import copy
import gc
from collections import Counter
from typing import Any

import pytest
from helpers.calls import Calls, left
from helpers.driving import SECOND, SteppedClock, one_loop, turns

from aiorate import Budget, Event, KeyedBudget, Lease, Limiter, LimiterClosed, TokenBucket, WaitTooLong
from aiorate.http import Feedback

pytestmark = one_loop


class Tree:
    """Users such as "a1" of team "a", and the guest, who has no team. Requests by user, tokens by team and for all."""

    def __init__(self, clock: SteppedClock, **options: Any) -> None:
        self.clock = clock
        self.asked: list[str] = []
        self.top = Budget(tokens=TokenBucket(100, 1_000), clock=clock)
        self.teams = KeyedBudget[str](lambda team: Budget(tokens=TokenBucket(10, 100), clock=clock), shared=self.top)
        self.users = KeyedBudget[str](self.make, shared=self.team_of, **options)

    def make(self, user: str) -> Budget:
        return Budget(requests=TokenBucket(1, 5), tokens=TokenBucket(20, 200), clock=self.clock, name=user)

    def team_of(self, user: str) -> Budget | None:
        self.asked.append(user)
        return None if user == "guest" else self.teams[user[0]]

    def calls(self, user: str) -> Calls:
        return Calls(self.users[user], self.clock)


@pytest.fixture
def tree(clock: SteppedClock) -> Tree:
    return Tree(clock)


async def test_each_key_has_its_own_budget(clock: SteppedClock) -> None:
    """A key of any kind; a dimension may even be called key."""
    keyed = KeyedBudget[tuple[str, int]](lambda key: Budget(key=TokenBucket(1, 3), requests=TokenBucket(1, 5), clock=clock))

    async with keyed.reserve(("a", 1), key=2) as lease, keyed.reserve(("b", 2)):
        assert isinstance(lease, Lease)
        assert [{"key": 1, "requests": 4}, {"key": 2, "requests": 4}] == [left(keyed[key]) for key in (("a", 1), ("b", 2))]

    assert (2, True, False) == (len(keyed), ("a", 1) in keyed, "a" in keyed)
    assert [("a", 1), ("b", 2)] == sorted(keyed)


async def test_users_share_the_tokens_of_their_team(tree: Tree) -> None:
    """Not those of another team; the guest shares nothing."""
    async with tree.users.reserve("a1", tokens=60), tree.users.reserve("b1", tokens=60), tree.users.reserve("guest", tokens=200):
        assert {"requests": 4, "tokens": 40} == left(tree.users["a1"])
        assert {"requests": 5, "tokens": 40} == left(tree.users["a2"])
        assert {"tokens": 880} == left(tree.top)
        with pytest.raises(WaitTooLong, match="would wait 2 s for tokens"):
            await tree.users.reserve("a2", tokens=60, max_wait=1).__aenter__()

    assert Counter(["a1", "b1", "guest", "a2"]) == Counter(tree.asked)


async def test_estimates_of_a_user_are_settled_on_all_levels(tree: Tree) -> None:
    """The user's, the team's and that of all: by settle, and by an error with on_error="refund"."""
    async with tree.users.reserve("a1", tokens=90) as lease:
        assert lease.amounts == {"requests": 1, "tokens": 90}
        lease.settle(tokens=30)
    assert [170, 70, 970] == [tree.make("x").available("tokens") - 30, left(tree.users["a1"])["tokens"], left(tree.top)["tokens"]]
    with pytest.raises(OSError, match="broken"):
        async with tree.users.reserve("a1", tokens=50, on_error="refund"):
            raise OSError("broken")

    assert [70, 970] == [budget.available("tokens") for budget in (tree.users["a1"], tree.top)]


async def test_a_busy_user_delays_nobody_else(tree: Tree) -> None:
    """Another user of the team waits for one of its reservations at most, and users of other teams for none."""
    busy, quiet, other = tree.calls("a1"), tree.calls("a2"), tree.calls("b1")
    await busy.queue(["all"], tokens=100)
    await busy.queue(range(4), tokens=10)
    await quiet.queue("q", tokens=10)
    await other.queue("o", tokens=100)
    await tree.clock.run(30)

    assert {"all": 0, 0: 1, 1: 3, 2: 4, 3: 5} == {name: at // SECOND for name, at in busy.granted.items()}
    assert ({"q": 2 * SECOND}, {"o": 0}) == (quiet.granted, other.granted)


# Keeping.


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


async def test_evicted_budgets_are_freed_at_once(tree: Tree) -> None:
    """Without the garbage collector, so that a rush of keys leaves nothing behind."""
    gc.collect()
    gc.disable()
    try:
        for user in ("a1", "b1", "guest"):
            calls = tree.calls(user)
            await calls.queue(range(3), tokens=70)
            await tree.clock.run(60)
            await calls.end(*range(3))
            del calls
        tree.clock.advance(60)
        tree.users.evict()
        tree.teams.evict()
        assert (0, 0) == (len(tree.users), len(tree.teams))
    finally:
        gc.enable()


async def test_many_budgets_come_and_go(clock: SteppedClock) -> None:
    """max_keys and idle are those of a KeyedLimiter, and an event names each evicted key."""
    events: list[Event] = []
    tree = Tree(clock, max_keys=10, idle=5, on_event=events.append)
    for number in range(500):
        async with tree.users.reserve(f"{'abcdefghij'[number % 10]}{number}"):
            pass
        clock.advance(1)

    assert len(tree.users) <= 12
    assert {"evicted"} == {event.kind for event in events}
    assert 10 == len(tree.teams)


async def test_feedback_for_a_key_concerns_no_other_key(tree: Tree) -> None:
    """Nor the team: a pause is for the budget that is told of it."""
    tree.users.observe("a1", Feedback(429, pause=5.0))
    tree.users.observe("a2", None)

    budgets = [tree.users["a1"], tree.users["a2"], tree.teams["a"], tree.top]
    assert [5.0, None, None, None] == [budget.statistics().paused_until for budget in budgets]


async def test_closing_keys_closes_their_budgets(tree: Tree) -> None:
    """And adds no keys; what they share stays open, and open leases can be settled."""
    calls = tree.calls("a1")
    await calls.queue("a", tokens=100)
    await calls.queue("b", tokens=10)

    await tree.users.aclose()
    await turns(5)

    assert isinstance(calls.tasks["b"].exception(), LimiterClosed)
    await calls.end("a", tokens=0)
    for user in ("a1", "a2"):
        with pytest.raises(LimiterClosed, match="is closed"):
            await tree.users.reserve(user, tokens=5).__aenter__()
    tree.users.observe("a2", Feedback(429, pause=5.0))
    assert (1, {"tokens": 100}) == (len(tree.users), left(tree.teams["a"]))


async def test_closed_teams_refuse_their_users(tree: Tree) -> None:
    """Those that are kept, and those that are made later."""
    async with tree.users.reserve("a1"):
        pass

    await tree.teams.aclose()

    with pytest.raises(LimiterClosed, match="the shared budget of tokens is closed"):
        await tree.users.reserve("a1").__aenter__()
    with pytest.raises(LimiterClosed, match=r"KeyedBudget\(shared\) for 'b1': the KeyedBudget is closed"):
        tree.users.reserve("b1")
    assert "b1" not in tree.users


# Bad input.


def keyed_of(factory: Any = lambda key: Budget(requests="1/s"), **options: Any) -> Any:
    return KeyedBudget(factory, **options)


async def later(key: str) -> None:
    """An async function."""


@pytest.mark.parametrize(
    ("make", "error", "hint"),
    [
        (lambda: keyed_of(Budget(requests="1/s")), TypeError, r"function of the key, such as lambda key: Budget\("),
        (lambda: keyed_of(Budget), TypeError, "function of the key"),
        (lambda: keyed_of(shared="500/min"), TypeError, r"KeyedBudget\(shared\) takes a Budget"),
        (lambda: keyed_of(shared=Limiter("1/s")), TypeError, r"KeyedBudget\(shared\) takes a Budget.*as a dimension"),
        (lambda: keyed_of(shared={"a": Budget(requests="1/s")}), TypeError, r"shared=budgets\.get"),
        (lambda: keyed_of(shared=Budget), TypeError, r"KeyedBudget\(shared\) takes a Budget"),
        (lambda: keyed_of(shared=keyed_of()), TypeError, r"shared=lambda user: tenants\[user\.tenant\]"),
        (lambda: keyed_of(shared=Budget(requests="1/s", max_waiting=1)), ValueError, "max_waiting=1"),
        (lambda: keyed_of(max_keys=0), ValueError, r"KeyedBudget\(max_keys\)"),
        (lambda: keyed_of(idle="x"), TypeError, r"KeyedBudget\(idle\)"),
        (lambda: keyed_of(on_event=5), TypeError, r"KeyedBudget\(on_event\)"),
        (lambda: keyed_of(max_waiting=5), TypeError, r"Budget\(requests='500/min', max_waiting=5\)"),
        (lambda: keyed_of(tokens="5/s"), TypeError, r"lambda key: Budget\(tokens='5/s'\)"),
        (lambda: keyed_of(scope="thread"), ValueError, r"KeyedBudget\(scope\) must be 'loop' or 'process'"),
        (lambda: keyed_of(lambda key: "1/s").reserve("a"), TypeError, r"must return a Budget, .* for 'a' it returned str"),
        (lambda: keyed_of(lambda key: {"requests": "1/s"}).reserve("a"), TypeError, "for 'a' it returned dict"),
        (lambda: keyed_of(later).reserve("a"), TypeError, "for 'a' it returned coroutine"),
        (lambda: keyed_of(shared=lambda key: Limiter("1/s")).reserve("a"), TypeError, "for 'a': the function must return a Budget"),
        (lambda: keyed_of(shared=later).reserve("a"), TypeError, "for 'a': .*plain one"),
        (lambda: keyed_of(shared=lambda key: keyed_of()).reserve("a"), TypeError, "for 'a': a KeyedBudget has"),
        (lambda: keyed_of().reserve([]), TypeError, "a key must be hashable"),
        (lambda: keyed_of().reserve("a", words=1), TypeError, "unknown dimension 'words'; the dimensions are requests"),
        (lambda: keyed_of().reserve("a", {"requests": 1}), TypeError, r"reserve\(\*\*amounts\)"),
        (lambda: keyed_of().reserve("a", requests=-1), ValueError, "requests"),
        (lambda: keyed_of().acquire, AttributeError, r"keyed\.reserve\(key, tokens=1800\)"),
        (lambda: keyed_of().pause, AttributeError, r"keyed\[key\]\.pause\(\)"),
        (lambda: copy.copy(keyed_of()), TypeError, "a KeyedBudget cannot be copied"),
    ],
)
async def test_bad_arguments_of_keyed_budgets_are_refused(make: Any, error: type[Exception], hint: str) -> None:
    """The error says what to write instead."""
    with pytest.raises(error, match=hint):
        make()


async def test_wrong_budgets_of_a_factory_are_refused(clock: SteppedClock) -> None:
    """One for two keys, one that is shared itself, one that shares another, and one with a Limiter; nothing is kept."""
    one, top = Budget(requests="1/s", clock=clock), Budget(tokens="1/s", clock=clock)
    alone, around, twice, limiter = (
        keyed_of(factory, shared=shared)
        for factory, shared in (
            (lambda key: one, None),
            (lambda key: top, top),
            (lambda key: Budget(requests="1/s", shared=Budget(words="1/s")), lambda key: top),
            (lambda key: Budget(requests="1/s", words=Limiter("1/s")), top),
        )
    )
    assert alone["a"] is one

    for keyed, hint in (
        (alone, "one for each key"),
        (around, "one for each key"),
        (twice, "shares .* already"),
        (limiter, "'words' is a shared Limiter.*dimension of the shared budget"),
    ):
        with pytest.raises(ValueError, match=rf"returned <Budget.*for 'b': .*{hint}"):
            keyed["b"]
        assert "b" not in keyed


async def test_a_budget_of_a_key_may_share_by_itself(clock: SteppedClock) -> None:
    """Without shared= of the KeyedBudget: another way to say the same, also with a Limiter."""
    top, account = Budget(tokens=TokenBucket(1, 9), clock=clock), Limiter(TokenBucket(1, 9), clock=clock)
    budgets = keyed_of(lambda key: Budget(requests=TokenBucket(1, 9), shared=top, clock=clock))
    limiters = keyed_of(lambda key: Budget(requests=TokenBucket(1, 9), tokens=account, clock=clock))

    async with budgets.reserve("a", tokens=3), budgets.reserve("b", tokens=3), limiters.reserve("a", tokens=3), limiters.reserve("b"):
        assert [3, 5] == [budgets["c"].available("tokens"), limiters["c"].available("tokens")]
    clock.advance(60)

    assert [3, 3] == [budgets.evict(), limiters.evict()]


async def test_a_circle_of_keyed_budgets_is_refused() -> None:
    """Through several of them."""
    first: KeyedBudget[str] = keyed_of(shared=lambda key: second[key])
    second: KeyedBudget[str] = keyed_of(shared=lambda key: first[key])

    with pytest.raises(ValueError, match="'a' cannot share itself"):
        first.reserve("a")

    assert (0, 0) == (len(first), len(second))


async def test_a_block_of_a_keyed_budget_names_reserve() -> None:
    """Python's own message speaks of a protocol."""
    with pytest.raises(TypeError, match=r"async with keyed\.reserve\(key, tokens=1800\)"):
        async with keyed_of():
            pass


async def test_repr_of_a_keyed_budget(tree: Tree) -> None:
    """It adds no key."""
    assert ("<KeyedBudget of 0 keys, shared by key>", None) == (repr(tree.users), tree.users.shared)
    assert (repr(tree.teams).startswith("<KeyedBudget of 0 keys, shared=<Budget tokens="), tree.top) == (True, tree.teams.shared)
