"""The event loops of a process-wide limiter: closed, blocked or busy ones, and how often the limiter calls them."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack, aclosing, suppress
from operator import methodcaller
from time import monotonic_ns
from typing import Any

import pytest
import trio
from helpers.driving import LONG
from helpers.loops import FACTORIES
from helpers.process import EACH_KIND, forget, made
from helpers.threads import LoopThread, in_thread, loop_thread, waiting

import aiorate
from aiorate.testing import ManualClock

# Closed loops.


@pytest.mark.parametrize("kind", FACTORIES)
def test_waiters_of_a_closed_loop_leave_the_line(kind: str) -> None:
    """They can never be woken, so the waiters behind them move up."""
    clock = ManualClock()
    limiter = made(clock)
    kept: list[Any] = []
    with loop_thread(kind) as thread:
        assert isinstance(thread, LoopThread)
        for number in range(3):
            thread.start(limiter.acquire)
            kept.append(thread.task)
            waiting(limiter, number + 1)
        survivor = in_thread(limiter.acquire_blocking)
        waiting(limiter, 4)
        thread.stop()
    clock.advance(0.1)  # the instant of the first of them

    assert survivor.result(LONG) == 0.1
    assert (3, 2, 0) == (limiter.statistics().cancelled, limiter.statistics().granted, limiter.statistics().waiting)
    forget(kept)
    assert (3, 2, 0) == (limiter.statistics().cancelled, limiter.statistics().granted, limiter.statistics().waiting)


def _refused(limiter: aiorate.Limiter) -> None:
    with pytest.raises(aiorate.WaitTooLong):
        limiter.acquire_blocking(max_wait=0)


@pytest.mark.parametrize("look", [methodcaller("try_acquire"), methodcaller("statistics"), methodcaller("delay"), _refused])
@pytest.mark.parametrize("kind", FACTORIES)
def test_a_grant_lost_with_a_closed_loop_goes_to_the_next(kind: str, look: Callable[[aiorate.Limiter], object]) -> None:
    """Granted while the loop was blocked, which then was closed. The next call of any kind finds that."""
    clock = ManualClock()
    limiter = made(clock)
    kept: list[Any] = []
    with loop_thread(kind) as thread:
        assert isinstance(thread, LoopThread)
        thread.start(limiter.acquire)
        kept.append(thread.task)
        survivor = in_thread(limiter.acquire_blocking)
        waiting(limiter, 2)
        with thread.stand_still() as blocked:
            clock.advance(0.1)
            assert limiter.statistics().granted == 2
            blocked.finally_call = thread.loop.stop
        thread.thread.join(LONG)
        thread.loop.close()
        look(limiter)

    assert survivor.result(LONG) == 0.1
    assert (1, 2) == (limiter.statistics().cancelled, limiter.statistics().granted)
    forget(kept)


def test_the_timekeeper_finds_a_closed_loop() -> None:
    """Waiters behind those of a closed loop are served without another call."""
    limiter = made(rate="1/h")
    kept: list[Any] = []
    with LoopThread() as thread:
        thread.start(limiter.acquire)
        kept.append(thread.task)
        survivor = in_thread(limiter.acquire_blocking)
        waiting(limiter, 2)
        with thread.stand_still() as blocked:
            limiter.refund(1)
            blocked.finally_call = thread.loop.stop
        thread.thread.join(LONG)
        thread.loop.close()

        survivor.result(LONG)
    forget(kept)


def test_closed_loops_are_found_among_many() -> None:
    """A few loops are checked at a time, and closed ones are found among forty."""
    limiter = made(rate="1/h")
    kept: list[Any] = []
    with ExitStack() as stack:
        threads = [stack.enter_context(LoopThread()) for _ in range(40)]
        for number, thread in enumerate(threads):
            thread.start(limiter.acquire)
            kept.append(thread.task)
            waiting(limiter, number + 1)
        for thread in threads:
            thread.stop()
        waiting(limiter, 0)
    forget(kept)


def test_many_loops_one_after_the_other_leave_nothing_behind() -> None:
    """They run like the threads of a server, each with an asyncio.run()."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=1), scope="process")
    loops = []

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await asyncio.gather(*(limiter.acquire() for _ in range(3)))

    for _ in range(5):
        thread = threading.Thread(target=lambda: asyncio.run(main()))
        thread.start()
        thread.join()
    assert 0 == limiter.statistics().waiting

    while any(loop() is not None for loop in loops):  # the timekeeper may be in the middle of its last round
        gc.collect()
        threading.Event().wait(0.001)


# Blocked loops.


@EACH_KIND
def test_a_blocked_loop_delays_only_its_own_waiters(kind: str) -> None:
    """They keep their places and their instants; other loops and threads are served meanwhile."""
    clock = ManualClock()
    limiter = made(clock)
    with LoopThread() as still, loop_thread(kind) as other:
        first = still.start(limiter.acquire)
        second = other.start(limiter.acquire)
        third = still.start(limiter.acquire)
        fourth = in_thread(limiter.acquire_blocking)
        waiting(limiter, 4)
        with still.stand_still():
            for _ in range(4):
                clock.advance(0.1)
            assert (0.2, 0.4) == (round(second.result(LONG), 9), round(fourth.result(LONG), 9))
            assert not first.done()
            assert not third.done()

        assert (0.1, 0.3) == (round(first.result(LONG), 9), round(third.result(LONG), 9))


