"""The open meter together with everything else that can happen to a limiter: no permit is lost, given twice or taken past a line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from helpers.driving import SECOND, turns
from helpers.meters import Machine, at_once

import aiorate
from aiorate.testing import ManualClock

pytestmark = [pytest.mark.asyncio]
MS = SECOND // 1000

FIRST: dict[str, Callable[[aiorate.Limiter], object]] = {
    "lag": lambda limiter: limiter.lag,
    "resume": lambda limiter: limiter.resume(),
    "pause": lambda limiter: (limiter.pause(1), limiter.resume()),
    "set_rate": lambda limiter: limiter.set_rate("10/s"),
    "restart": lambda limiter: limiter.apply("10,1,restart"),
    "reset": lambda limiter: limiter.reset(),
    "refund": lambda limiter: limiter.refund(1),
    "delay": lambda limiter: limiter.delay(),
    "repr": repr,
}


def shut(limiter: aiorate.Limiter) -> None:
    """Have the next call ask the dispatcher and the scheduler."""
    meter = limiter._dispatcher.meter
    meter.until = meter.try_until = 0


async def take_all(limiter: aiorate.Limiter, shutting: bool = False) -> int:
    """The number of permits that are available now, by acquire()."""
    granted = -1
    more = True
    while more:
        granted += 1
        if shutting:
            shut(limiter)
        more = await at_once(limiter)
    return granted


@pytest.mark.parametrize("first", FIRST)
async def test_a_pool_begins_with_one_permit_after_any_call(first: str, machine: Machine) -> None:
    """Another limiter of the loop opened the meter before this pool was asked for the first time."""
    other = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=5))
    assert [0, 0] == [await other.acquire(), await other.acquire()]
    limiter, twin = (aiorate.Limiter(aiorate.TokenPool("10/s", pool=10 * SECOND)) for _ in range(2))

    FIRST[first](limiter)
    FIRST[first](twin)

    assert await take_all(limiter) == await take_all(twin, shutting=True) <= 2


class Early:
    """A clock that reads less than 0."""

    reading = -100 * SECOND

    def now(self) -> int:
        return self.reading


async def test_a_clock_below_zero_opens_no_shut_meter() -> None:
    """A shut meter is marked with 0, which is later than any such reading."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=10), clock=Early())
    assert limiter.try_acquire()

    await limiter.aclose()

    with pytest.raises(aiorate.LimiterClosed):
        limiter.try_acquire()


async def test_a_clock_below_zero_passes_no_line() -> None:
    clock = ManualClock(0)
    clock.set(-100 * SECOND)
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=10), clock=clock)
    assert limiter.try_acquire()
    large = asyncio.ensure_future(limiter.acquire(10))
    await turns(3)

    assert not limiter.try_acquire()

    large.cancel()
    await turns(3)


@pytest.mark.usefixtures("every_clock")
@pytest.mark.parametrize("depth", [2, 3])
async def test_an_open_shared_limit_makes_up_for_lateness(depth: int) -> None:
    """A wake-up that is late for one limit is late for the one behind it, which nobody waits in and whose meter is open."""
    clock = ManualClock(SECOND)
    shared = aiorate.Limiter(aiorate.BurstCompensation("10/s"), clock=clock)
    for _ in range(depth - 1):
        shared = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.BurstCompensation("10/s"), clock=clock), shared=shared)[
            "key"
        ]
    tasks = [asyncio.ensure_future(shared.acquire()) for _ in range(51)]

    for step in range(1, 5_000 // 15 + 2):  # wake-ups are up to 15 ms late
        await turns(6)
        clock.set(SECOND + step * 15 * MS)
    await turns(6)

    assert all(task.done() for task in tasks)


async def test_an_attribute_in_place_of_take_sees_every_permit(machine: Machine) -> None:
    """It calls the method that it replaces, so the schedule has begun in the scheduler's own meter."""
    bucket = type("Mine", (aiorate.TokenBucket,), {})("10/s", burst=5)
    asked: list[int] = []
    take = bucket.take

    def noted(permits: int, now: int, since: int | None = None) -> int:
        asked.append(permits)
        result: int = take(permits, now, since)
        return result

    bucket.take = noted
    limiter = aiorate.Limiter(bucket)

    assert 5 == await take_all(limiter)
    assert 5 <= len(asked)


@pytest.mark.parametrize("shutting", [True, False])
@pytest.mark.parametrize("make", [lambda: aiorate.TokenBucket("1000/s", burst=20), lambda: aiorate.TokenPool("1000/s", pool=20 * MS)])
async def test_grabs_before_a_grant_cost_it_no_credit(make: Callable[[], aiorate.Scheduler], shutting: bool, machine: Machine) -> None:
    """The first grab found a full bucket; the grant after it waits for the loop, others grab, and it comes back: there is room for all."""
    limiter, other = aiorate.Limiter(make()), aiorate.Limiter(aiorate.TokenBucket("10/s", burst=9))
    assert await at_once(limiter)
    machine.instant += SECOND
    await turns(4)
    assert [0, 0] == [await other.acquire(), await other.acquire()]
    limiter.statistics()  # opens the meter
    for _ in range(10):
        if shutting:
            shut(limiter)
        assert await at_once(limiter)

    machine.instant += 6 * MS
    starved = limiter.acquire(5)
    starved.send(None)
    machine.instant += 1
    if shutting:
        shut(limiter)
    assert limiter.try_acquire()
    starved.close()

    left = 0
    while limiter.try_acquire():
        left += 1
        if shutting:
            shut(limiter)
    assert 20 - 10 + 6 - 1 == left
