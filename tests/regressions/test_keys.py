"""Which keys a KeyedLimiter keeps and which it evicts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any

import pytest
from helpers.driving import SECOND, one_loop

from aiorate import KeyedLimiter, Limiter, TokenBucket
from aiorate.testing import ManualClock, VirtualLoop

ROUND = 8_192  # a reused key stays for this many uses, or for as many as there are keys


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


@pytest.mark.parametrize("name", [int, str, lambda number: ("host", number)])
def test_a_thousand_keys_in_turn_are_found_again(name: Callable[[int], Hashable]) -> None:
    """Each new key evicted two others in use, each of which evicted two more: soon no key was found."""
    counted = Counted()

    for lap in range(10):
        for number in range(1_000):
            counted.use(name(number))
        counted.clock.advance(0.05)
        if lap:
            counted.use(("new", lap))

    assert 1_000 + 9 == counted.made


def test_keys_that_rest_within_a_lap_stay_from_the_second_on() -> None:
    """In the first lap they look like keys that never come again; in the second they come again."""
    counted = Counted()
    made = []

    for _ in range(10):
        for number in range(1_000):
            counted.use(number, ms=1)
        made.append(counted.made)

    assert 1_000 == made[0]
    assert made[1] <= 2_000
    assert made[1:] == made[1:2] * 9


def test_key_in_use_stays_beside_keys_used_once() -> None:
    """Keys that are used once go, and keys used again do not go with them."""
    counted = Counted()
    counted.use("busy")
    counted.use("busy")

    for number in range(20_000):
        counted.use(number, ms=1)
        if number % 1_000 == 0:
            counted.use("busy")

    assert 20_001 == counted.made
    assert len(counted.keyed) <= 2 * 10 + 5


@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.parametrize("many", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_unused_keys_go_although_no_key_is_added(many: int, again: int) -> None:
    """Only a new key led to a look at others, so a million keys used once stayed for ever."""
    counted = Counted()
    for _ in range(again):
        for key in range(many):
            counted.use(key)
    assert many == len(counted.keyed)
    counted.clock.advance(1)

    uses = 0
    while len(counted.keyed) > 1 and uses < 4 * again * many:
        counted.use("busy", ms=10)
        uses += 1

    assert ["busy"] == list(counted.keyed)
    assert many // 2 <= uses <= 2 * again * many  # each use looks at two keys, after one round


def test_keys_used_twice_do_not_pile_up() -> None:
    """A round does not get longer with keys that never come again, however many there are."""
    counted = Counted()
    most = 0

    for key in range(4 * ROUND):
        counted.use(key)
        counted.use(key, ms=1)
        most = max(most, len(counted.keyed))

    assert most <= 2 * ROUND


def test_no_use_looks_at_more_than_a_few_keys() -> None:
    """The cost is spread, even where thousands may go at once."""
    dropped: list[object] = []
    counted = Counted(on_event=dropped.append)
    for _ in range(2):
        for key in range(ROUND):
            counted.use(key)
    counted.clock.advance(1)

    for _ in range(3 * ROUND):
        before = len(dropped)
        counted.use("busy", ms=10)
        assert len(dropped) - before <= 4

    assert ROUND == len(dropped)


def test_max_keys_holds_for_keys_that_are_used_again_and_again() -> None:
    """Keys used since the last look stay, unless there are too many."""
    counted = Counted(max_keys=100)

    for _ in range(3):
        for key in range(1_000):
            counted.use(key, ms=1)
            counted.use(key)
            assert len(counted.keyed) <= 100


@one_loop
async def test_evict_forgets_which_keys_were_dropped() -> None:
    """A key that comes back afterwards is new, and goes as soon as any other."""
    counted = Counted()
    for _ in range(2):
        for key in range(500):
            counted.use(key, ms=1)
        assert counted.keyed.evict() <= 500
        counted.clock.advance(1)
        counted.keyed.evict()
    for key in range(500):
        counted.use(key, ms=1)

    assert len(counted.keyed) <= 25


def test_key_examined_before_its_first_use_follows_its_loop() -> None:
    """The eviction read it by the machine's clock; in a loop of virtual time it then granted nothing for years."""

    async def main() -> float:
        keyed = KeyedLimiter[str](lambda key: "10/s")
        held = keyed["held"]
        assert keyed["another"].try_acquire()
        return await held.acquire() + await held.acquire()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert pytest.approx(0.1) == runner.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("shared", [None, "10/s"])
def test_key_examined_by_a_new_key_follows_its_loop(shared: str | None) -> None:
    """Making the second key examined the first by the machine's clock: in virtual time it waited as long as the machine was up."""

    async def main() -> float:
        await asyncio.sleep(1)
        keyed = KeyedLimiter(lambda key: TokenBucket("10/s", 2), shared=shared)
        first, _ = keyed["a"], keyed["b"]
        return await first.acquire()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert 0.0 == runner.run(main())
