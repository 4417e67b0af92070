"""The rows of the table: what is measured of a library, and of something bare, its floor. Every figure of the table is their ratio.

Seconds are the processor's, of all threads, unless a row says otherwise: other programs of the machine change them little.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import monotonic, process_time
from types import FunctionType
from typing import Any

from benchmarks.subjects import Calls, Subject, closed

__all__ = ["ROWS", "NoCall", "Row", "figure"]

READY = 1_000_000  # permits that lie ready, at 1000 per second: more than are taken
LONGEST = 30.0  # seconds of a clock for one figure
Measure = Callable[[Subject | None, int], Coroutine[Any, Any, float]]
"""Measures a library, or with None the floor, in that size."""


class NoCall(Exception):
    """A library has no such call."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row. ``size`` is the number of calls, tasks, keys or permits; ``needs`` the field of a subject without which it has no figure."""

    name: str
    floor: str
    measure: Measure
    size: int
    needs: str = "make"
    store: bool = False


def figure(row: Row, subject: Subject | None) -> float:
    """Measure once, in a fresh loop. Raises TimeoutError if a library takes too long."""

    async def limited() -> float:
        async with asyncio.timeout(LONGEST if subject else None):
            return await row.measure(subject, row.size)

    gc.collect()
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: None)  # what a figure that took too long leaves behind
        return runner.run(limited())


# --- A permit that lies ready


class _Bare:
    """An ``async with`` that does nothing."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *error: object) -> None:
        return None


async def _empty() -> None:
    return None


def _nothing() -> None:
    return None


def _called(call: Callable[[], object], count: int) -> float:
    begin = process_time()
    for _ in range(count):
        call()
    return process_time() - begin


async def _awaited(call: Callable[[], Awaitable[object]], count: int) -> float:
    begin = process_time()
    for _ in range(count):
        await call()
    return process_time() - begin


async def _entered(context: Any, count: int) -> float:
    begin = process_time()
    for _ in range(count):
        async with context:
            pass
    return process_time() - begin


def _own(function: Any) -> Any:
    """A copy for each measurement, because the interpreter adapts code to the functions that it calls."""
    return FunctionType(function.__code__.replace(), function.__globals__)


async def attempt(subject: Subject | None, count: int) -> float:
    call = subject.make(1000, READY).attempt if subject else _nothing
    if call is None:
        raise NoCall
    _called(call, 100)
    return float(_own(_called)(call, count))


async def acquire(subject: Subject | None, count: int) -> float:
    calls = subject.make(1000, READY) if subject else Calls(_empty)
    try:
        await _awaited(calls.acquire, 100)
        return float(await _own(_awaited)(calls.acquire, count))
    finally:
        await closed(calls)


async def context(subject: Subject | None, count: int) -> float:
    made = subject.make(1000, READY).context if subject else _Bare()
    if made is None:
        raise NoCall
    await _entered(made, 100)
    return float(await _own(_entered)(made, count))


# --- Keys


class _Entries:
    """A number for each key."""

    def __init__(self) -> None:
        self.of: dict[int, float] = {}

    async def acquire(self, key: int) -> float:
        return self.of.setdefault(key, key + 0.5)


async def _each(call: Callable[[int], Awaitable[object]], keys: list[int]) -> float:
    begin = process_time()
    for key in keys:
        await call(key)
    return process_time() - begin


def _keyed(subject: Subject | None) -> Callable[[int], Awaitable[object]]:
    if subject is None:
        return _Entries().acquire
    assert subject.keyed is not None
    return subject.keyed(1000, READY)


async def first_use(subject: Subject | None, keys: int) -> float:
    call = _keyed(subject)
    await call(-1)
    return float(await _own(_each)(call, list(range(keys))))


async def in_turn(subject: Subject | None, keys: int) -> float:
    call = _keyed(subject)
    order = list(range(keys))
    await _each(call, order)
    return float(await _own(_each)(call, order))


async def bytes_of_a_key(subject: Subject | None, keys: int) -> float:
    call = _keyed(subject)
    await call(-1)
    order = list(range(1000, 1000 + keys))
    gc.collect()
    tracemalloc.start()
    try:
        for key in order:
            await call(key)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / keys
    finally:
        tracemalloc.stop()


# --- Tasks that wait


class _Futures:
    """A future for each task that waits, and nothing that decides: they are resolved once a millisecond, at the same rate."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    async def acquire(self) -> None:
        self.waiting.append(asyncio.get_running_loop().create_future())
        await self.waiting[-1]

    async def let_go(self, rate: float) -> None:
        begin, done = monotonic(), 0
        while done < len(self.waiting):
            due = min(len(self.waiting), int((monotonic() - begin) * rate))
            for future in self.waiting[done:due]:
                future.set_result(None)
            done = due
            await asyncio.sleep(0.001)


async def drain(subject: Subject | None, tasks: int) -> float:
    """From the first task to the end of the last, at a rate that a busy machine can serve too."""
    rate, futures = 40_000.0, _Futures()
    calls = subject.make(rate, max(1, round(rate / 100))) if subject else Calls(futures.acquire)
    try:
        begin = process_time()
        waiting = [asyncio.ensure_future(calls.acquire()) for _ in range(tasks)]
        if subject is None:
            await asyncio.sleep(0)
            await futures.let_go(rate)
        await asyncio.gather(*waiting)
        return process_time() - begin
    finally:
        await closed(calls)


