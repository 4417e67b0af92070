"""A signal handler that raises in the middle of a decision leaves nobody waiting.

CPython runs such a handler, as that of Ctrl-C, after a call or at the start of a function, wherever the main thread is. So a profile
function raises at every such instant of a decision in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
from helpers.driving import LONG
from helpers.interrupts import Alarm, Interrupt
from helpers.threads import LoopThread, waiting

import aiorate
from aiorate.testing import ManualClock

STRATEGIES: dict[str, Callable[[], aiorate.Scheduler]] = {
    "TokenBucket": lambda: aiorate.TokenBucket("10/s", burst=2),
    "TokenPool": lambda: aiorate.TokenPool("10/s"),
    "BurstCompensation": lambda: aiorate.BurstCompensation("10/s"),
    "SlidingWindow": lambda: aiorate.SlidingWindow("2/200ms"),
    "SmoothBursty": lambda: aiorate.SmoothBursty("10/s", max_stored=2),
}


class Case:
    """A limiter for all threads without a permit left, and two tasks of another thread's event loop in line."""

    def __init__(self, thread: LoopThread, strategy: str, **options: Any) -> None:
        self.clock = ManualClock()
        self.limiter = aiorate.Limiter(STRATEGIES[strategy](), scope="process", clock=self.clock, **options)
        self.take_all()
        self.clock.advance(1)
        self.at_most = self.take_all()
        self.tasks: list[Future[Any]] = [thread.start(self.limiter.acquire) for _ in range(2)]
        waiting(self.limiter, 2)

    def take_all(self) -> int:
        """Take every permit available at once, and count them."""
        taken = 0
        while self.limiter.try_acquire():
            taken += 1
        return taken

    def settle(self) -> None:
        """Let time pass, with another call first."""
        with suppress(aiorate.LimiterClosed):
            self.limiter.try_acquire()
        for _ in range(6):
            self.clock.advance(0.1)

    def outcomes(self) -> Iterator[object]:
        for task in self.tasks:
            try:
                yield task.result(LONG)
            except aiorate.LimiterClosed as error:
                yield error


ACTIONS: dict[str, Callable[[Case], object]] = {
    "refund": lambda case: case.limiter.refund(1),
    "refund for two": lambda case: case.limiter.refund(2),
    "charge": lambda case: case.limiter.charge(1),
    "set_rate": lambda case: case.limiter.set_rate("20/s"),
    "pause, resume": lambda case: (case.limiter.pause(0.01), case.limiter.resume()),
    "try_acquire": lambda case: case.limiter.try_acquire(),
    "acquire_blocking": lambda case: case.limiter.acquire_blocking(),
    "max_wait": lambda case: case.limiter.acquire_blocking(max_wait=100),
    "refused": lambda case: case.limiter.acquire_blocking(max_wait=0),
    "statistics": lambda case: case.limiter.statistics(),
    "reset": lambda case: case.limiter.reset(),
}


@pytest.mark.parametrize("error", [KeyboardInterrupt, Alarm])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("strategy", ["TokenBucket", *(pytest.param(name, marks=pytest.mark.slow) for name in list(STRATEGIES)[1:])])
def test_nobody_waits_for_ever_after_an_interrupt(strategy: str, action: str, error: type[BaseException]) -> None:
    """Of 5500 interrupts in the main thread, 3 left tasks of other threads waiting. Here each instant is tried in turn.

    No other thread gets the error: it belongs to the main thread, whatever its class.
    """
    instant, interrupted = 0, True
    with LoopThread() as thread:
        while interrupted:
            instant += 1
            case, interrupt = Case(thread, strategy), Interrupt(instant, error)
            interrupted = interrupt.run(lambda case=case: ACTIONS[action](case))

            case.settle()
            outcomes = list(case.outcomes())
            dispatcher = case.limiter._dispatcher

            assert all(isinstance(waited, float) for waited in outcomes), interrupt.where
            assert (0, 0, 0) == (len(dispatcher.line), dispatcher.waiters.resuming, case.limiter.statistics().waiting), interrupt.where
            case.limiter.set_rate("10/s")
            case.clock.advance(1)
            assert case.at_most == case.take_all(), interrupt.where
    assert instant > 20
