"""A signal handler that raises while keys take turns at a shared limit of all threads leaves no request waiting, and no permit twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from helpers.driving import LONG
from helpers.interrupts import Alarm, Interrupt
from helpers.threads import LoopThread, waiting

import aiorate
from aiorate.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


class Case:
    """Three keys and a direct caller, of which five requests wait in another thread's event loop."""

    def __init__(self, thread: LoopThread) -> None:
        self.clock = ManualClock()
        self.shared = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=3, initial=0), scope="process", clock=self.clock)
        self.keyed = aiorate.KeyedLimiter[str](self.limiter, shared=self.shared, weight=len, scope="process")
        self.shared.charge(10)
        self.tasks: list[Future[Any]] = [thread.start(self.keyed[key].acquire) for key in ("a", "a", "bbb", "a", "bbb")]
        waiting(self.keyed["a"], 3)
        waiting(self.keyed["bbb"], 2)
        self.tasks.append(thread.start(self.shared.acquire))
        waiting(self.shared, 3)

    def limiter(self, key: str) -> aiorate.Limiter:
        return aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=9), scope="process", clock=self.clock)


ACTIONS: dict[str, Callable[[Case], object]] = {
    "several grants": lambda case: case.shared.refund(13),
    "try_acquire": lambda case: case.keyed.try_acquire("a"),
    "a new key with max_wait": lambda case: case.keyed["cc"].acquire_blocking(max_wait=0),
    "set_rate": lambda case: case.shared.set_rate("20/s"),
    "a pause of a key": lambda case: (case.keyed["a"].pause(0.01), case.keyed["a"].resume()),
}


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, Alarm])
@pytest.mark.parametrize("action", ACTIONS)
def test_turns_go_on_after_an_interrupt(action: str, error: type[BaseException]) -> None:
    """Each instant of each action is tried in turn."""
    instant, interrupted = 0, True
    with LoopThread() as thread:
        while interrupted:
            instant += 1
            case, interrupt = Case(thread), Interrupt(instant, error)
            interrupted = interrupt.run(lambda case=case: ACTIONS[action](case))

            case.shared.try_acquire()
            for _ in range(30):
                case.clock.advance(0.1)
            outcomes = [task.result(LONG) for task in case.tasks]

            assert all(isinstance(waited, float) for waited in outcomes), interrupt.where
            for limiter in (case.shared, case.keyed["a"], case.keyed["bbb"]):
                dispatcher = limiter._dispatcher
                assert (len(dispatcher.line), dispatcher.waiters.resuming) == (0, 0), interrupt.where
            case.clock.advance(1)
            assert case.shared.try_acquire(3), interrupt.where
            assert not case.shared.try_acquire(), interrupt.where
    assert instant > 20
