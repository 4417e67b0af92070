"""Random histories of processes that share budgets and windows, with all that may happen to them. In virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from helpers.driving import LONG, others
from helpers.stores import EPOCH_SECONDS, RealServer, TimedClient, now
from redis.exceptions import ConnectionError as NoConnection

from aiorate import CalendarWindow, EngineUnavailable, LimiterClosed, LineFull, Rate, TokenBucket, WaitTooLong
from aiorate.redis import RedisBudget, RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

seeds = pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 24))])
LATE = 0.005 + 2 * 0.02
"""Slack, and the difference of two answers."""


class World:
    """The processes, and what was reserved: instants with the amounts of requests and tokens."""

    def __init__(self, store: RealServer, seed: int) -> None:
        self.store = store
        self.random = Random(seed)
        self.limits = {
            "requests": self.random.choice([("10/s", None), ("50/s", None), ("10/s", 5)]),
            "tokens": self.random.choice([("100/s", None), ("1000/s", None), ("200/s", 100)]),
        }
        self.granted: list[tuple[float, int, int]] = []
        self.returned = [0, 0]
        self.processes = [self.process() for _ in range(3)]

    def process(self) -> tuple[RedisBudget, TimedClient]:
        pick = self.random.choice
        client = TimedClient(self.store, latency=pick([0, 0.0003, 0.02]))
        dimensions: dict[str, Any] = {
            name: rate if burst is None else TokenBucket(rate, burst=burst) for name, (rate, burst) in self.limits.items()
        }
        options = {"on_unavailable": pick(["wait", "raise"]), "horizon": pick([0.01, 0.2, 2.0]), "max_waiting": pick([None, 30])}
        return RedisBudget(client, "x", **options, **dimensions), client

    async def call(self) -> None:
        """One reservation, which may be refused, given up, settled, refunded or left as it is."""
        pick = self.random.choice
        budget, _ = pick(self.processes)
        amounts = {"requests": pick([0, 1, 1, 1, 1, 3]), "tokens": pick([0, 1, 5, 20, 60])}
        try:
            async with (
                asyncio.timeout(pick([None, None, 0.05, 1])),
                budget.reserve(max_wait=pick([None, None, 0, 0.1, 5]), **amounts) as lease,
            ):
                reserved = lease.amounts
                self.granted.append((now(), reserved["requests"], reserved["tokens"]))
                await asyncio.sleep(pick([0, 0.01, 0.3]))
                if pick([True, True, False]):
                    used = self.random.randint(0, reserved["tokens"] + 2)
                    self.returned[1] += max(reserved["tokens"] - used, 0)
                    lease.settle(tokens=used)
                elif pick([True, False]):
                    self.returned = [total + amount for total, amount in zip(self.returned, reserved.values(), strict=True)]
                    lease.refund()
        except (WaitTooLong, EngineUnavailable, LimiterClosed, LineFull, TimeoutError):
            pass

    async def happen(self, tasks: list[asyncio.Task[None]]) -> None:
        """Something, or nothing."""
        pick, chance = self.random.choice, self.random.random()
        budget, client = pick(self.processes)
        if chance < 0.05:
            pick(tasks).cancel()
        elif chance < 0.06:
            budget.pause(pick([0.1, 1]))
        elif chance < 0.07:
            budget.resume()
        elif chance < 0.08:
            client.error = NoConnection("gone")
            asyncio.get_running_loop().call_later(pick([0.1, 3]), client.__setattr__, "error", None)
        elif chance < 0.09:
            self.processes.remove((budget, client))
            self.processes.append(self.process())
            await budget.aclose()
        if self.random.random() < 0.6:
            await asyncio.sleep(pick([0, 0.001, 0.05, 0.3]))

    def most(self, place: int) -> float:
        """By how much a window exceeds the bound; below 0: none does. Everything that ever came back is allowed for."""
        rate, burst = list(self.limits.values())[place]
        largest = max(amounts[place] for _, *amounts in self.granted)
        allowed = max(burst or 1, largest) + largest / 2 + self.returned[place]
        granted, worst = sorted(self.granted), -allowed
        for first, (begin, *_) in enumerate(granted):
            total = 0
            for end, *amounts in granted[first:]:
                total += amounts[place]
                worst = max(worst, total - allowed - Rate.parse(rate).per_second * (end - begin + LATE))
        return worst


@seeds
async def test_no_history_breaks_a_bound_or_leaves_anything_behind(store: RealServer, seed: int) -> None:
    """Callers that give up, outages, pauses, closes: nobody hangs, and no window holds more than it may."""
    world, tasks = World(store, seed), []
    for _ in range(100):
        tasks.append(asyncio.create_task(world.call()))
        await world.happen(tasks)
    async with asyncio.timeout(LONG):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    for budget, client in world.processes:
        client.error = None
        await budget.aclose()

    assert not others()
    assert world.most(0) <= 1e-6
    assert world.most(1) <= 1e-6
    assert len(world.granted) > 20


# Windows.

PERIOD = 5


def window() -> int:
    """That of the server's clock, which counts microseconds."""
    return round((EPOCH_SECONDS + now()) * 1e6) // (PERIOD * 10**6)


class Takers:
    """Tasks that ask for permits of a window, wait more or less, and give up or give back now and then."""

    def __init__(self, store: RealServer, random: Random, most: int, used: Counter[int]) -> None:
        self.client = TimedClient(store, latency=random.choice([0, 0.0005, 0.01, 0.1, 0.3]))
        calendar = CalendarWindow(f"{most}/{PERIOD}s", "UTC")
        self.limiter = RedisLimiter(self.client, "x", calendar, on_unavailable="wait")
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


@seeds
async def test_no_window_has_more_than_its_permits(store: RealServer, seed: int) -> None:
    random, used = Random(seed), Counter[int]()
    most = random.choice([1, 2, 7, 30, 100])
    processes = [Takers(store, random, most, used) for _ in range(random.choice([1, 2, 4]))]
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
            processes.append(Takers(store, random, most, used))
        elif happens < 0.8 and len(processes) > 1:
            processes.remove(process)
            await (process.stop() if happens < 0.7 else process.kill())
    for process in processes:
        await process.stop()

    assert used
    assert max(used.values()) <= most
