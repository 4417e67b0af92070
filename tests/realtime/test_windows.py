"""Processes that share windows of the calendar through a real store. All figures come from recorded grants, by the machine's one clock.

The last 0.2 s of a window are not used, so that a grant counts in its window however late its task goes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.driving import LONG
from helpers.stores import RealServer

import aiorate

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.local_store import Store

pytestmark = pytest.mark.slow

PERIOD, PERMITS = 2, 200
WORKER = """
import asyncio, sys, time
from aiorate import CalendarWindow
from aiorate.redis import RedisLimiter

async def main(url, seconds):
    limiter = RedisLimiter(url, "x", CalendarWindow("200/2s", "Europe/Berlin"), slack=0.2, on_unavailable="wait")
    async def work():
        while True:
            await limiter.acquire()
            print(f"{time.time():.6f}", flush=True)
            await asyncio.sleep(0.4)  # so that a window lasts for about a second
    tasks = [asyncio.create_task(work()) for _ in range(20)]
    await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await limiter.aclose()

asyncio.run(main(sys.argv[1], float(sys.argv[2])))
"""


def granted(store: Store, disturb: Callable[[list[subprocess.Popen[str]]], None]) -> list[int]:
    """The permits of each window between the first and the last, with four processes that take all they get for 11 s."""
    environment = {**os.environ, "PYTHONPATH": str(Path(aiorate.__file__).parents[1])}
    command = [sys.executable, "-c", WORKER, store.url, "11"]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(4)]
    time.sleep(4.7 + PERIOD - time.time() % PERIOD)
    disturb(workers)
    stamps = [float(line) for worker in workers for line in worker.communicate(timeout=LONG)[0].split("\n")[:-1]]
    counts = Counter(int(stamp // PERIOD) for stamp in stamps)
    each = [counts[window] for window in range(min(counts) + 1, max(counts))]
    print(each)  # shown by pytest -rP
    return each


def test_no_window_exceeds_its_number(running: RealServer) -> None:
    running.send("FLUSHALL")

    counts = granted(running, lambda workers: workers[0].kill())

    assert max(counts) <= PERMITS
    assert sorted(counts)[1] == PERMITS
    assert min(counts) >= PERMITS * 7 // 8
