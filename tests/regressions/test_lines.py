"""Waiting lines: their order, and which requests count for `max_waiting`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from helpers.driving import SECOND, Crowd, one_loop, turns
from helpers.strategies import EACH

from aiorate import Limiter, LineFull, Scheduler, TokenBucket, TokenPool
from aiorate.testing import ManualClock

MS = SECOND // 1000


@one_loop
@pytest.mark.parametrize("strategy", EACH)
@pytest.mark.parametrize("most", [1, 2, 50])
async def test_cancelled_waiter_does_not_fill_a_short_line(strategy: str, most: int) -> None:
    """LineFull was raised because of a waiter that was cancelled but had not run since."""
    clock = ManualClock()
    limiter = Limiter(EACH[strategy](), clock=clock, max_waiting=most)
    crowd = Crowd(limiter, clock)
    while limiter.try_acquire():
        pass
    await crowd.queue(range(most))

    crowd.tasks[most - 1].cancel()
    waiting = limiter.statistics().waiting
    await asyncio.wait_for(limiter_joined(limiter, clock), None)

    assert most - 1 == waiting
    assert crowd.tasks[most - 1].cancelled()
    await clock.run(60)
    assert list(range(most - 1)) == list(crowd.granted)


async def limiter_joined(limiter: Limiter, clock: ManualClock) -> None:
    """Acquire in this very step, and let time pass until it is granted."""
    mover = asyncio.ensure_future(clock.run(60))
    await limiter.acquire()
    await mover


@one_loop
@pytest.mark.parametrize("make", [lambda: TokenPool("1/s"), lambda: TokenBucket("1/s", burst=1)], ids=["TokenPool", "TokenBucket"])
async def test_cancelled_waiter_does_not_fill_a_long_line(make: Callable[[], Scheduler]) -> None:
    """With more than 64 in line, every second question was answered without a look at cancelled waiters."""
    clock = ManualClock()
    limiter = Limiter(make(), clock=clock, max_waiting=100)
    crowd = Crowd(limiter, clock)
    assert limiter.try_acquire()
    await crowd.queue(range(100))

    crowd.tasks[50].cancel()
    coroutine = limiter.acquire()
    coroutine.send(None)  # in this very step

    coroutine.close()
    for task in crowd.tasks.values():
        task.cancel()
    await turns(3)


@one_loop
@pytest.mark.parametrize("make", [lambda: TokenPool("1/s"), lambda: TokenBucket("1/s", burst=1)], ids=["TokenPool", "TokenBucket"])
async def test_a_task_that_was_cancelled_before_waits_like_any_other(make: Callable[[], Scheduler]) -> None:
    """A task cleaning up after a cancellation counted as cancelled in a TokenPool: neither ``waiting`` nor ``max_waiting`` saw it."""
    clock = ManualClock()
    limiter = Limiter(make(), clock=clock, max_waiting=1)
    assert limiter.try_acquire()

    async def clean_up() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await limiter.acquire()

    task = asyncio.ensure_future(clean_up())
    await turns(2)
    task.cancel()
    await turns(3)

    assert 1 == limiter.statistics().waiting
    with pytest.raises(LineFull):
        await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(limiter.acquire())), 0.1)
    await clock.run(5)
    assert task.cancelled()


@one_loop
async def test_max_waiting_counts_waits_for_places_and_permits() -> None:
    """The sum of both is exact in a short line, and a cancelled task makes room before it has run."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("1/s", burst=2), clock=clock, max_concurrency=3, max_waiting=3)
    tasks = [asyncio.ensure_future(limiter._enter(1)) for _ in range(5)]
    await turns(3)
    assert 3 == limiter.statistics().waiting
    with pytest.raises(LineFull):
        await limiter._enter(1)
    tasks[4].cancel()
    late = asyncio.ensure_future(limiter._enter(1))
    await turns(3)
    assert 3 == limiter.statistics().waiting
    for task in (*tasks, late):
        task.cancel()
    with suppress(asyncio.CancelledError):
        await late


@one_loop
@pytest.mark.parametrize("seed", range(200))
async def test_pool_serves_in_order_of_arrival_despite_cancellations(seed: int) -> None:
    """Each cancelled waiter passed a notice on (CPython 3.13: 195 of 500 histories) or skipped one (3.11: 3 of 500)."""
    dice, clock = random.Random(seed), ManualClock()
    ran: list[int] = []
    limiter = Limiter(TokenPool("1000/s", pool=20 * MS), clock=clock)
    while limiter.try_acquire():
        pass

    async def one(name: int) -> None:
        await limiter.acquire()
        ran.append(name)

    tasks = [asyncio.ensure_future(one(name)) for name in range(dice.randrange(2, 200))]
    await turns(3)
    for _ in range(40):
        clock.advance(dice.choice((0.0, 0.001, 0.003, 0.02)))
        await turns(dice.randrange(4))
        pending = [task for task in tasks if not task.done()]
        for task in dice.sample(pending, min(len(pending), dice.randrange(6))):
            task.cancel()
        await turns(dice.randrange(4))
    await clock.run(1)

    assert sorted(ran) == ran
    assert all(task.done() for task in tasks)
