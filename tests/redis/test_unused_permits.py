"""Permits that a process took from the store and did not use: all come back when it closes, and few are lost when it is killed.

In virtual time, except where programs run.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.driving import others
from helpers.stores import Process, RealServer, TimedClient, now

from aiorate import CalendarWindow, TokenBucket
from aiorate.redis import RedisBudget, RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

DAY = CalendarWindow("100_000/day", "UTC")
ENDS = [step * 0.0073 for step in range(1, 30, 3)]  # seconds: before, during and after a call to a store 10 ms away


def taken(store: RealServer) -> int:
    """How many permits of the window are used, as the store counts."""
    words = str(store.send("GET", "aiorate:x")).split()
    return int(float(words[4]) + float(words[5])) if len(words) > 1 else 0


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("max_wait", [None, 0])
@pytest.mark.parametrize("lease", [0.0, 0.05, 5.0])
async def test_runs_of_one_request_lose_nothing(store: RealServer, lease: float, max_wait: float | None, closes: bool) -> None:
    """A process that makes one request takes nothing ahead, so nothing is lost even if the limiter is not closed."""
    for _ in range(10):
        limiter = RedisLimiter(TimedClient(store, latency=0.01), "x", DAY, lease=lease)
        await limiter.acquire(3, max_wait=max_wait)
        await asyncio.sleep(0)
        if closes:
            await limiter.aclose()

    assert 30 == taken(store)


@pytest.mark.parametrize("lease", [0.0, 0.05, 5.0])
@pytest.mark.parametrize("ends", ENDS)
async def test_a_limiter_closed_at_any_instant_loses_nothing(store: RealServer, ends: float, lease: float) -> None:
    """Also what an answer brings that was on its way then, for requests that are gone."""
    process = Process(store, DAY, latency=0.01, lease=lease)
    process.load(3)
    await asyncio.sleep(ends)
    await process.stop()

    assert len(process.granted) == taken(store)
    assert not others()


@pytest.mark.parametrize("ends", ENDS)
async def test_a_killed_process_loses_what_a_lease_takes(store: RealServer, ends: float) -> None:
    """At most as many permits as it used in the last lease; three tasks of 100 requests a second use 15 in 50 ms."""
    process = Process(store, DAY, latency=0.001, lease=0.05)
    for _ in range(3):
        process.tasks.append(asyncio.create_task(at_times(process)))
    await asyncio.sleep(0.2 + ends)
    process.client.hangs = True
    lost = taken(store) - len(process.granted)

    assert 0 <= lost <= 18
    await process.stop()


async def at_times(process: Process) -> None:
    while True:
        await process.one()
        await asyncio.sleep(0.01)


async def test_a_lease_follows_the_use(store: RealServer) -> None:
    """Few requests wait for the store, once it is known how many there are."""
    process = Process(store, DAY, latency=0.001, lease=0.05)
    for _ in range(5):
        process.tasks.append(asyncio.create_task(at_times(process)))
    await asyncio.sleep(0.1)
    calls, granted = process.client.calls, len(process.granted)
    await asyncio.sleep(1)

    assert len(process.granted) - granted > 490
    assert process.client.calls - calls < 60
    await process.stop()


async def test_requests_far_apart_take_nothing_ahead(store: RealServer) -> None:
    """Not even the one that a lease would give back."""
    process = Process(store, DAY, lease=0.05)
    await process.one()
    calls = process.client.calls
    for uses in range(2, 6):
        await asyncio.sleep(0.2)
        await process.one()
        await asyncio.sleep(0)
        assert uses == taken(store)

    assert 4 == process.client.calls - calls
    await process.stop()


@pytest.mark.parametrize("lease", [0.0, 5.0])
async def test_a_bucket_has_back_what_nobody_used(store: RealServer, lease: float) -> None:
    """Its burst is that of all runs together: ten requests leave 90 at once."""
    bucket = TokenBucket("1/hour", burst=100)
    for turn in range(10):
        limiter = RedisLimiter(TimedClient(store, latency=0.01), "x", bucket, lease=lease)
        await limiter.acquire()
        tasks = [asyncio.create_task(limiter.acquire()) for _ in range(turn)]
        await asyncio.sleep(0.005)
        for task in tasks:
            task.cancel()
        await limiter.aclose()
    process = Process(store, bucket)
    process.ask(95)
    await asyncio.sleep(1)

    assert 90 == len(process.granted)
    await process.stop()


async def test_a_rate_has_back_what_nobody_used(store: RealServer) -> None:
    """The slots of requests that left while the answer was on its way are the next ones of another process."""
    one, other = Process(store, "10/s", latency=0.01, horizon=10), Process(store, "10/s")
    await one.one()
    tasks = one.ask(50)
    await asyncio.sleep(0.005)
    for task in tasks:
        task.cancel()
    await one.limiter.aclose()
    await other.one()

    assert [pytest.approx(0.11, abs=0.01)] == other.granted
    await other.stop()
    assert not others()


async def test_a_budget_has_back_what_nobody_used(store: RealServer) -> None:
    """Reservations that left while the answer was on its way."""
    limits: dict[str, Any] = {"requests": "10/s", "tokens": TokenBucket("10/s", burst=1000)}
    one, other = RedisBudget(TimedClient(store, latency=0.01), "x", **limits), RedisBudget(TimedClient(store), "x", **limits)

    async def reserve(budget: RedisBudget) -> float:
        async with budget.reserve(tokens=900):
            return now()

    task = asyncio.create_task(reserve(one))
    await asyncio.sleep(0.015)
    task.cancel()
    await one.aclose()
    assert pytest.approx(0.04, abs=0.03) == await reserve(other)
    await other.aclose()
    assert not others()


async def test_runs_of_one_reservation_lose_nothing(store: RealServer) -> None:
    """Each uses its estimate, and books nothing for later ones."""
    for closes in (True, False) * 5:
        budget = RedisBudget(TimedClient(store, latency=0.01), "x", tokens=TokenBucket("1/hour", burst=100))
        async with budget.reserve(tokens=3) as lease:
            lease.settle(tokens=2)
        if closes:
            await budget.aclose()
        else:
            await asyncio.sleep(0.2)
    last = RedisBudget(TimedClient(store), "x", tokens=TokenBucket("1/hour", burst=100))
    async with asyncio.timeout(1), last.reserve(tokens=80):
        pass
    await last.aclose()


@pytest.mark.parametrize("lease", [0.0, 0.05])
async def test_statistics_show_what_the_store_has_left(store: RealServer, lease: float) -> None:
    """Of a window and of a bucket, as the store said last; 0 while the limiter is paused."""
    window = Process(store, CalendarWindow("1000/day", "UTC"), lease=lease)
    other = Process(store, CalendarWindow("1000/day", "UTC"))
    bucket = RedisLimiter(TimedClient(store), "bucket", TokenBucket("1/hour", burst=50), lease=lease)
    assert (1000, 50) == (window.limiter.statistics().available, bucket.statistics().available)
    await other.one(600)
    await window.one()
    await bucket.acquire(20)

    assert (399, 400) == (window.limiter.statistics().available, other.limiter.statistics().available)
    assert 30 == bucket.statistics().available
    bucket.pause(10)
    assert 0 == bucket.statistics().available
    await bucket.aclose()
    await window.stop()
    await other.stop()
