"""Limits that threads, event loops and synchronous code use at once, in real time: rate, bound and shares, and that nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from helpers import crew
from helpers.driving import LONG, SECOND
from helpers.loops import FACTORIES
from helpers.server import most_in_any_window
from helpers.threads import Recorded, in_thread

import aiorate
from aiorate import Budget, KeyedLimiter, Limiter

pytestmark = pytest.mark.slow

CANCELLED = 10_000


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
            users.append(lambda factory=factory, number=number: asyncio.Runner(loop_factory=factory).run(self.loop(100 * number)))  # type: ignore[misc]
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


def no_thread(name: str) -> None:
    assert not [thread for thread in threading.enumerate() if thread.name == f"aiorate-timekeeper:{name}"]


def test_a_budget_of_threads_and_loops_loses_nothing() -> None:
    bucket = Recorded("20000/s", burst=50)
    budget = Budget(requests=bucket, tokens=aiorate.TokenBucket("1000000/s", burst=5000), scope="process", name="busy budget")

    def block(random: Random) -> Any:
        return budget.reserve(requests=random.randrange(1, 4), tokens=random.randrange(1, 300))

    Users(block).run()

    kept_within(bucket, lambda seconds: bucket.bound(round((seconds + 0.02) * SECOND), 3))
    ready(lambda: [budget.available(name) for name in budget.dimensions], [50, 5000])
    assert 0 == budget.waiting
    asyncio.run(budget.aclose())
    no_thread("busy budget")


def test_keys_of_threads_and_loops_lose_nothing() -> None:
    bucket = Recorded("20000/s", burst=50)
    shared = Limiter(bucket, scope="process", name="busy keys")
    keyed = KeyedLimiter[int](lambda key: aiorate.TokenBucket("5000/s", burst=20), shared=shared, scope="process", max_keys=20)

    Users(lambda random: keyed(random.randrange(50)).of(random.randrange(1, 4))).run()

    kept_within(bucket, lambda seconds: shared.bound(seconds, 3))
    ready(lambda: [shared.statistics().available], [50])
    assert 0 == shared.statistics().waiting
    keyed.evict()
    assert [0] * len(keyed) == [keyed[key].statistics().waiting for key in keyed]
    asyncio.run(keyed.aclose())
    asyncio.run(shared.aclose())
    no_thread("busy keys")


@pytest.mark.parametrize("loop", FACTORIES)
def test_twelve_threads_share_ten_thousand_a_second(loop: str) -> None:
    """As much of the rate as the machine can hand out, within the bound, and no thread is left behind.

    The floor wakes as many callers at the same rate, and makes up for as much lateness. While other programs keep the machine busy, the two
    do not see the same machine: the best of some rounds counts.
    """
    of_all, rate = crew.Crew(loops=8, tasks=50, threads=4), 10_000
    rounds: list[tuple[float, float]] = []
    for _ in range(6):
        floor = crew.of_floor(of_all, loop, rate, 1)
        bucket = Recorded(f"{rate}/s", burst=10)
        limiter = aiorate.Limiter(bucket, scope="process")
        record = crew.measure(of_all, loop, rate, 2, limiter.acquire, limiter.acquire_blocking)
        for window in (1_000_000, 10_000_000, 100_000_000, SECOND):
            bound = limiter.bound(window / SECOND)
            assert bound is not None
            assert most_in_any_window(bucket.kept(), window) <= bound
        rounds.append((record.delivered / min(floor.delivered, 1), record.least / min(floor.least, 1)))
        if rounds[-1][0] >= 0.995 and rounds[-1][1] >= 0.5:
            return
    pytest.fail(f"delivered, and the least share, in parts of the floor's: {rounds}")
