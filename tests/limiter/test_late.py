"""A loop that is late costs no rate, not even where fewer wait than have fallen due; and nobody gains by it."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import one_loop

import aiorate
from aiorate.testing import ManualClock

pytestmark = one_loop

MS = 1_000_000


async def late(clock: ManualClock) -> aiorate.Limiter:
    """Strict pacing at 100/s; one waiter, due at 10 ms, whom the loop wakes at 35 ms."""
    limiter = aiorate.Limiter(aiorate.BurstCompensation("100/s"), catch_up=0.05, clock=clock)
    await limiter.acquire()
    waiter = asyncio.ensure_future(limiter.acquire())
    await clock.run(0)

    clock.set(35 * MS)
    await waiter
    return limiter


async def test_who_asks_just_after_a_late_wake_up_is_served_as_if_in_line() -> None:
    """The slots at 20 and 30 ms fell due while the loop stood still: those whom it kept from asking get them."""
    limiter = await late(clock := ManualClock())

    waits = [await limiter.acquire(), await limiter.acquire()]
    refused = limiter.try_acquire()
    clock.set(40 * MS)

    assert waits == [0.0, 0.0]
    assert refused is False
    assert limiter.try_acquire() is True


async def test_who_asks_later_has_no_part_in_it() -> None:
    """2 ms on, it was not the loop that kept anybody: strict pacing gives what was missed up."""
    limiter = await late(clock := ManualClock())

    clock.advance(0.002)
    first, second = limiter.try_acquire(), limiter.delay()

    assert (first, second) == (True, 0.01)


async def test_a_late_wake_up_is_made_up_for_no_further_than_catch_up() -> None:
    """The guarantee is for a window longer by catch_up, and no longer than that."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.BurstCompensation("1000/s"), catch_up=0.02, clock=clock)
    await limiter.acquire()
    waiter = asyncio.ensure_future(limiter.acquire())
    await clock.run(0)

    clock.set(500 * MS)
    await waiter
    granted = sum(limiter.try_acquire() for _ in range(1000))

    assert granted == 20
    assert limiter.statistics().skipped == 479


@pytest.mark.parametrize("kind", [aiorate.BurstCompensation, aiorate.TokenPool])
async def test_three_workers_reach_ten_thousand_a_second_though_the_loop_wakes_once_a_millisecond(
    kind: type[aiorate.BurstCompensation | aiorate.TokenPool],
) -> None:
    """At each wake-up ten are due and three wait: without making up, seven of ten would be lost to strict pacing."""
    clock = ManualClock()
    limiter = aiorate.Limiter(kind("10000/s"), clock=clock)
    granted = 0

    async def work() -> None:
        nonlocal granted
        while True:
            await limiter.acquire()
            granted += 1

    workers = [asyncio.ensure_future(work()) for _ in range(3)]
    await clock.run(1)
    for worker in workers:
        worker.cancel()
    await asyncio.wait(workers)

    assert 9_990 <= granted <= 10_001
