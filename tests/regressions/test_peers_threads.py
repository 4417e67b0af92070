"""Defects that others had, as tests of ours: several loops and threads at one limiter."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from time import monotonic

from helpers.driving import LONG, SECOND
from helpers.loops import FACTORIES
from helpers.server import most_in_any_window
from helpers.threads import Recorded, in_thread

import aiorate


def test_parallel_waiters_never_add_up_to_more_than_the_rate() -> None:
    """M7, golang/go#43858 and #45245: waiters in parallel got more than the limit. Here many loops and threads, some of which give up."""
    bucket = Recorded("2000/s", burst=5)
    limiter = aiorate.Limiter(bucket, scope="process")
    end = monotonic() + 0.5
    kept: list[int] = []
    begin, factories = threading.Barrier(8), list(FACTORIES.values())

    def work_in_loop(number: int) -> None:
        dice, count = random.Random(number), 0

        async def task() -> None:
            nonlocal count
            while monotonic() < end:
                with suppress(TimeoutError):
                    async with asyncio.timeout(dice.choice((0, 0.001, 0.005, 10))):
                        await limiter.acquire()
                        count += 1

        async def main() -> None:
            await asyncio.gather(*(task() for _ in range(10)))

        begin.wait(LONG)
        with asyncio.Runner(loop_factory=factories[number % len(factories)]) as runner:
            runner.run(main())
        kept.append(count)

    def work_without(number: int) -> None:
        count = 0
        begin.wait(LONG)
        while monotonic() < end:
            limiter.acquire_blocking()
            count += 1
        kept.append(count)

    threads = [in_thread(lambda n=n: (work_in_loop if n < 6 else work_without)(n)) for n in range(8)]  # type: ignore[misc]
    for thread in threads:
        thread.result(LONG)

    for window in (1_000_000, 10_000_000, 100_000_000, SECOND):
        bound = limiter.bound(window / SECOND)
        assert bound is not None
        assert most_in_any_window(bucket.kept(), window) <= bound
    statistics = limiter.statistics()
    assert (0, sum(kept)) == (statistics.waiting, statistics.granted)
