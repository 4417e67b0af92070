"""A late loop costs no rate, even if fewer tasks wait than permits have fallen due, and never yields more than `catch_up` allows."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import one_loop

import aiorate
from aiorate.testing import ManualClock

pytestmark = one_loop

MS = 1_000_000


async def late(clock: ManualClock) -> aiorate.Limiter:
    """Strict pacing at 100/s, with one waiter that is due at 10 ms and woken at 35 ms."""
    limiter = aiorate.Limiter(aiorate.BurstCompensation("100/s"), catch_up=0.05, clock=clock)
    await limiter.acquire()
    waiter = asyncio.ensure_future(limiter.acquire())
    await clock.run(0)

    clock.set(35 * MS)
    await waiter
    return limiter


async def test_a_late_wake_up_serves_newcomers_as_if_in_line() -> None:
    """The slots at 20 and 30 ms fell due while the loop was blocked, and go to callers that could not ask meanwhile."""
    limiter = await late(clock := ManualClock())

    waits = [await limiter.acquire(), await limiter.acquire()]
    refused = limiter.try_acquire()
    clock.set(40 * MS)

    assert waits == [0.0, 0.0]
    assert refused is False
    assert limiter.try_acquire() is True


async def test_missed_slots_are_lost_two_milliseconds_later() -> None:
    """By then the loop has run: strict pacing gives the missed slots up."""
    limiter = await late(clock := ManualClock())

    clock.advance(0.002)
    first, second = limiter.try_acquire(), limiter.delay()

    assert (first, second) == (True, 0.01)


async def test_a_late_wake_up_is_made_up_for_up_to_catch_up() -> None:
    """The guarantee holds for a window that is `catch_up` longer."""
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
async def test_three_workers_reach_10000_per_second_on_a_coarse_timer(
    kind: type[aiorate.BurstCompensation | aiorate.TokenPool],
) -> None:
    """The loop wakes once a millisecond: ten permits are due and three tasks wait. Without catch-up seven of ten would be lost."""
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
