"""The memory that Python allocates (tracemalloc), in a new interpreter for each subject.

* *a waiter, in all*: bytes for each of many tasks that stand in line, the task included.
* *a waiter, besides a bare future*: the same without the bytes of a task that waits for a bare future.
* *a limiter, used once*: bytes for a limiter that granted one permit and is idle since.
* *threads*: the threads started for that many limiters.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from benchmarks import measure
from benchmarks.measure import Failed, Measured, Plan, alternate
from benchmarks.peers import PEERS
from benchmarks.subjects import AIORATE, BareFutures, Subject

NAME = "memory"
TITLE = "Memory: a waiter, a limiter"

FLOOR = "floor: bare future"
CASES = {
    "waiter": ("a waiter, in all", "bytes"),
    "besides": ("a waiter, besides a bare future", "bytes"),
    "limiter": ("a limiter, used once", "bytes"),
    "threads": ("threads", "threads"),
}


async def weigh_waiters(acquire: Callable[[], Awaitable[object]], waiters: int) -> float:
    """Bytes for each task that waits, itself included."""
    tasks: list[asyncio.Future[object]] = []
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    tasks.extend(asyncio.ensure_future(acquire()) for _ in range(waiters))
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    size = (tracemalloc.get_traced_memory()[0] - before) / waiters
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return size


async def weigh_limiters(subject: Subject, limiters: int) -> tuple[float, int]:
    """Bytes for each limiter that was used once, without its `Calls`, and the threads started for all of them."""
    gc.collect()
    threads, before = threading.active_count(), tracemalloc.get_traced_memory()[0]
    made: list[Any] = [await _used_once(subject) for _ in range(limiters)]
    await asyncio.sleep(0.1)  # until timers have run out
    gc.collect()
    size = (tracemalloc.get_traced_memory()[0] - before) / limiters
    started = threading.active_count() - threads
    for limiter in made:
        left = limiter.close() if hasattr(limiter, "close") else None  # a peer's, some of which have threads to stop
        if isinstance(left, Awaitable):
            await left
    return size, started


async def _used_once(subject: Subject) -> object:
    calls = subject.make(1_000, 1)
    assert calls.acquire is not None
    await calls.acquire()
    return calls.limiter


async def of_subject(subject: Subject, waiters: int, limiters: int) -> dict[str, float]:
    """All figures of one subject."""
    await weigh_waiters(BareFutures().acquire, waiters)  # the first time also makes objects that stay
    floor = await weigh_waiters(BareFutures().acquire, waiters)
    warm = subject.make(1_000, 1)
    assert warm.acquire is not None
    for _ in range(3):
        await warm.acquire()
    await subject.close(warm)

    calls = subject.make(1, 1)
    assert calls.acquire is not None
    await calls.acquire()  # the permit in hand
    size = await weigh_waiters(calls.acquire, waiters)
    await subject.close(calls)
    limiter, threads = await weigh_limiters(subject, limiters)
    return {"waiter": size, "besides": size - floor, "limiter": limiter, "threads": threads}


async def of_floor(waiters: int) -> dict[str, float]:
    """Bytes of a task that waits for a bare future."""
    await weigh_waiters(BareFutures().acquire, waiters)  # as above
    return {"waiter": await weigh_waiters(BareFutures().acquire, waiters)}


def child(name: str, waiters: str, limiters: str) -> None:
    """In the new interpreter: print all figures of one subject."""
    tracemalloc.start()
    if name == FLOOR:
        found = asyncio.run(of_floor(int(waiters)))
    else:
        subject = next(subject for subject in (*AIORATE, *PEERS) if subject.name == name)
        found = asyncio.run(of_subject(subject, int(waiters), int(limiters)))
    print(json.dumps(found))


def weigh(name: str, waiters: int, limiters: int) -> dict[str, float]:
    """All figures of one subject, from a new interpreter."""
    found: dict[str, float] = json.loads(measure.child("memory", name, str(waiters), str(limiters)))
    return found


def run(plan: Plan) -> Iterator[Measured]:
    """Every subject, and the floor."""
    waiters, limiters = plan.pick(200, 5_000, 10_000), plan.pick(20, 200, 200)
    names = [FLOOR, *(subject.name for subject in plan.of("aiorate", "peer"))]
    jobs = {name: partial(weigh, name, waiters, limiters) for name in names}
    for name, results in alternate(plan.at_most(3), jobs).items():
        for key, (case, unit) in CASES.items():
            values = [
                result if isinstance(result, Failed) else result[key] for result in results if isinstance(result, Failed) or key in result
            ]
            if values:
                yield Measured.of(NAME, "", name, f"{case} for {limiters} limiters" if key == "threads" else case, unit, values)
