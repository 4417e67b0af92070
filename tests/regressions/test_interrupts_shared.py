"""A signal handler that raises in the middle of a decision about several limits leaves nobody waiting, and loses nothing for good.

As in test_interrupts.py, each instant is tried in turn: of a budget, of budgets that share one, of keys that share a limit, and of places.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
from helpers.interrupts import Alarm, Interrupt
from helpers.threads import LoopThread

import aiorate
from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket
from aiorate.testing import ManualClock
from aiorate.waiting.dispatcher import Dispatcher


class Case:
    """Limits with a line of two tasks in another thread's loop, or with everything ready."""

    def __init__(self, thread: LoopThread, busy: bool) -> None:
        self.clock = ManualClock()
        self.tasks: list[Future[Any]] = []
        self.make()
        if busy:
            self.take_all()
            self.tasks = [thread.start(wait) for wait in self.waits()]
            thread.turn()

    def make(self) -> None:
        raise NotImplementedError

    def take_all(self) -> None:
        raise NotImplementedError

    def waits(self) -> list[Callable[[], Coroutine[Any, Any, Any]]]:
        raise NotImplementedError

    def dispatchers(self) -> list[Dispatcher]:
        raise NotImplementedError

    def ready(self) -> list[int]:
        """What lies ready when nobody waits."""
        raise NotImplementedError

    def block(self) -> Any:
        """What synchronous code enters."""
        raise NotImplementedError

    def settle(self) -> None:
        """Let time pass, with another call first."""
        self.ready()
        for _ in range(12):
            self.clock.advance(0.1)


class OfBudget(Case):
    def make(self) -> None:
        self.budget = Budget(requests=TokenBucket("10/s", 10), tokens=TokenBucket("100/s", 100), scope="process", clock=self.clock)

    def take_all(self) -> None:
        with self.budget.reserve(tokens=100):
            pass

    def waits(self) -> list[Callable[[], Coroutine[Any, Any, Any]]]:
        async def wait() -> float:
            async with self.budget.reserve(tokens=20) as lease:
                return lease.waited

        return [wait, wait]

    def dispatchers(self) -> list[Dispatcher]:
        return [self.budget._dispatcher]

    def ready(self) -> list[int]:
        return [self.budget.available(name) for name in self.budget.dimensions]

    def block(self) -> Any:
        return self.budget.reserve(tokens=30)


class OfSharedBudget(OfBudget):
    def make(self) -> None:
        self.team = Budget(tokens=TokenBucket("100/s", 100), scope="process", clock=self.clock)
        own = {"requests": TokenBucket("10/s", 10), "tokens": TokenBucket("200/s", 200)}
        self.budget = Budget(**own, shared=self.team, scope="process", clock=self.clock)  # type: ignore[arg-type]

    def dispatchers(self) -> list[Dispatcher]:
        return [self.budget._dispatcher, self.team._dispatcher]

    def ready(self) -> list[int]:
        return [*super().ready(), self.team.available("tokens")]


class OfKeys(Case):
    def make(self) -> None:
        self.shared = Limiter(TokenBucket("10/s", 3), scope="process", clock=self.clock)
        self.keyed = KeyedLimiter[str](
            lambda key: Limiter(TokenBucket("10/s", 2), scope="process", clock=self.clock), shared=self.shared, scope="process"
        )
        self.limiters = [self.keyed["a"], self.keyed["b"]]

    def take_all(self) -> None:
        while any(limiter.try_acquire() for limiter in self.limiters):
            pass

    def waits(self) -> list[Callable[[], Coroutine[Any, Any, Any]]]:
        return [limiter.acquire for limiter in self.limiters]

    def dispatchers(self) -> list[Dispatcher]:
        return [limiter._dispatcher for limiter in (*self.limiters, self.shared)]

    def ready(self) -> list[int]:
        return [limiter.statistics().available for limiter in (*self.limiters, self.shared)]

    def block(self) -> Any:
        return self.keyed("a")


class OfPlaces(Case):
    def make(self) -> None:
        self.limiter = Limiter(TokenBucket("10/s", 3), scope="process", clock=self.clock, max_concurrency=2)

    def take_all(self) -> None:
        while self.limiter.try_acquire():
            pass

    def waits(self) -> list[Callable[[], Coroutine[Any, Any, Any]]]:
        async def wait() -> float:
            async with self.limiter as waited:
                return waited

        return [wait, wait]

    def dispatchers(self) -> list[Dispatcher]:
        return [self.limiter._dispatcher]

    def ready(self) -> list[int]:
        places = int(repr(self.limiter).partition(" of 2 places")[0].rpartition(" ")[2])
        return [self.limiter.statistics().available, 2 - places]

    def block(self) -> Any:
        return self.limiter


