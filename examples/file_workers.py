"""Four worker processes behind one limit, over a file: nothing to install, and nothing to start.

Two of them are synchronous, and two have ten tasks each. Together they get the rate, and not more.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from aiorate.file import FileLimiter

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

RATE, SECONDS = 200, 3


def synchronous(path: Path, began: float, done: SimpleQueue[int]) -> None:
    """A worker without an event loop."""
    limiter = FileLimiter(path, RATE)
    time.sleep(max(began - time.monotonic(), 0))
    while time.monotonic() < began + SECONDS:
        with limiter:
            done.put(int(time.monotonic() - began))


async def ask(limiter: FileLimiter, began: float, done: SimpleQueue[int]) -> None:
    while time.monotonic() < began + SECONDS:
        await limiter.acquire()
        done.put(int(time.monotonic() - began))


def asynchronous(path: Path, began: float, done: SimpleQueue[int]) -> None:
    """A worker with ten tasks."""

    async def main() -> None:
        limiter = FileLimiter(path, RATE)
        await asyncio.sleep(max(began - time.monotonic(), 0))
        await asyncio.gather(*[ask(limiter, began, done) for _ in range(10)])

    asyncio.run(main())


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        done: SimpleQueue[int] = spawn.SimpleQueue()
        began = time.monotonic() + 1  # by then all have started
        workers = [
            spawn.Process(target=worker, args=(Path(folder, "limits"), began, done), daemon=True)
            for worker in (synchronous, synchronous, asynchronous, asynchronous)
        ]
        for worker in workers:
            worker.start()
        counted: Counter[int] = Counter()
        while any(worker.is_alive() for worker in workers):
            while not done.empty():
                counted[done.get()] += 1
            time.sleep(0.01)
        print("\n".join([f"second {second + 1}: {counted[second]} of {RATE} permits" for second in range(SECONDS)]))


if __name__ == "__main__":
    main()
