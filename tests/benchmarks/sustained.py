"""A hundred tasks that ask for one permit after the other: the part of the rate that is delivered, and its share of a core.

* *delivered/asked*: 1 if the limiter keeps the rate, less if it loses time, more if it breaks the limit. The count runs for 3 s
  (quick: 1 s), after a tenth of that, in which the permits granted at once (10 ms worth) are used up.
* *% of a core*: the processor's time in all threads, divided by the time of the run. A limiter that delivers less than 95 % of the
  rate has its ``delivered/asked`` as a remark, because it is easy to be cheap then.

After 256 permits, a task lets the loop turn. Otherwise, a library that is slower than the rate would never let it turn.
"""

from __future__ import annotations

import asyncio
from time import perf_counter, process_time
from typing import TYPE_CHECKING

from benchmarks.measure import Measured, Plan, alternate, in_tens, part, run_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.subjects import Subject

__all__ = ["NAME", "TITLE", "hundred_workers", "run"]

NAME = "sustained"
TITLE = "Sustained: what is kept up"
WORKERS = 100
TURN = 256
KEPT = 0.95  # a limiter that delivers less does not keep the rate

SHARE, CORE = "delivered/asked", "% of a core"


def run(plan: Plan) -> Iterator[Measured]:
    """Every rate in every loop."""
    seconds = plan.pick(0.1, 1.0, 3.0)
    rates = plan.pick((1_000,), (100, 1_000, 10_000, 100_000, 1_000_000), (100, 1_000, 10_000, 100_000, 1_000_000))
    for loop in plan.loops:
        for rate in rates:
            case = f"{in_tens(rate)}/s"
            jobs = {(loop, case, each.name): hundred_workers(loop, each, rate, seconds) for each in plan.of("aiorate", "peer")}
            for (_, _, name), values in alternate(plan, jobs).items():
                shares = Measured.of(NAME, loop, name, case, SHARE, part(values, 0))
                little = shares.samples and shares.median < KEPT
                remark = f"at {shares.median:.2f}" if little else ""
                yield shares
                yield Measured.of(NAME, loop, name, case, CORE, part(values, 1), remark)


def hundred_workers(loop: str, subject: Subject, rate: int, seconds: float) -> Callable[[], tuple[float, float]]:
    """A job that measures the part of the rate that is delivered, and the share of a core in percent."""

    async def measure() -> tuple[float, float]:
        calls = subject.make(rate, max(1, rate // 100))
        acquire = calls.acquire
        assert acquire is not None
        count = 0

        async def worker() -> None:
            nonlocal count
            while True:
                for _ in range(TURN):
                    await acquire()
                    count += 1
                await asyncio.sleep(0)

        workers = [asyncio.ensure_future(worker()) for _ in range(WORKERS)]
        try:
            await asyncio.sleep(seconds / 10)
            wall, cpu, before = perf_counter(), process_time(), count
            await asyncio.sleep(seconds)
            wall, cpu, counted = perf_counter() - wall, process_time() - cpu, count - before
            for each in workers:
                if each.done():
                    each.result()
            return counted / wall / rate, 100 * cpu / wall
        finally:
            for each in workers:
                each.cancel()
            await asyncio.wait(workers, timeout=5)
            await subject.close(calls)

    return lambda: run_in(loop, measure, seconds + 20)
