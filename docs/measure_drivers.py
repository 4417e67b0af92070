"""Compares the two drivers of asyncio, the filler and the alarm, on the same arithmetic. The figures are in design.md.

    python docs/measure_drivers.py

The alarm drives every strategy but `TokenPool`, so this script gives it a class with the same body that is not a `TokenPool`. The
drivers and a floor, one bare future for each waiter, take turns in one process. Each figure is the median of the rounds, in
processor time, except for the latency, which is real time.
"""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from abc import ABCMeta
from math import isnan, nan
from statistics import median
from time import perf_counter_ns, process_time_ns
from types import MemberDescriptorType
from typing import TYPE_CHECKING

from aiorate import Limiter, Scheduler, TokenPool
from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

ROUNDS = 9
MANY = 10_000

# The same class, slots and methods, without TokenPool among its bases.
_body: dict[str, object] = {name: value for name, value in vars(TokenPool).items() if not isinstance(value, MemberDescriptorType)}
SamePool: Callable[[str], Scheduler] = ABCMeta("SamePool", TokenPool.__bases__, _body)


class Futures:
    """The floor: futures in a list, and nothing that decides."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def acquire(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def pause(self, seconds: float) -> None:
        pass

    def resume(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()


SUBJECTS: dict[str, Callable[[str], Limiter | Futures]] = {
    "filler": lambda rate: Limiter(TokenPool(rate)),
    "alarm": lambda rate: Limiter(SamePool(rate)),
    "bare futures": lambda _: Futures(),
}


async def paused(make: Callable[[str], Limiter | Futures]) -> Limiter | Futures:
    """A limiter that grants nothing now, and any number of permits once it is resumed."""
    limiter = make("1000000000/s")
    if isinstance(limiter, Limiter):
        await limiter.acquire()
        await asyncio.sleep(0.002)  # the pool fills up
    limiter.pause(3600)
    return limiter


async def line_of(limiter: Limiter | Futures, waiters: int) -> list[asyncio.Task[object]]:
    tasks: list[asyncio.Task[object]] = [asyncio.create_task(limiter.acquire()) for _ in range(waiters)]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def one_after_the_other(make: Callable[[str], Limiter | Futures]) -> float:
    """Processor time for each acquire of a single task that waits every time, at 1000/s in virtual time, its timer included."""
    limiter = make("1000/s")
    if isinstance(limiter, Futures):
        return nan  # nothing wakes it
    gc.collect()
    begin = process_time_ns()
    for _ in range(MANY):
        await limiter.acquire()
    return (process_time_ns() - begin) / MANY


async def hundred_at_a_time(make: Callable[[str], Limiter | Futures]) -> float:
    """Processor time for each acquire while a hundred tasks wait at all times, at 20 000/s in virtual time."""
    limiter = make("20000/s")
    if isinstance(limiter, Futures):
        return nan

    async def worker() -> None:
        for _ in range(MANY // 100):
            await limiter.acquire()

    gc.collect()
    begin = process_time_ns()
    await asyncio.gather(*(worker() for _ in range(100)))
    return (process_time_ns() - begin) / MANY


async def drain(make: Callable[[str], Limiter | Futures]) -> float:
    """Processor time for each of 10 000 tasks, from its start to its end, when all are granted at once."""
    limiter = await paused(make)
    gc.collect()
    begin = process_time_ns()
    tasks = await line_of(limiter, MANY)
    limiter.resume()
    await asyncio.wait(tasks)
    return (process_time_ns() - begin) / MANY


async def cancel(make: Callable[[str], Limiter | Futures]) -> float:
    """Processor time to cancel each of 10 000 waiters, in random order, and to run them to their end."""
    limiter = await paused(make)
    tasks = await line_of(limiter, MANY)
    random.Random(1).shuffle(tasks)
    gc.collect()
    begin = process_time_ns()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return (process_time_ns() - begin) / MANY


async def latency(make: Callable[[str], Limiter | Futures]) -> float:
    """Real time from the decision to grant until the waiter runs, in an event loop with nothing else to do."""
    limiter = await paused(make)
    times = []
    ran = 0

    async def waiter() -> None:
        nonlocal ran
        await limiter.acquire()
        ran = perf_counter_ns()

    for _ in range(500):
        task = asyncio.create_task(waiter())
        for _ in range(5):
            await asyncio.sleep(0)
        begin = perf_counter_ns()
        limiter.resume()
        await task
        times.append(ran - begin)
        limiter.pause(3600)
    return median(times)


async def memory(make: Callable[[str], Limiter | Futures]) -> float:
    """Bytes for each of 10 000 waiters, the task included."""
    limiter = await paused(make)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tasks = await line_of(limiter, MANY)
        gc.collect()
        size = (tracemalloc.get_traced_memory()[0] - before) / MANY
    finally:
        tracemalloc.stop()
    limiter.resume()
    await asyncio.wait(tasks)
    return size


async def check() -> None:
    """Raise RuntimeError unless the first subject has a filler and the second has none."""
    for name in ("filler", "alarm"):
        tasks = await line_of(limiter := await paused(SUBJECTS[name]), 1)
        fillers = [task for task in asyncio.all_tasks() if task.get_name().startswith("aiorate-filler")]
        if len(fillers) != (name == "filler"):
            raise RuntimeError(f"{name}: {len(fillers)} filler tasks")
        limiter.resume()
        await asyncio.wait(tasks)


CASES: list[tuple[str, str, Callable[[Callable[[str], Limiter | Futures]], Coroutine[object, object, float]]]] = [
    ("a waiting acquire, one task", "ns", one_after_the_other),
    ("a waiting acquire, 100 tasks", "ns", hundred_at_a_time),
    ("a waiting acquire, 10 000 tasks let go at once", "ns", drain),
    ("cancelling one of 10 000 waiters", "ns", cancel),
    ("from the grant until the waiter runs", "ns", latency),
    ("a waiter, its task included", "bytes", memory),
]

VIRTUAL = (one_after_the_other, hundred_at_a_time)  # no sleep, and the same steps in each round


def main() -> None:
    asyncio.run(check())
    print(f"| median of {ROUNDS} rounds | filler | alarm | bare futures | filler / alarm, by rounds |")
    print("|---|---|---|---|---|")
    for title, unit, measure in CASES:
        rounds: dict[str, list[float]] = {name: [] for name in SUBJECTS}
        for turn in range(ROUNDS):
            for name in sorted(SUBJECTS, reverse=turn % 2 == 1):
                with asyncio.Runner(loop_factory=VirtualLoop if measure in VIRTUAL else None) as runner:
                    rounds[name].append(runner.run(measure(SUBJECTS[name])))
        middle = {name: median(values) for name, values in rounds.items()}
        ratios = sorted(a / max(b, 1) for a, b in zip(rounds["filler"], rounds["alarm"], strict=True))
        cells = " | ".join("" if isnan(value) else f"{value:.0f} {unit}" for value in middle.values())
        print(f"| {title} | {cells} | {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |", flush=True)


if __name__ == "__main__":
    main()
