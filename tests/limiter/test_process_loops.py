"""The event loops of a process-wide limiter, closed, blocked or busy, and waiters that leave: cancelled, interrupted, collected."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import weakref
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import pytest
from helpers.driving import LONG
from helpers.loops import FACTORIES
from helpers.platforms import needs_signals
from helpers.threads import EACH_KIND, LoopThread, Recorded, TrioThread, in_thread, loop_thread, made, waiting

import aiorate
from aiorate import Limiter, TokenBucket, WaitTooLong
from aiorate.testing import ManualClock


def forget(tasks: list[Any]) -> None:
    """Let tasks of a closed loop be collected, without asyncio's log record."""
    for task in tasks:
        task._log_destroy_pending = False  # the flag that asyncio itself uses
    tasks.clear()
    gc.collect()


@pytest.mark.parametrize("kind", FACTORIES)
def test_waiters_of_a_closed_loop_leave_the_line(kind: str) -> None:
    """They can never be woken, so the waiters behind them move up."""
    clock = ManualClock()
    limiter = made(clock)
    kept: list[Any] = []
    with LoopThread(FACTORIES[kind]) as thread:
        for number in range(3):
            thread.start(limiter.acquire)
            kept.append(thread.task)
            waiting(limiter, number + 1)
        survivor = in_thread(limiter.acquire_blocking)
        waiting(limiter, 4)
        thread.stop()
    clock.advance(0.1)  # the instant of the first of them

    assert 0.1 == survivor.result(LONG)
    forget(kept)
    assert (3, 2, 0) == (limiter.statistics().cancelled, limiter.statistics().granted, limiter.statistics().waiting)


@pytest.mark.parametrize("kind", FACTORIES)
def test_a_grant_lost_with_a_closed_loop_goes_to_the_next(kind: str) -> None:
    """Granted while the loop was blocked, which then was closed. The next call of any kind finds that, and else the timekeeper."""

    def refused(limiter: Limiter) -> None:
        with pytest.raises(aiorate.WaitTooLong):
            limiter.acquire_blocking(max_wait=0)

    for look in (methodcaller("try_acquire"), methodcaller("statistics"), methodcaller("delay"), refused, None):
        limiter = made(None if look is None else ManualClock(), rate="1/h")
        kept: list[Any] = []
        with LoopThread(FACTORIES[kind]) as thread:
            thread.start(limiter.acquire)
            kept.append(thread.task)
            survivor = in_thread(limiter.acquire_blocking)
            waiting(limiter, 2)
            with thread.stand_still() as blocked:
                limiter.refund(1)
                blocked.finally_call = thread.loop.stop
            thread.thread.join(LONG)
            thread.loop.close()
            if look is not None:
                look(limiter)
            survivor.result(LONG)

        assert (1, 1) == (limiter.statistics().cancelled, limiter.statistics().granted)
        forget(kept)


def test_many_loops_one_after_the_other_leave_nothing_behind() -> None:
    """They run like the threads of a server, each with an asyncio.run()."""
    limiter = Limiter(TokenBucket("1000/s", burst=1), scope="process")
    loops = []

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await asyncio.gather(*(limiter.acquire() for _ in range(3)))

    for _ in range(5):
        in_thread(lambda: asyncio.run(main())).result(LONG)
    assert 0 == limiter.statistics().waiting
    while any(loop() is not None for loop in loops):  # the timekeeper may be in the middle of its last round
        gc.collect()
        threading.Event().wait(0.001)


@EACH_KIND
def test_a_blocked_loop_delays_only_its_own_waiters(kind: str) -> None:
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


