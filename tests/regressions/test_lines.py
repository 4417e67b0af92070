"""Waiting lines: their order, which requests count for `max_waiting`, and places of `max_concurrency`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from helpers.driving import LONG, Crowd, one_loop, turns
from helpers.strategies import EACH

from aiorate import Limiter, LineFull, TokenPool
from aiorate.testing import ManualClock


async def limiter_joined(limiter: Limiter, clock: ManualClock) -> None:
    """Acquire in this very step, and let time pass until it is granted."""
    mover = asyncio.ensure_future(clock.run(60))
    await limiter.acquire()
    await mover


@one_loop
async def test_cancelled_waiter_does_not_fill_a_short_line() -> None:
    """LineFull was raised because of a waiter that was cancelled but had not run since."""
    for strategy, most in (("TokenPool", 1), ("TokenBucket", 2), ("SlidingWindow", 50)):
        clock = ManualClock()
        limiter = Limiter(EACH[strategy](), clock=clock, max_waiting=most)
        crowd = Crowd(limiter, clock)
        while limiter.try_acquire():
            pass
        await crowd.queue(range(most))

        crowd.tasks[most - 1].cancel()
        waiting = limiter.statistics().waiting
        await asyncio.wait_for(limiter_joined(limiter, clock), None)

        assert most - 1 == waiting, (strategy, most)
        assert crowd.tasks[most - 1].cancelled(), (strategy, most)
        await clock.run(60)
        assert list(range(most - 1)) == list(crowd.granted), (strategy, most)


@one_loop
async def test_a_task_that_was_cancelled_before_waits_like_any_other() -> None:
    """A task cleaning up after a cancellation counted as cancelled in a TokenPool: neither ``waiting`` nor ``max_waiting`` saw it."""
    clock = ManualClock()
    limiter = Limiter(TokenPool("1/s"), clock=clock, max_waiting=1)
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


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_no_time_passes_while_a_thread_holds_a_place() -> None:
    """A waiter for a place set a timer for the year 2162, and virtual time jumped there."""
    loop, limiter = asyncio.get_running_loop(), Limiter("1000/s", max_concurrency=1)
    done = threading.Event()

    async def hold() -> None:
        async with limiter:
            await loop.run_in_executor(None, done.wait, LONG)

    async def enter() -> None:
        async with limiter:
            pass

    tasks = [asyncio.ensure_future(hold()), asyncio.ensure_future(enter())]
    threading.Timer(0.05, done.set).start()
    await asyncio.wait(tasks)
    assert loop.time() < 1


@pytest.mark.parametrize("run", [asyncio.run, trio.run])
def test_task_that_would_wait_for_itself_gets_an_error(run: Callable[..., Any]) -> None:
    """As with anyio's CapacityLimiter. It hung before, and so did every task behind it."""
    limiter = Limiter("1000/s", max_concurrency=1)

    async def main() -> None:
        async with limiter:
            await limiter.acquire()
            with pytest.raises(RuntimeError, match="would wait for itself"):
                async with limiter:
                    pass
            with pytest.raises(RuntimeError, match="would wait for itself"):
                await limited()
        async with limiter:
            pass
        await limited()

    @limiter
    async def limited() -> None:
        pass

    run(main) if run is trio.run else run(main())