def _outcome(task: Future[Any]) -> object:
    try:
        return task.result(3)
    except BaseException as error:
        return error


def used(case: Any) -> None:
    with case.block() as lease:
        lease.settle(tokens=case.budget.available("tokens") * 0 + 10)


def plain(case: Case) -> None:
    with case.block():
        pass


ACTIONS: dict[str, tuple[type[Case], Callable[[Any], object]]] = {
    "budget: block": (OfBudget, plain),
    "budget: settle": (OfBudget, used),
    "budget: refused": (OfBudget, lambda case: case.budget.reserve(tokens=90, max_wait=0).__enter__()),
    "budget: pause": (OfBudget, lambda case: (case.budget.pause(0.01), case.budget.resume())),
    "shared budget: block": (OfSharedBudget, plain),
    "shared budget: settle": (OfSharedBudget, used),
    "keys: block": (OfKeys, plain),
    "keys: refund": (OfKeys, lambda case: case.keyed["a"].refund(1)),
    "keys: refund for two": (OfKeys, lambda case: case.shared.refund(2)),
    "keys: charge": (OfKeys, lambda case: case.keyed["a"].charge(1)),
    "keys: look up": (OfKeys, lambda case: [case.keyed[key] for key in ("a", "c", "a", "c", "b")]),
    "keys: evict": (OfKeys, lambda case: case.keyed.evict()),
    "places: block": (OfPlaces, plain),
    "places: refund": (OfPlaces, lambda case: case.limiter.refund(1)),
}


# An Alarm that a deferred call gets is logged, and the call goes on: with all places taken, it would wait for one.
INTERRUPTED = [
    pytest.param(action, busy, error, marks=[] if error is KeyboardInterrupt else [pytest.mark.slow])
    for action in ACTIONS
    for busy in (False, True)
    for error in (KeyboardInterrupt, Alarm)
    if not (busy and error is Alarm and action == "places: block")
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a finalizer that it interrupts
@pytest.mark.parametrize(("action", "busy", "error"), INTERRUPTED)
def test_nothing_is_lost_by_an_interrupt(action: str, busy: bool, error: type[BaseException]) -> None:
    """At every instant of each action: all that wait are served, and in the end everything lies ready again."""
    make, act = ACTIONS[action]
    instant, interrupted = 0, True
    with LoopThread() as thread:
        while interrupted:
            instant += 1
            case, interrupt = make(thread, busy), Interrupt(instant, error)
            full = [10, 100] if make is OfBudget else [10, 100, 100] if make is OfSharedBudget else [2, 2, 3] if make is OfKeys else [3, 2]
            interrupted = interrupt.run(lambda case=case: act(case))
            if interrupt.where.endswith(("call in __exit__", "call in _leave_blocking")):
                continue  # before the first instruction that could leave the place

            case.settle()
            for task in case.tasks:
                assert isinstance(_outcome(task), float), interrupt.where
            thread.turn()
            case.clock.advance(100)
            for dispatcher in case.dispatchers():
                assert (0, 0) == (len(dispatcher.line), dispatcher.waiters.resuming), interrupt.where
            assert full == case.ready(), interrupt.where
    assert instant > 10


def test_every_task_of_a_closed_loop_is_forgotten_by_all_limits() -> None:
    """A loop that is closed with requests of a key, which stand in the shared line too."""
    clock = ManualClock()
    shared = Limiter(TokenBucket("10/s", 1), scope="process", clock=clock)
    keyed = KeyedLimiter[str](lambda key: Limiter(TokenBucket("10/s", 5), scope="process", clock=clock), shared=shared, scope="process")
    assert keyed.try_acquire("a")
    kept: list[Any] = []
    with LoopThread() as thread:
        for key in "ab":
            thread.start(lambda key=key: keyed.acquire(key))  # type: ignore[misc]
            kept.append(thread.task)
        thread.stop()
    clock.advance(0.1)

    assert keyed.try_acquire("c")
    assert [0, 0, 0] == [limiter.statistics().waiting for limiter in (shared, keyed["a"], keyed["b"])]
    for task in kept:
        task._log_destroy_pending = False  # the flag that asyncio itself uses
    with suppress(asyncio.CancelledError, aiorate.LimiterClosed):
        kept.clear()
