"""Budgets and keys that threads, event loops and synchronous code use at once, cancelled and interrupted, in real time.

Slow: ten thousand cancellations and interrupts of each. What must hold does so on any machine: the bound, and that nothing is lost.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random
from time import monotonic_ns, thread_time
from types import FrameType
from typing import Any

import pytest
from helpers.driving import LONG, SECOND
from helpers.interrupts import ROOT, Alarm
from helpers.loops import FACTORIES
from helpers.platforms import needs_signals
from helpers.server import most_in_any_window
from helpers.threads import Recorded, in_thread

import aiorate
from aiorate import Budget, KeyedLimiter, Limiter

pytestmark = [
    pytest.mark.slow,
    needs_signals,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of finalizers that a signal interrupts
]

CANCELLED = 10_000
KINDS = [*FACTORIES, "trio"]


class Users:
    """Eight threads and two event loops that use ``block``, and cancel what they can."""

    def __init__(self, block: Callable[[Random], Any]) -> None:
        self.block = block
        self.cancelled = 0
        self.over = False
        self._lock = threading.Lock()

    def count(self) -> None:
        with self._lock:
            self.cancelled += 1
            self.over = self.cancelled >= CANCELLED

    def thread(self, seed: int) -> None:
        random = Random(seed)
        while not self.over:
            with suppress(aiorate.WaitTooLong), self.block(random):
                pass

    async def task(self, seed: int) -> None:
        random = Random(seed)
        while not self.over:

            async def use() -> None:
                with suppress(aiorate.WaitTooLong):
                    async with self.block(random):
                        await asyncio.sleep(0)

            one = asyncio.create_task(use())
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
            if random.random() < 0.9:
                one.cancel()
                self.count()
            with suppress(asyncio.CancelledError):
                await one

    async def loop(self, seed: int) -> None:
        await asyncio.gather(*(self.task(seed + number) for number in range(20)))

    def run(self) -> int:
        """Use it from all threads, and from this one, which signals interrupt. Returns how often they did."""
        interrupts = [0]

        def interrupt(number: int, frame: FrameType | None) -> None:
            # Not inside a finalizer, nor while the interpreter reports its error: that one could not reach this thread's code.
            if frame is not None and frame.f_code.co_filename.startswith(ROOT) and frame.f_code.co_name != "__del__":
                interrupts[0] += 1
                raise Alarm

        threads = [in_thread(lambda seed=seed: self.thread(seed)) for seed in range(8)]  # type: ignore[misc]
        for number, factory in enumerate(list(FACTORIES.values())[:2]):
            threads.append(
                in_thread(lambda factory=factory, number=number: asyncio.Runner(loop_factory=factory).run(self.loop(100 * number)))
            )  # type: ignore[misc]
        before = signal.signal(signal.SIGUSR1, interrupt)
        random, main = Random(1), threading.get_ident()

        def annoy() -> None:
            while not self.over:
                threading.Event().wait(0.0003 + random.random() / 1000)
                signal.pthread_kill(main, signal.SIGUSR1)

        annoying = in_thread(annoy)
        try:
            while not self.over or not annoying.done():
                with suppress(Alarm):
                    while not annoying.done():
                        with suppress(aiorate.WaitTooLong), self.block(random):
                            pass
        finally:
            signal.signal(signal.SIGUSR1, before)
        for thread in threads:
            thread.result(LONG)
        return interrupts[0]


def kept_within(bucket: Recorded, bound: Callable[[float], int | None]) -> None:
    kept = bucket.kept()
    for window in (1_000_000, 10_000_000, 100_000_000, SECOND):
        most = bound(window / SECOND)
        assert most is not None
        assert most_in_any_window(kept, window) <= most


def ready(look: Callable[[], list[int]], full: list[int]) -> None:
    """Return once everything lies ready."""
    for _ in range(LONG * 100):
        if look() == full:
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"{look()} lies ready, not {full}")


def no_thread(name: str) -> None:
    assert not [thread for thread in threading.enumerate() if thread.name == f"aiorate-timekeeper:{name}"]


def test_a_budget_of_threads_loops_and_signals_loses_nothing() -> None:
    """Its bound is exact, and in the end everything lies ready again."""
    bucket = Recorded("20000/s", burst=50)
    budget = Budget(requests=bucket, tokens=aiorate.TokenBucket("1000000/s", burst=5000), scope="process", name="busy budget")

    def block(random: Random) -> Any:
        return budget.reserve(requests=random.randrange(1, 4), tokens=random.randrange(1, 300))

    interrupts = Users(block).run()

    assert interrupts > 100
    kept_within(bucket, lambda seconds: bucket.bound(round((seconds + 0.02) * SECOND), 3))
    ready(lambda: [budget.available(name) for name in budget.dimensions], [50, 5000])
    assert (0, 0) == (budget.waiting, budget._dispatcher.waiters.resuming)
    asyncio.run(budget.aclose())
    no_thread("busy budget")


def test_keys_of_threads_loops_and_signals_lose_nothing() -> None:
    """A shared limit above fifty keys, which come and go."""
    bucket = Recorded("20000/s", burst=50)
    shared = Limiter(bucket, scope="process", name="busy keys")
    keyed = KeyedLimiter[int](lambda key: aiorate.TokenBucket("5000/s", burst=20), shared=shared, scope="process", max_keys=20)

    interrupts = Users(lambda random: keyed(random.randrange(50)).of(random.randrange(1, 4))).run()

    assert interrupts > 100
    kept_within(bucket, lambda seconds: shared.bound(seconds, 3))
    ready(lambda: [shared.statistics().available], [50])
    assert (0, 0) == (shared.statistics().waiting, shared._dispatcher.waiters.resuming)
    keyed.evict()
    assert [0] * len(keyed) == [keyed[key].statistics().waiting for key in keyed]
    asyncio.run(keyed.aclose())
    asyncio.run(shared.aclose())
    no_thread("busy keys")


def test_a_call_costs_as_much_with_many_keys_as_with_one() -> None:
    """Blocking calls that wait, of a key among 5000 with a driver each, and of the only one: the machine's pace is measured in between."""

    def cost(keys: int) -> float:
        shared = Limiter(aiorate.TokenBucket("1000000000/s", burst=1), scope="process")
        keyed = KeyedLimiter[int](lambda key: aiorate.TokenBucket("1000000000/s", burst=1), shared=shared, scope="process")
        held = [keyed[key] for key in range(keys)]
        for limiter in held:
            limiter.acquire_blocking()
        begin, since = thread_time(), monotonic_ns()
        for number in range(2000):
            held[number % keys].acquire_blocking()
        assert monotonic_ns() > since
        return thread_time() - begin

    cost(10)
    ratios = [cost(5000) / cost(1) for _ in range(5)]
    assert min(ratios) < 2.5, ratios
