"""Random histories of processes that share a window: whatever happens, no window has more than its permits. In virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest
from helpers.stores import EPOCH_SECONDS, TimedClient, now

from aiorate import CalendarWindow, WaitTooLong
from aiorate.redis import RedisLimiter

if TYPE_CHECKING:
    from helpers.stores import RealServer

PERIOD = 5


def window() -> int:
    """That of the server's clock, which counts microseconds."""
    return round((EPOCH_SECONDS + now()) * 1e6) // (PERIOD * 10**6)


class Process:
    """Tasks that ask for permits of a window, wait more or less, and give up or give back now and then."""

    def __init__(self, store: RealServer, random: Random, most: int, used: Counter[int]) -> None:
        self.client = TimedClient(store, latency=random.choice([0, 0.0005, 0.01, 0.1, 0.3]))
        calendar = CalendarWindow(f"{most}/{PERIOD}s", "UTC")
        self.limiter = RedisLimiter(self.client, "x", calendar, on_unavailable="wait", lease=random.choice([0, 0, 0.2, 2]))
        self.sizes = [1, 1, 1, min(2, most), max(1, most // 2)]
        self.used = used
        self.tasks = [asyncio.create_task(self.work(Random(random.random()))) for _ in range(random.choice([1, 3, 10]))]

    async def work(self, random: Random) -> None:
        while True:
            permits = random.choice(self.sizes)
            try:
                async with asyncio.timeout(random.choice([None, 0.01, 1, 4])):
                    await self.limiter.acquire(permits, max_wait=random.choice([None, None, None, 0, 0.1, 3]))
            except (WaitTooLong, TimeoutError):
                await asyncio.sleep(random.random() / 5)
                continue
            self.used[window()] += permits
            if random.random() < 0.1:
                self.limiter.refund(permits)
                self.used[window()] -= permits
            await asyncio.sleep(random.choice([0, 0, 0.01, 0.3]))

    async def stop(self) -> None:
        self.client.error = None
        await self.kill()
        await self.limiter.aclose()

    async def kill(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("seed", range(12))
async def test_no_window_has_more_than_its_permits(store: RealServer, seed: int) -> None:
    """With pauses, charges, outages, processes that come, close and die, and far ones."""
    random, used = Random(seed), Counter[int]()
    most = random.choice([1, 2, 7, 30, 100])
    processes = [Process(store, random, most, used) for _ in range(random.choice([1, 2, 4]))]
    for _ in range(random.randint(5, 25)):
        await asyncio.sleep(random.random() * 2)
        process, happens = random.choice(processes), random.random()
        if happens < 0.1:
            process.limiter.pause(random.random() * 4)
        elif happens < 0.15:
            process.limiter.resume()
        elif happens < 0.2:
            process.limiter.charge(random.randint(1, most))
        elif happens < 0.3:
            process.client.error = ConnectionError("down")
        elif happens < 0.5:
            process.client.error = None
        elif happens < 0.6:
            processes.append(Process(store, random, most, used))
        elif happens < 0.8 and len(processes) > 1:
            processes.remove(process)
            await (process.stop() if happens < 0.7 else process.kill())
    for process in processes:
        await process.stop()

    assert used
    assert max(used.values()) <= most
