"""`max_concurrency` across threads: places, and the permits that are asked for after them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from helpers.driving import LONG
from helpers.process import EACH_KIND, Inside, forget, made
from helpers.threads import LoopThread, in_thread, loop_thread, waiting

import aiorate
from aiorate.testing import ManualClock


@EACH_KIND
def test_max_concurrency_counts_all_threads(kind: str) -> None:
    """A place goes from one thread to the next, and is taken before the permit."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=100), scope="process", max_concurrency=2, clock=ManualClock())
    leave = threading.Event()

    def hold() -> None:
        async def main() -> None:
            async with limiter:
                inside.release()
                leave.wait(LONG)

        asyncio.run(main())

    inside = threading.Semaphore(0)
    holders = [in_thread(hold) for _ in range(2)]
    for _ in holders:
        assert inside.acquire(timeout=LONG)
    with loop_thread(kind) as thread:

        async def enter() -> float:
            async with limiter.of(3) as waited:
                return waited

        third = thread.start(enter)
        waiting(limiter, 1)
        assert limiter.statistics().granted == 2
        leave.set()
        assert third.result(LONG) == 0.0
    for holder in holders:
        holder.result(LONG)
    assert limiter.statistics().granted == 5


def test_waiting_for_place_and_permit_is_one_wait() -> None:
    """`max_waiting` counts both lines, and no newcomer gets in between."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", max_concurrency=1, max_waiting=1, clock=clock)
    go = threading.Event()
    with LoopThread() as first, LoopThread() as second:

        async def hold() -> None:
            async with limiter:
                await asyncio.get_running_loop().run_in_executor(None, go.wait, LONG)

        async def enter() -> float:
            async with limiter as waited:
                return waited

        held = first.start(hold)
        then = second.start(enter)
        waiting(limiter, 1)
        with pytest.raises(aiorate.LineFull):
            limiter.acquire_blocking()
        clock.advance(0.05)
        go.set()
        held.result(LONG)
        second.turn()
        waiting(limiter, 1)
        with pytest.raises(aiorate.LineFull):
            limiter.acquire_blocking()
        clock.advance(0.05)

        assert then.result(LONG) == 0.1
    assert limiter.statistics().waited_total == 0.1


def test_a_wait_for_a_place_alone_is_counted() -> None:
    """It counts from the request on, even if the permit needs no wait."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=2), scope="process", max_concurrency=1, clock=clock)
    with LoopThread() as thread:
        inside = Inside(thread, limiter)
        late = thread.start(limiter.__aenter__)
        waiting(limiter, 1)
        clock.advance(5)
        inside.leave()

        assert 5.0 == late.result(LONG)
    assert 5.0 == limiter.statistics().waited_max


def test_a_wait_of_no_time_is_not_counted() -> None:
    """The clock stands still between the request for place and permit and both grants."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=2), scope="process", max_concurrency=1, clock=clock)
    with LoopThread() as thread:
        inside = Inside(thread, limiter)
        late = thread.start(limiter.__aenter__)
        waiting(limiter, 1)
        inside.leave()

        assert 0.0 == late.result(LONG)
    assert (0.0, 0.0) == (limiter.statistics().waited_total, limiter.statistics().waited_max)


@pytest.mark.parametrize("waits_for", ["place", "permit"])
def test_a_cancelled_entry_frees_its_place(waits_for: str) -> None:
    """It may be cancelled while it waits for the place, or for the permit."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", max_concurrency=1, clock=clock)
    with LoopThread() as holder, LoopThread() as thread:

        async def enter() -> float:
            async with limiter as waited:
                return waited

        inside = None
        if waits_for == "place":
            inside = Inside(holder, limiter)
        else:
            assert limiter.try_acquire()
        left = thread.start(enter)
        waiting(limiter, 1)
        thread.call(thread.task.cancel)
        with pytest.raises(asyncio.CancelledError):
            left.result(LONG)
        waiting(limiter, 0)
        if inside is not None:
            inside.leave()
        clock.advance(0.1)

        assert thread.start(enter).result(LONG) == 0.0


def test_a_refused_entry_frees_its_place() -> None:
    """A caller that has a place but may not wait for a permit leaves the place."""
    limiter = made(ManualClock(), max_concurrency=1, max_waiting=0)
    for _ in range(2):
        with pytest.raises(aiorate.LineFull):
            asyncio.run(limiter.__aenter__())
    limiter.reset()

    assert 0.0 == asyncio.run(limiter.__aenter__())


def test_closing_fails_a_wait_for_a_place() -> None:
    """Later requests for a place fail too."""
    limiter = aiorate.Limiter("10/s", scope="process", max_concurrency=1, clock=ManualClock())
    with LoopThread() as thread:
        inside = Inside(thread, limiter)
        away = thread.start(limiter.__aenter__)
        waiting(limiter, 1)
        asyncio.run(limiter.aclose())
        with pytest.raises(aiorate.LimiterClosed):
            away.result(LONG)
        with pytest.raises(aiorate.LimiterClosed):
            thread.start(limiter.__aenter__).result(LONG)
        inside.leave()


def test_closing_between_place_and_permit_frees_the_place() -> None:
    """The place is free when the limiter is opened again."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), scope="process", max_concurrency=1, clock=ManualClock())
    with LoopThread() as holder, LoopThread() as thread:
        inside = Inside(holder, limiter)
        late = thread.start(limiter.__aenter__)
        waiting(limiter, 1)
        with thread.stand_still():
            inside.leave()  # the place is the other's, whose loop has not heard of it
            asyncio.run(limiter.aclose())
        with pytest.raises(aiorate.LimiterClosed):
            late.result(LONG)
        limiter.apply("10,1,start")
        limiter.reset()

        assert 0.0 == holder.start(limiter.__aenter__).result(LONG)


def test_a_place_lost_with_a_closed_loop_goes_to_the_next() -> None:
    """It was given to a task while its loop was blocked, which then was closed: that task will never leave it."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=10), scope="process", max_concurrency=1, clock=ManualClock())
    kept: list[Any] = []
    with LoopThread() as holder, LoopThread() as thread:
        inside = Inside(holder, limiter)
        thread.start(limiter.__aenter__)
        kept.append(thread.task)
        waiting(limiter, 1)
        with thread.stand_still() as blocked:
            inside.leave()
            blocked.finally_call = thread.loop.stop
        thread.thread.join(LONG)
        thread.loop.close()

        assert 0.0 == holder.start(limiter.__aenter__).result(LONG)
    assert 2 == limiter.statistics().granted
    forget(kept)
