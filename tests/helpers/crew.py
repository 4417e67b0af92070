"""One limit for many threads: some with an event loop of many tasks, and some that block; all ask again and again.

The floor only wakes that many callers in order: a thread that hands out, each millisecond, what is due.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from helpers.driving import SECOND
from helpers.loops import FACTORIES

__all__ = ["Crew", "Record", "measure", "of_floor"]

_WARM_UP = 0.3
_CATCH_UP_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class Crew:
    """The callers: threads with a loop, the tasks in each of these, and threads without a loop."""

    loops: int = 8
    tasks: int = 50
    threads: int = 4


@dataclass(frozen=True, slots=True)
class Record:
    """The permits of all threads."""

    rate: int
    seconds: float
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
            count = (now - paid) * self._rate // SECOND
            paid += count * SECOND // self._rate
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

        with asyncio.Runner(loop_factory=FACTORIES[loop]) as runner:
            runner.run(main())

    threads = [threading.Thread(target=turn if place < crew.loops else block, args=(place,)) for place in range(len(counts))]
    for thread in threads:
        thread.start()
    time.sleep(_WARM_UP)
    before, begin = list(counts), time.monotonic_ns()
    time.sleep(seconds)
    after, end = list(counts), time.monotonic_ns()
    over = True
    for thread in threads:
        thread.join()
    callers = [crew.tasks] * crew.loops + [1] * crew.threads
    got = tuple((each, last - first) for each, first, last in zip(callers, before, after, strict=True))
    return Record(rate, (end - begin) / SECOND, got)


def of_floor(crew: Crew, loop: str, rate: int, seconds: float) -> Record:
    """Measure the floor."""
    floor = Floor(rate)
    try:
        return measure(crew, loop, rate, seconds, floor.acquire, floor.acquire_blocking)
    finally:
        floor.close()
