"""Kernel timers at the end of their loop: no descriptor and no loop outlives it for good."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from helpers.driving import all_closed, descriptors, made_to_wait
from helpers.loops import FACTORIES
from helpers.platforms import needs_kernel_timers

import aiorate
from aiorate.waiting.asyncio import timerfd
from aiorate.waiting.asyncio.timerfd import KernelTimers

pytestmark = needs_kernel_timers
LOOPS = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)


def paced(rate: str = "500/s") -> aiorate.Limiter:
    """Make a limiter with a kernel timer."""
    return aiorate.Limiter(aiorate.TokenBucket(rate, burst=1), precise=True)


def run(limiter: aiorate.Limiter, factory: Callable[[], Any]) -> weakref.ref[asyncio.AbstractEventLoop]:
    """Run a loop in which a task has to wait, and return a weak reference to that loop."""
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(made_to_wait(limiter))
        return weakref.ref(runner.get_loop())


@LOOPS
def test_a_run_that_ends_idle_leaves_nothing(factory: Callable[[], Any]) -> None:
    """The limiter is global, and stays."""
    limiter = paced()

    async def wait() -> None:
        await made_to_wait(limiter)
        await all_closed()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(wait())

    assert descriptors() == 0


@LOOPS
def test_runs_that_end_with_an_open_descriptor_leave_nothing(factory: Callable[[], Any]) -> None:
    """A script that calls asyncio.run() for every job must not run out of descriptors, nor keep its old loops."""
    loops = [run(paced(), factory) for _ in range(5)]

    assert descriptors() == 0
    assert [loop() for loop in loops] == [None] * 5


@LOOPS
def test_limiter_used_in_several_runs_keeps_one_descriptor(factory: Callable[[], Any]) -> None:
    """Each run needs another descriptor, and closes that of the run before."""
    limiter = paced()

    loops = [run(limiter, factory) for _ in range(5)]

    assert descriptors() <= 1
    gc.collect()
    assert [loop() for loop in loops[:4]] == [None] * 4
    del limiter
    assert descriptors() == 0


@LOOPS
def test_loop_closed_with_waiters_is_dropped_by_the_next(factory: Callable[[], Any]) -> None:
    """Closing a loop without cancelling its tasks leaves timers that hold it; the next loop that needs a timer cleans up."""
    limiter = paced()
    limiter.set_rate("1/min")
    loop = factory()
    waiting: list[Any] = []

    async def leave_some() -> None:
        assert limiter.try_acquire()
        coroutine = limiter.acquire()
        coroutine.send(None)  # in line, without a task, which would warn
        waiting.append(coroutine)

    loop.run_until_complete(leave_some())
    loop.close()
    assert descriptors() == 1

    run(paced(), factory)

    assert descriptors() == 0
    waiting[0].close()


@LOOPS
def test_timer_of_a_closed_loop_can_be_cancelled(factory: Callable[[], Any]) -> None:
    """Its holder may come later, such as a limiter that moves to its next loop."""
    loop = factory()
    timers = KernelTimers.of(loop)
    assert timers is not None
    handles = [timers.call_at(2**70, paced().resume) for _ in range(2)]
    loop.close()

    for handle in handles:
        handle.cancel()

    rest = weakref.ref(timers)
    del timers, handles, handle
    gc.collect()
    assert rest() is not None  # as long as the loop exists
    del loop
    gc.collect()
    assert (rest(), descriptors()) == (None, 0)


def test_loops_in_several_threads_have_separate_timers() -> None:
    """A loop's timers belong to its thread."""
    import threading

    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                run(paced(), asyncio.SelectorEventLoop)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert descriptors() == 0


def test_descriptor_stays_open_for_the_next_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening one for each wait would cost as much as the wait is to save."""

    class Patient(asyncio.SelectorEventLoop):
        """Timers take 1000 times as long, for a machine that may be slow."""

        def call_later(self, delay: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
            return super().call_later(1000 * delay, *arguments, **options)

    async def wait_again() -> None:
        limiter = paced("1000/s")
        await made_to_wait(limiter)
        monkeypatch.setattr(timerfd, "create", None)
        await made_to_wait(limiter)
        assert descriptors() == 1

    with asyncio.Runner(loop_factory=Patient) as runner:
        runner.run(wait_again())
