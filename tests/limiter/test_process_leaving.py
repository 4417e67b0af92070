"""Waiters that leave the line of a process-wide limiter: cancelled, interrupted, or collected in the middle of a decision."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from helpers.driving import LONG
from helpers.loops import FACTORIES
from helpers.platforms import needs_signals
from helpers.process import EACH_KIND, made
from helpers.threads import LoopThread, Recorded, TrioThread, in_thread, loop_thread, waiting

import aiorate
from aiorate.testing import ManualClock

# Cancelled.


@EACH_KIND
def test_a_cancelled_waiter_lets_other_threads_move_up(kind: str) -> None:
    """The cancelled request spends nothing."""
    clock = ManualClock()
    limiter = made(clock)
    with loop_thread(kind) as thread:
        left = thread.start(limiter.acquire)
        next_one = in_thread(limiter.acquire_blocking)
        waiting(limiter, 2)
        thread.call(thread.scope.cancel if isinstance(thread, TrioThread) else thread.task.cancel)
        with pytest.raises(asyncio.CancelledError):
            left.result(LONG)
        clock.advance(0.1)

        assert next_one.result(LONG) == 0.1
    assert (1, 2) == (limiter.statistics().cancelled, limiter.statistics().granted)


@pytest.mark.parametrize("kind", FACTORIES)
def test_the_grant_of_a_cancelled_task_goes_to_the_next(kind: str) -> None:
    """Granted while its loop was blocked, the task is cancelled before it hears of the grant."""
    clock = ManualClock()
    limiter = made(clock)
    with loop_thread(kind) as thread:
        assert isinstance(thread, LoopThread)
        left = thread.start(limiter.acquire)
        next_one = in_thread(limiter.acquire_blocking)
        waiting(limiter, 2)
        with thread.stand_still() as blocked:
            clock.advance(0.1)
            assert limiter.statistics().granted == 2
            blocked.finally_call = thread.task.cancel
        with pytest.raises(asyncio.CancelledError):
            left.result(LONG)

        assert next_one.result(LONG) == 0.1
    assert (1, 2) == (limiter.statistics().cancelled, limiter.statistics().granted)


def test_a_task_being_cancelled_does_not_count_as_waiting() -> None:
    """Its place in line is free at once, even if its loop has not run since."""
    limiter = made(ManualClock(), max_waiting=1)
    with LoopThread() as thread:
        thread.start(limiter.acquire)
        with thread.stand_still():
            thread.task.cancel()
            assert limiter.statistics().waiting == 0
            taken = in_thread(limiter.acquire_blocking)
            waiting(limiter, 1)
            limiter.refund(1)
        with suppress(aiorate.LimiterClosed):
            taken.result(LONG)


# Interrupted.


@needs_signals
def test_ctrl_c_ends_acquire_blocking() -> None:
    """The main thread is interrupted while it waits, leaves the line, and no permit is lost."""
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


def test_an_interrupt_while_joining_leaves_nobody_in_line() -> None:
    """Ctrl-C between joining the line and setting the timer: the interrupted request is gone, and the next is served in time."""

    class Interrupted(ManualClock):
        interrupts = False

        def call_at(self, instant: int, callback: Callable[[], None]) -> Any:
            if self.interrupts:
                self.interrupts = False
                raise KeyboardInterrupt
            return super().call_at(instant, callback)

    clock = Interrupted()
    limiter = made(clock)
    clock.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        limiter.acquire_blocking()
    assert (0, 1) == (limiter.statistics().waiting, limiter.statistics().cancelled)

    next_one = in_thread(limiter.acquire_blocking)
    waiting(limiter, 1)
    clock.advance(0.1)
    assert 0.1 == next_one.result(LONG)


def test_an_unused_ticket_leaves_no_trace() -> None:
    """Interrupted before it joins the line, a request spends nothing and does not count as cancelled."""
    limiter = made(ManualClock())
    dispatcher = limiter._dispatcher
    assert dispatcher.loop is not None
    driver = dispatcher.loop.make_driver(dispatcher)

    assert dispatcher.run(driver.release, dispatcher.run(driver.ticket, 1))

    assert (0, 0) == (limiter.statistics().waiting, limiter.statistics().cancelled)


def test_an_interrupt_before_joining_is_not_counted() -> None:
    """It was not in line yet, so it does not count as cancelled."""

    class Interrupted(ManualClock):
        interrupts = 0

        def now(self) -> int:
            if self.interrupts:
                self.interrupts -= 1
                if not self.interrupts:
                    raise KeyboardInterrupt
            return super().now()

    for reading in range(1, 4):
        clock = Interrupted()
        limiter = made(clock)
        clock.interrupts = reading
        with suppress(KeyboardInterrupt, aiorate.WaitTooLong):
            limiter.acquire_blocking(max_wait=0)
        clock.interrupts = 0

        assert (0, 0) == (limiter.statistics().waiting, limiter.statistics().cancelled)


# In the middle of a decision.


def test_a_coroutine_collected_during_a_decision_leaves_after_it() -> None:
    """It is collected in the deciding thread, and neither deadlocks nor sees half of the decision."""
    clock = ManualClock()
    bucket = Recorded("10/s")
    limiter = aiorate.Limiter(bucket, scope="process", clock=clock)
    with LoopThread() as thread:

        def abandon() -> None:
            waiters = [limiter.acquire() for _ in range(3)]
            for each in waiters:
                each.send(None)
            bucket.hook = waiters[1].close  # the second to be granted
            clock.advance(0.2)
            waiters[2].close()
            waiters[0].close()

        assert limiter.try_acquire()
        thread.call(abandon)

    assert (0, 3) == (limiter.statistics().waiting, limiter.statistics().cancelled)
    clock.advance(1)
    assert limiter.try_acquire()
    assert not limiter.try_acquire()


@pytest.mark.parametrize("ask", ["try_acquire", "acquire_blocking", "statistics", "delay"])
def test_a_finalizer_cannot_ask_during_a_decision(ask: str) -> None:
    """It gets an error, because it would deadlock or see half of the decision."""
    bucket = Recorded("10/s")
    limiter = aiorate.Limiter(bucket, scope="process", clock=ManualClock())
    told: list[str] = []

    def finalizer() -> None:
        try:
            getattr(limiter, ask)()
        except RuntimeError as error:
            told.append(str(error))

    bucket.hook = finalizer

    assert limiter.try_acquire()
    assert len(told) == 1
    assert "finalizer or signal handler" in told[0]
    assert not limiter.try_acquire()


def test_a_finalizer_may_refund_during_a_decision() -> None:
    """The refund and a pause take effect right after the decision; repr() works at once."""
    bucket = Recorded("10/s", burst=2)
    limiter = aiorate.Limiter(bucket, scope="process", clock=ManualClock())
    seen: list[str] = []

    def finalizer() -> None:
        limiter.refund(1)
        limiter.pause(0)
        seen.append(repr(limiter))

    assert limiter.try_acquire(2)
    bucket.hook = finalizer

    assert not limiter.try_acquire()
    assert limiter.statistics().refunded == 1
    assert limiter.try_acquire()
    assert len(seen) == 1


def test_leaving_never_blocks_on_another_thread() -> None:
    """A finalizer may run in the middle of another limiter's decision, so a lock could deadlock."""
    clock = ManualClock()
    bucket = Recorded("10/s")
    limiter = aiorate.Limiter(bucket, scope="process", clock=clock)
    assert limiter.try_acquire()
    inside, go_on = threading.Event(), threading.Event()

    def decide_slowly() -> None:
        inside.set()
        assert go_on.wait(LONG)

    with LoopThread() as thread:
        waiter = limiter.acquire()
        thread.call(lambda: waiter.send(None))
        clock.advance(0.05)
        bucket.hook = decide_slowly
        asking = in_thread(lambda: limiter.set_rate("20/s"))
        assert inside.wait(LONG)
        waiter.close()  # while the other thread decides
        go_on.set()
        asking.result(LONG)

        assert (0, 1) == (limiter.statistics().waiting, limiter.statistics().cancelled)
