"""One limit for many threads: some with an event loop of many tasks, and some that block; all ask again and again.

* *delivered/asked*: permits per second, divided by the rate.
* *least share*: the permits of the thread that got the fewest for each of its callers, divided by what each caller would get if all
  got as many.
* *% of a core*: the processor's time in all threads, divided by the time of the run.

The floor only wakes that many callers in order: a thread that hands out, each millisecond, what is due.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiorate
from benchmarks.measure import LOOPS, Measured, Plan, alternate, in_tens, part

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

__all__ = ["NAME", "TITLE", "Crew", "Floor", "Record", "measure", "of_aiorate", "of_floor", "run"]

NAME = "threads"
TITLE = "Threads: one limit for all of a process"
DELIVERED, LEAST, CORE = "delivered/asked", "least share", "% of a core"
_SECOND = 1_000_000_000
_WARM_UP = 0.3
_CATCH_UP_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class Crew:
    """The callers: threads with a loop, the tasks in each of these, and threads without a loop."""

    loops: int = 8
    tasks: int = 50
    threads: int = 4

    @property
    def callers(self) -> int:
        """All of them."""
        return self.loops * self.tasks + self.threads


@dataclass(frozen=True, slots=True)
class Record:
    """The permits of all threads."""

    rate: int
    seconds: float
    cpu: float
    counts: tuple[tuple[int, int], ...]
    """For each thread: its callers and their permits."""

    @property
    def delivered(self) -> float:
        """The permits, divided by what the rate allows."""
        return sum(count for _, count in self.counts) / (self.rate * self.seconds)

    @property
    def least(self) -> float:
        """The least share of a thread, in shares of the average caller."""
        callers, permits = sum(each for each, _ in self.counts), sum(count for _, count in self.counts)
        return min(count / each for each, count in self.counts) * callers / max(permits, 1)


class Floor:
    """Hands out permits in order of arrival, and nothing else: no cancellation, no bound, no change of the rate."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._line: deque[tuple[asyncio.AbstractEventLoop | None, object]] = deque()
        self._over = False
        self._thread = threading.Thread(target=self._hand_out, daemon=True)
        self._thread.start()

    async def acquire(self) -> object:
        """Wait in an event loop."""
        loop = asyncio.get_running_loop()
        granted = loop.create_future()
        with self._lock:
            self._line.append((loop, granted))
        return await granted

    def acquire_blocking(self) -> object:
        """Wait in a thread without a loop."""
        granted = threading.Lock()
        granted.acquire()
        with self._lock:
            self._line.append((None, granted))
        return granted.acquire()

    def close(self) -> None:
        """Grant all that wait, and end the thread."""
        self._over = True
        self._thread.join()

    def _hand_out(self) -> None:
        paid = time.monotonic_ns()
        while not self._over:
            time.sleep(0.001)
            now = time.monotonic_ns()
            paid = max(paid, now - _CATCH_UP_NS)
            count = (now - paid) * self._rate // _SECOND
            paid += count * _SECOND // self._rate
            self._wake(count)
        while self._line:
            self._wake(len(self._line))

    def _wake(self, count: int) -> None:
        with self._lock:
            granted = [self._line.popleft() for _ in range(min(count, len(self._line)))]
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for loop, each in granted:
            if loop is not None and isinstance(each, asyncio.Future):
                loops.setdefault(loop, []).append(each)
            elif loop is None:
                each.release()  # type: ignore[attr-defined]  # a lock
        for loop, futures in loops.items():
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_set, futures)


def _set(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def measure(
    crew: Crew,
    loop: str,
    rate: int,
    seconds: float,
    acquire: Callable[[], Awaitable[object]],
    acquire_blocking: Callable[[], object],
) -> Record:
    """Have the crew ask for `seconds`, and count what each of its threads got."""
    counts = [0] * (crew.loops + crew.threads)
    over = False

    def block(place: int) -> None:
        while not over:
            acquire_blocking()
            counts[place] += 1

    def turn(place: int) -> None:
        async def ask() -> None:
            while not over:
                await acquire()
                counts[place] += 1

        async def main() -> None:
            await asyncio.gather(*(ask() for _ in range(crew.tasks)))

        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(main())

    threads = [threading.Thread(target=turn if place < crew.loops else block, args=(place,)) for place in range(len(counts))]
    for thread in threads:
        thread.start()
    time.sleep(_WARM_UP)
    before, begin, cpu = list(counts), time.monotonic_ns(), time.process_time()
    time.sleep(seconds)
    after, end, cpu = list(counts), time.monotonic_ns(), time.process_time() - cpu
    over = True
    for thread in threads:
        thread.join()
    callers = [crew.tasks] * crew.loops + [1] * crew.threads
    got = tuple((each, last - first) for each, first, last in zip(callers, before, after, strict=True))
    return Record(rate, (end - begin) / _SECOND, cpu * _SECOND / (end - begin), got)


def of_aiorate(crew: Crew, loop: str, rate: int, seconds: float) -> Record:
    """Measure one limiter."""
    limiter = aiorate.Limiter(rate, scope="process")
    return measure(crew, loop, rate, seconds, limiter.acquire, limiter.acquire_blocking)


def of_floor(crew: Crew, loop: str, rate: int, seconds: float) -> Record:
    """Measure the floor."""
    floor = Floor(rate)
    try:
        return measure(crew, loop, rate, seconds, floor.acquire, floor.acquire_blocking)
    finally:
        floor.close()


def run(plan: Plan) -> Iterator[Measured]:
    """Every rate in every loop."""
    seconds = plan.pick(0.1, 1.0, 3.0)
    crew = plan.pick(Crew(2, 5, 2), Crew(), Crew())
    for loop in plan.loops:
        for rate in plan.pick((1_000,), (1_000, 10_000), (100, 1_000, 10_000)):
            jobs = {
                name: lambda job=job, loop=loop, rate=rate: _figures(job(crew, loop, rate, seconds))
                for name, job in (("floor: hand out what is due", of_floor), ("aiorate TokenPool", of_aiorate))
            }
            for name, values in alternate(plan, jobs).items():
                for place, unit in enumerate((DELIVERED, LEAST, CORE)):
                    yield Measured.of(NAME, loop, name, f"{in_tens(rate)}/s", unit, part(values, place))


def _figures(record: Record) -> tuple[float, float, float]:
    return record.delivered, record.least, 100 * record.cpu