def test_callers_that_never_wait_yield_to_their_loop() -> None:
    """Otherwise a task that is always granted, or retries at once, would starve all others and could not be cancelled.

    A refusal after which the loop turned before anybody was told counted twice.
    """
    empty = made(rate="1/1000s")
    told: list[WaitTooLong] = []
    plenty = Limiter(aiorate.TicksAccumulator("1000000000/s"), scope="process")
    places = Limiter(aiorate.TicksAccumulator("1000000000/s"), scope="process", max_concurrency=1)

    async def enter() -> None:
        async with places:
            pass

    async def until_others_ran(ask: Callable[[], Any], line: bool) -> None:
        first = asyncio.create_task(empty.acquire()) if line else asyncio.create_task(asyncio.sleep(0))
        await asyncio.sleep(0)
        turned: list[bool] = []
        asyncio.get_running_loop().call_soon(turned.append, True)
        while not turned:
            try:
                await ask()
            except WaitTooLong as error:
                told.append(error)
        first.cancel()

    refused = partial(empty.acquire, max_wait=1)
    for ask, line in ((plenty.acquire, False), (enter, False), (refused, False), (refused, True)):
        asyncio.run(until_others_ran(ask, line))
    assert len(told) == empty.statistics().refused


# Waiters that leave.


@EACH_KIND
def test_a_cancelled_waiter_lets_other_threads_move_up(kind: str) -> None:
    """The cancelled request spends nothing: while it waits, or granted while its loop was blocked and cancelled before it hears of that."""
    for granted in (False, True) if kind != "trio" else (False,):
        clock = ManualClock()
        limiter = made(clock)
        with loop_thread(kind) as thread:
            left = thread.start(limiter.acquire)
            next_one = in_thread(limiter.acquire_blocking)
            waiting(limiter, 2)
            if granted and isinstance(thread, LoopThread):
                with thread.stand_still() as blocked:
                    clock.advance(0.1)
                    blocked.finally_call = thread.task.cancel
            else:
                thread.call(thread.scope.cancel if isinstance(thread, TrioThread) else thread.task.cancel)
            with pytest.raises(asyncio.CancelledError):
                left.result(LONG)
            clock.advance(0.1)

            assert 0.1 == next_one.result(LONG)
        assert (1, 2) == (limiter.statistics().cancelled, limiter.statistics().granted)


@needs_signals
def test_ctrl_c_ends_acquire_blocking() -> None:
    clock = ManualClock()
    limiter = made(clock)
    main = threading.main_thread().ident
    assert main is not None
    assert threading.current_thread() is threading.main_thread()

    def interrupt() -> None:
        waiting(limiter, 1)
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        helper = in_thread(interrupt)
        with pytest.raises(KeyboardInterrupt):
            limiter.acquire_blocking()
        helper.result(LONG)
    finally:
        signal.signal(signal.SIGINT, before)
    clock.advance(0.1)

    assert (0, 1) == (limiter.statistics().waiting, limiter.statistics().cancelled)
    assert limiter.try_acquire()


def test_a_finalizer_cannot_ask_during_a_decision() -> None:
    """It gets an error, because it would deadlock or see half of the decision. A refund takes effect right after the decision."""
    bucket = Recorded("10/s")
    limiter = Limiter(bucket, scope="process", clock=ManualClock())
    told: list[str] = []

    def finalizer() -> None:
        for ask in ("try_acquire", "acquire_blocking", "statistics", "delay"):
            with pytest.raises(RuntimeError, match="finalizer"):
                getattr(limiter, ask)()
        limiter.refund(1)
        told.append(repr(limiter))

    bucket.hook = finalizer
    assert limiter.try_acquire()
    assert (1, 1) == (len(told), limiter.statistics().refunded)
    assert [True, False] == [limiter.try_acquire(), limiter.try_acquire()]


def test_leaving_never_blocks_on_another_thread() -> None:
    """A finalizer may run in the middle of another limiter's decision, so a lock could deadlock."""
    bucket = Recorded("10/s")
    limiter = Limiter(bucket, scope="process", clock=ManualClock())
    assert limiter.try_acquire()
    inside, go_on = threading.Event(), threading.Event()
    with LoopThread() as thread:
        waiter = limiter.acquire()
        thread.call(lambda: waiter.send(None))
        bucket.hook = lambda: (inside.set(), go_on.wait(LONG))
        asking = in_thread(lambda: limiter.refund(1))
        assert inside.wait(LONG)
        waiter.close()  # while the other thread decides
        go_on.set()
        asking.result(LONG)
        assert (0, 1) == (limiter.statistics().waiting, limiter.statistics().cancelled)
    assert [True, False] == [limiter.try_acquire(), limiter.try_acquire()]
