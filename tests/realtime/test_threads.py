"""Limits that threads, event loops and synchronous code use at once, in real time: rate, bound and shares, and that nothing is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from helpers.driving import LONG, SECOND
from helpers.loops import FACTORIES
from helpers.server import most_in_any_window
from helpers.threads import Recorded, in_thread

import aiorate
from aiorate import Budget, KeyedLimiter, Limiter

pytestmark = pytest.mark.slow

CANCELLED = 10_000


def run_in(factory: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, Any]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


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

    def run(self) -> None:
        """Use it from all threads."""
        users = [lambda seed=seed: self.thread(seed) for seed in range(8)]  # type: ignore[misc]
        for number, factory in enumerate(FACTORIES.values()):
            users.append(lambda factory=factory, number=number: run_in(factory, self.loop(100 * number)))  # type: ignore[misc]
        for thread in [in_thread(user) for user in users]:
            thread.result(LONG)


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


def test_a_budget_of_threads_and_loops_loses_nothing() -> None:
    bucket = Recorded("20000/s", burst=50)
    budget = Budget(requests=bucket, tokens=aiorate.TokenBucket("1000000/s", burst=5000), scope="process")

    def block(random: Random) -> Any:
        return budget.reserve(requests=random.randrange(1, 4), tokens=random.randrange(1, 300))

    Users(block).run()

    kept_within(bucket, lambda seconds: bucket.bound(round((seconds + 0.02) * SECOND), 3))
    ready(lambda: [budget.available(name) for name in budget.dimensions], [50, 5000])
    assert 0 == budget.waiting
    asyncio.run(budget.aclose())


def test_keys_of_threads_and_loops_lose_nothing() -> None:
    bucket = Recorded("20000/s", burst=50)
    shared = Limiter(bucket, scope="process")
    keyed = KeyedLimiter[int](lambda key: aiorate.TokenBucket("5000/s", burst=20), shared=shared, scope="process", max_keys=20)

    Users(lambda random: keyed(random.randrange(50)).of(random.randrange(1, 4))).run()

    kept_within(bucket, lambda seconds: shared.bound(seconds, 3))
    ready(lambda: [shared.statistics().available], [50])
    assert 0 == shared.statistics().waiting
    keyed.evict()
    assert [0] * len(keyed) == [keyed[key].statistics().waiting for key in keyed]
    asyncio.run(keyed.aclose())
    asyncio.run(shared.aclose())


@pytest.mark.parametrize("loop", FACTORIES)
def test_twelve_threads_share_a_rate(loop: str) -> None:
    """Eight with a loop of fifty tasks, and four that block: all of the rate, less what bare sleeps were late by, and fair shares.

    While other programs keep the machine busy, threads do not run in turn: the best of some rounds counts.
    """
    rate, rounds = 2_000, list[tuple[float, float]]()
    for _ in range(6):
        limiter, counts, over = Limiter(Recorded(f"{rate}/s", burst=10), scope="process"), [0] * 12, threading.Event()

        def block(place: int, limiter: Limiter = limiter, counts: list[int] = counts, over: threading.Event = over) -> None:
            while not over.is_set():
                limiter.acquire_blocking()
                counts[place] += 1

        async def ask(place: int, limiter: Limiter = limiter, counts: list[int] = counts, over: threading.Event = over) -> None:
            while not over.is_set():
                await limiter.acquire()
                counts[place] += 1

        async def fifty(place: int, ask: Callable[[int], Any] = ask) -> None:
            await asyncio.gather(*(ask(place) for _ in range(50)))

        def turn(place: int, fifty: Callable[[int], Any] = fifty) -> None:
            run_in(FACTORIES[loop], fifty(place))

        threads = [in_thread(lambda place=place: (turn if place < 8 else block)(place)) for place in range(12)]  # type: ignore[misc]
        time.sleep(0.3)
        before, late, begin = list(counts), 0.0, time.monotonic()
        while (now := time.monotonic()) < begin + 2:
            time.sleep(0.01)
            late += max(0.0, time.monotonic() - now - 0.012)
        got = [after - first for after, first in zip(counts, before, strict=True)]
        delivered = sum(got) / (rate * (time.monotonic() - begin - late))
        over.set()
        for thread in threads:
            thread.result(LONG)
        kept_within(limiter.scheduler, limiter.bound)  # type: ignore[arg-type]
        rounds.append((delivered, min(each / callers for each, callers in zip(got, [50] * 8 + [1] * 4, strict=True)) * 404 / sum(got)))
        if delivered >= 0.99 and rounds[-1][1] >= 0.5:
            return
    pytest.fail(f"delivered, and the least share in average shares: {rounds}")