async def cancel(subject: Subject | None, tasks: int) -> float:
    """Seconds until as many waiting tasks, cancelled in random order, have ended."""
    calls = subject.make(1, 1) if subject else Calls(_Futures().acquire)
    try:
        if subject:
            await calls.acquire()  # the permit in hand
        waiting = [asyncio.ensure_future(calls.acquire()) for _ in range(tasks)]
        for _ in range(5):
            await asyncio.sleep(0)
        random.Random(tasks).shuffle(waiting)
        begin = process_time()
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        return process_time() - begin
    finally:
        await closed(calls)


async def lateness(subject: Subject | None, permits: int) -> float:
    """Seconds of a clock (median) that a permit is off its instant at 100/s, or that asyncio.sleep() ends after it."""
    loop = asyncio.get_running_loop()
    calls = subject.make(100, 1) if subject else Calls(_empty)
    try:
        await calls.acquire()
        begin, late = loop.time(), []
        for number in range(1, permits):
            if subject is None:
                await asyncio.sleep(begin + number / 100 - loop.time())
            else:
                await calls.acquire()
            late.append(abs(loop.time() - begin - number / 100))
        return median(late)
    finally:
        await closed(calls)


async def delivered(subject: Subject | None, permits: int) -> float:
    """The permits that 100 tasks get in a second of a rate of so many; the floor is the rate."""
    if subject is None:
        return permits
    loop, count = asyncio.get_running_loop(), 0
    calls = subject.make(permits, 1)

    async def ask() -> None:
        nonlocal count
        while True:
            await calls.acquire()
            count += 1

    tasks = [asyncio.create_task(ask()) for _ in range(100)]
    await asyncio.sleep(0.2)
    begin, before = loop.time(), count
    await asyncio.sleep(1)
    got = (count - before) / (loop.time() - begin)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await closed(calls)
    return got


# --- Imports, and a store

IMPORT = """
import sys, time
sys.path[:] = sys.argv[2:]
import asyncio
begin = time.process_time()
__import__(sys.argv[1])
print(time.process_time() - begin)
"""


async def imported(subject: Subject | None, times: int) -> float:
    """Seconds of an import in a new interpreter that has imported asyncio; the floor is the import of asyncio itself."""
    names = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    code = IMPORT if subject else IMPORT.replace("import asyncio\n", "")
    command = [sys.executable, "-c", code, subject.imported if subject else "asyncio", *sys.path]
    runs = [subprocess.run(command, capture_output=True, check=True, env=names) for _ in range(times)]  # noqa: ASYNC221  # nothing else runs
    return min(float(run.stdout) for run in runs)


URL = "AIORATE_BENCHMARK_STORE"


async def in_store(subject: Subject | None, calls: int, tasks: int = 1) -> float:
    """Seconds of a clock for that many acquires of some tasks from one limit in Redis; the floor is a script that does nothing."""
    url = os.environ[URL]
    if subject is None:
        from redis.asyncio import Redis

        client = Redis.from_url(url)
        digest = await client.script_load("return 0")
        made = Calls(partial(client.evalsha, digest, 1, "bench"), close=client.aclose)
    else:
        assert subject.shared is not None
        made = await subject.shared(url)

    async def ask(count: int) -> None:
        for _ in range(count):
            await made.acquire()
            await asyncio.sleep(0)

    try:
        await asyncio.gather(*(ask(3) for _ in range(tasks)))
        begin = monotonic()
        await asyncio.gather(*(ask(calls // tasks) for _ in range(tasks)))
        return monotonic() - begin
    finally:
        await closed(made)


ROWS = (
    Row("`try_acquire()`, a permit is ready", "a call of an empty function", attempt, 100_000),
    Row("`await acquire()`, a permit is ready", "an empty coroutine", acquire, 50_000),
    Row("`async with`, a permit is ready", "an empty `async with`", context, 50_000),
    Row("`await acquire(key)`, 10 000 keys in turn", "a coroutine that looks into a dict", in_turn, 10_000, "keyed"),
    Row("the first use of a key", "the same, with a new key", first_use, 10_000, "keyed"),
    Row("memory of a key", "a number in a dict", bytes_of_a_key, 2_000, "keyed"),
    Row("10 000 tasks wait, each is served", "bare futures", drain, 10_000),
    Row("10 000 waiting tasks are cancelled", "bare futures", cancel, 10_000),
    Row("how far a permit is off its instant, at 100/s", "`asyncio.sleep()`", lateness, 100),
    Row("permits that 100 tasks get at 1000/s", "1000/s", delivered, 1_000),
    Row("import", "`import asyncio`", imported, 3),
    Row("Redis: one task", "an empty script", in_store, 500, "shared", store=True),
    Row("Redis: 50 tasks", "an empty script, 50 tasks", partial(in_store, tasks=50), 2_000, "shared", store=True),
    Row("100 000 tasks wait, each is served", "bare futures", drain, 100_000),
)
