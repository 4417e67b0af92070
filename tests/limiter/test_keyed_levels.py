"""shared= as a function of the key: users of teams, teams of regions, and one limit for all."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from helpers.driving import Crowd, SteppedClock, in_ms, one_loop, turns
from helpers.feedback import said

from aiorate import KeyedLimiter, Limiter, LimiterClosed, SlidingWindow, SmoothBursty, TokenBucket

pytestmark = one_loop


class Tree:
    """Users such as "a1" of team "a", the guest, who has no team, and one limit for all teams. A user has 5 permits, a team 3."""

    def __init__(self, users: int = 5, team: int = 3, all_of_them: int = 100, **options: Any) -> None:
        self.clock = SteppedClock()
        self.asked: list[str] = []
        self.top = self.bucket(all_of_them)
        self.teams = KeyedLimiter[str](lambda key: self.bucket(team), shared=lambda key: self.top, **options)
        self.users = KeyedLimiter[str](lambda user: self.bucket(users), shared=self.team_of, **options)

    def bucket(self, burst: int) -> Limiter:
        return Limiter(TokenBucket(burst, burst), clock=self.clock)

    def team_of(self, user: str) -> Limiter | None:
        self.asked.append(user)
        return None if user == "guest" else self.teams[user[:-1]]

    def left(self, user: str) -> list[int]:
        """What is available to the user alone, to the team and to all."""
        limiters = [self.users[user], self.teams[user[:-1]], self.top]
        return [limiter.scheduler.available(self.clock.now()) for limiter in limiters]


async def test_each_key_passes_the_limit_that_the_function_names() -> None:
    tree = Tree()
    assert [True, True, True, False] == [tree.users.try_acquire(user) for user in ("a1", "a2", "a1", "a2")]
    assert [True, True] == [tree.users.try_acquire("b1"), tree.users.try_acquire("guest")]
    assert [3, 0, 96] == tree.left("a1")
    assert [4, 0, 96] == tree.left("a2")
    assert [4, 2, 96] == tree.left("b1")


async def test_a_function_is_asked_once_for_each_kept_key() -> None:
    """It may look into a database. A key that was evicted is a new one."""
    tree = Tree()
    for user in ("a1", "a2", "a1", "guest", "guest"):
        tree.users.try_acquire(user)
        tree.users.observe(user, said(pause=0))
        repr(tree.users[user])
    assert {"a1": 1, "a2": 1, "guest": 1} == Counter(tree.asked)
    tree.clock.advance(60)
    assert 3 == tree.users.evict()
    tree.users.try_acquire("a1")
    assert 2 == tree.asked.count("a1")


async def test_refunds_and_charges_reach_every_level() -> None:
    """Also a level above, of which the function of the users knows nothing."""
    for call, now in (("refund", [4, 2, 99]), ("charge", [0, 0, 95])):
        tree = Tree()
        assert tree.users["a1"].try_acquire(3)
        getattr(tree.users["a1"], call)(2)
        assert now == tree.left("a1"), call


async def test_a_limit_that_kept_keys_share_is_kept() -> None:
    """max_keys is soft above the leaves; a team goes once none of its users is kept."""
    tree = Tree()
    tree.teams = KeyedLimiter[str](lambda team: tree.bucket(3), max_keys=1)
    for user in ("a1", "b1", "c1", "d1"):
        tree.users.try_acquire(user)
    tree.clock.advance(60)
    assert 0 == tree.teams.evict()
    assert ["a", "b", "c", "d"] == sorted(tree.teams)
    assert (4, 4) == (tree.users.evict(), tree.teams.evict())


async def test_a_closed_level_refuses_the_keys_below_it() -> None:
    """Requests in line, later ones, and those of keys that are made later. The keys of other teams go on."""
    tree = Tree()
    crowd = Crowd(tree.users["a1"], tree.clock)
    await crowd.queue(range(5))
    await tree.teams["a"].aclose()
    await turns(5)

    assert [LimiterClosed] * 2 == [type(task.exception()) for task in crowd.tasks.values() if task.exception() is not None]
    for user in ("a1", "a2"):
        with pytest.raises(LimiterClosed):
            await tree.users.acquire(user)
    assert tree.users.try_acquire("b1")
    await tree.teams.aclose()
    with pytest.raises(LimiterClosed):
        await tree.users.acquire("c1")


async def test_64_levels_work_and_more_are_refused() -> None:
    """A decision passes them in nested calls, of which Python allows about a thousand."""
    clock = SteppedClock()
    keyed: KeyedLimiter[int] = KeyedLimiter(
        lambda key: Limiter(TokenBucket("1/s", burst=1), clock=clock), shared=lambda key: keyed[key - 1] if key else None
    )
    for level in range(64):
        assert keyed[level] is keyed[level]
    crowd = Crowd(keyed[63], clock)
    await crowd.queue(range(3))
    await clock.run(2)

    assert [0, 1000, 2000] == in_ms(crowd)
    with pytest.raises(ValueError, match="64"):
        keyed[64]


async def test_what_others_share_cannot_share_another_limit() -> None:
    """They would miss it: nobody would wake those who wait there. It makes no difference whether it has places."""
    for places in (None, 2):
        team = Limiter("100/s", max_concurrency=places)
        users: KeyedLimiter[str] = KeyedLimiter(lambda user: "100/s", shared=team)
        assert users.try_acquire("a1")
        teams: KeyedLimiter[str] = KeyedLimiter(lambda key, team=team: team, shared=Limiter("1/s"))  # type: ignore[misc]
        with pytest.raises(ValueError, match="others share it already"):
            teams["a"]


async def test_keys_of_every_kind_take_of_the_shared_limit() -> None:
    """In pure Python, keys whose permits lie on no straight line took nothing there, nor any key below a limit with places."""
    for make in (SlidingWindow, SmoothBursty, lambda rate: TokenBucket(rate, burst=100)):
        for places in (None, 1000):
            shared = Limiter(TokenBucket("10/h", burst=10), max_concurrency=places)
            keyed: KeyedLimiter[int] = KeyedLimiter(lambda key, make=make: make("100000/s"), shared=shared)  # type: ignore[misc]

            assert sum([keyed.try_acquire(number % 4) for number in range(100)]) <= 10, (make, places)
            assert shared.statistics().granted <= 10, (make, places)