def test_unheard_grants_of_a_blocked_loop_delay_nobody() -> None:
    """The limiter of one loop wakes at most a thousand tasks before the loop runs on; here others would wait for the blocked one."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/day", burst=3000, initial=0), scope="process")

    async def many() -> None:
        await asyncio.gather(*(limiter.acquire() for _ in range(1500)))

    with LoopThread() as still:
        asked = still.start(many)
        waiting(limiter, 1500)
        behind = in_thread(limiter.acquire_blocking)
        waiting(limiter, 1501)
        with still.stand_still():
            limiter.refund(2000)
            behind.result(LONG)
            assert not asked.done()
        asked.result(LONG)


# Calls to a loop, and callers that yield to theirs.


class Counting(asyncio.SelectorEventLoop):
    """A loop that counts calls from other threads."""

    calls = 0

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return super().call_soon_threadsafe(*args, **options)


def test_a_loop_is_called_once_for_many_grants() -> None:
    """It is not called for grants to another loop, since a call wakes its thread."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=100, initial=0), scope="process", clock=clock)

    async def many() -> int:
        return len(await asyncio.gather(*(limiter.acquire() for _ in range(50))))

    with LoopThread(Counting) as first, LoopThread(Counting) as second:
        one = first.start(many)
        waiting(limiter, 50)
        two = second.start(many)
        waiting(limiter, 100)
        assert isinstance(first.loop, Counting)
        assert isinstance(second.loop, Counting)
        before = first.loop.calls, second.loop.calls
        limiter.refund(50)
        assert one.result(LONG) == 50
        assert (before[0] + 1, before[1]) == (first.loop.calls, second.loop.calls)
        limiter.refund(50)
        assert two.result(LONG) == 50
        assert (before[0] + 1, before[1] + 1) == (first.loop.calls, second.loop.calls)


@EACH_KIND
def test_callers_that_are_always_granted_yield_to_their_loop(kind: str) -> None:
    """Else a task that always finds a permit would starve all others: here it ends once another callback has run."""
    limiter = aiorate.Limiter(aiorate.TicksAccumulator("1000000000/s"), scope="process")

    async def greedy() -> bool:
        turned: list[bool] = []
        if kind == "trio":
            trio.lowlevel.current_trio_token().run_sync_soon(turned.append, True)
        else:
            asyncio.get_running_loop().call_soon(turned.append, True)
        while not turned:
            await limiter.acquire()
        turned.clear()
        if kind == "trio":
            trio.lowlevel.current_trio_token().run_sync_soon(turned.append, True)
        else:
            asyncio.get_running_loop().call_soon(turned.append, True)
        async with aclosing(limiter.slots()) as slots:
            async for _ in slots:
                if turned:
                    return True
        raise AssertionError

    with loop_thread(kind) as thread:
        assert thread.start(greedy).result(LONG)


def test_in_a_busy_loop_callers_join_the_line_before_they_yield() -> None:
    """Else each of thousands of tasks would yield again and again, and requests of other threads would pass them."""
    limiter = made(rate="1/1000s")

    async def ask() -> int:
        first = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        busy_from = monotonic_ns()
        while monotonic_ns() < busy_from + 20_000_000:
            with suppress(aiorate.WaitTooLong):
                limiter.acquire(max_wait=0).send(None)  # refused, and the time since the loop ran is measured
                break  # it had to yield
        request = limiter.acquire()
        request.send(None)
        seen = limiter.statistics().waiting
        request.close()
        first.cancel()
        return seen

    assert 2 == asyncio.run(ask())


def test_callers_that_are_always_refused_yield_to_their_loop() -> None:
    """Else a task that retries at once could not be cancelled."""
    limiter = made(rate="1/1000s")

    async def insist() -> bool:
        first = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        turned: list[bool] = []
        asyncio.get_running_loop().call_soon(turned.append, True)
        while not turned:
            with suppress(aiorate.WaitTooLong):
                await limiter.acquire(max_wait=1)
        first.cancel()
        return True

    assert asyncio.run(insist())


def test_callers_refused_by_an_empty_line_yield_to_their_loop() -> None:
    """Else a task that retries until a permit is there would keep all others from running."""
    limiter = made(rate="1/1000s")

    async def insist() -> bool:
        turned: list[bool] = []
        asyncio.get_running_loop().call_soon(turned.append, True)
        while not turned:
            with suppress(aiorate.WaitTooLong):
                await limiter.acquire(max_wait=1)
        return True

    assert asyncio.run(insist())


def test_callers_that_always_find_a_place_yield_to_their_loop() -> None:
    """They do so like callers that always find a permit."""
    limiter = aiorate.Limiter(aiorate.TicksAccumulator("1000000000/s"), scope="process", max_concurrency=1)

    async def greedy() -> bool:
        turned: list[bool] = []
        asyncio.get_running_loop().call_soon(turned.append, True)
        while not turned:
            async with limiter:
                pass
        return True

    assert asyncio.run(greedy())
