"""Which keys a KeyedLimiter keeps, what is left of the others, and threads that make keys at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

import pytest
from helpers.driving import SECOND, one_loop, others, turns

from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket, TokenPool
from aiorate.testing import ManualClock


class Counted:
    """Keys that owe for 10 ms, on a clock moved by hand; counts the limiters made."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock(SECOND)
        self.made = 0
        self.keyed: KeyedLimiter[Hashable] = KeyedLimiter(self.make, **options)

    def make(self, key: Hashable) -> Limiter:
        self.made += 1
        return Limiter(TokenBucket("100/s", burst=10), clock=self.clock)

    def use(self, key: Hashable, ms: float = 0) -> None:
        """Take a permit, then let time pass."""
        assert self.keyed.try_acquire(key)
        self.clock.set(self.clock.now() + int(ms * 1_000_000))


def test_thousands_of_keys_in_turn_are_found_again() -> None:
    """Each new key evicted two others in use, each of which evicted two more: soon no key was found."""
    counted = Counted()

    for lap in range(4):
        for number in range(4_000):
            counted.use(number)
        counted.clock.advance(0.05)
        if lap:
            counted.use(("new", lap))

    assert 4_000 + 3 == counted.made


def test_unused_keys_go_although_no_key_is_added() -> None:
    """Only a new key led to a look at others, so a million keys used once stayed for ever."""
    counted = Counted()
    for key in range(10_000):
        counted.use(key)
    assert 10_000 == len(counted.keyed)
    counted.clock.advance(1)

    uses = 0
    while len(counted.keyed) > 1 and uses < 80_000:
        counted.use("busy", ms=10)
        uses += 1

    assert ["busy"] == list(counted.keyed)
    assert 16_384 <= uses <= 40_000  # so many uses of others may pass before a key is used again


@pytest.mark.parametrize("uses", [1, 3])
def test_idle_keys_go_soon_after_they_may(uses: int) -> None:
    """With idle=10, 20 000 keys were all still there after 100 s with 500 uses a second of a few others."""
    counted = Counted(idle=10)
    for key in range(20_000):
        for _ in range(uses):
            counted.use(key)

    for second in range(100):
        for number in range(500):
            counted.use(("other", number % 50), ms=2)
        if second < 9:
            assert len(counted.keyed) == 20_050

    assert len(counted.keyed) == 50


def test_limits_above_the_keys_go_once_their_keys_did() -> None:
    """140 teams were kept where max_keys is 50, for want of thousands of uses."""
    teams = Counted(max_keys=50)
    users: KeyedLimiter[tuple[str, int]] = KeyedLimiter(lambda user: teams.make(user), shared=lambda user: teams.keyed[user[0]])
    for number in range(140):
        assert users.try_acquire((f"team {number}", 0))
    assert 140 == len(teams.keyed)
    teams.clock.advance(3_600)

    for number in range(24_000):
        assert users.try_acquire(("team 0", number))
        teams.clock.advance(0.02)

    assert len(teams.keyed) <= 50


class CountedClock(ManualClock):
    """A clock that counts its readings."""

    reads = 0

    def now(self) -> int:
        self.reads += 1
        return super().now()


@one_loop
async def test_a_limiter_of_idle_keys_does_nothing_at_all() -> None:
    """dotnet/runtime#95611: a clean-up ran at every tick, for ever."""
    clock = CountedClock()
    keyed = KeyedLimiter(lambda key: Limiter(TokenPool("10/s", 1), clock=clock), shared=Limiter("100/s", clock=clock), idle=5)
    waiting = [asyncio.ensure_future(keyed.acquire(number % 10)) for number in range(30)]
    await clock.run(3)
    assert all(task.done() for task in waiting)

    clock.reads = 0
    await clock.run(1_000)
    await turns(100)

    assert (clock.reads, clock.timers, others(), len(keyed)) == (0, 0, set(), 10)


def test_an_option_that_cannot_be_shared_is_refused() -> None:
    """A line of five grew longer, because keys and budgets take only permits; and a budget takes no place."""
    with pytest.raises(ValueError, match=r"KeyedLimiter\(shared\)"):
        KeyedLimiter(lambda key: "1/s", shared=Limiter("10/s", max_waiting=0))
    for limiter in [Limiter("10/s", max_waiting=0), Limiter("10/s", max_concurrency=2)]:
        with pytest.raises(ValueError, match=r"Budget\(tokens\)"):
            Budget(requests="1/s", tokens=limiter)
    tenants = KeyedLimiter[str](lambda key: Limiter("10/s", max_waiting=0), shared="10/s")
    with pytest.raises(ValueError, match=r"KeyedLimiter\(shared\)"):
        KeyedLimiter(lambda key: "1/s", shared=tenants["acme"])
