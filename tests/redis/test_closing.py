"""aclose(): what it tells the store, which permits it returns, and that it leaves nothing behind. Leases: what they take, and lose."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest
from helpers.driving import others
from helpers.stores import Process, RealServer, TimedClient, now, stop

import aiorate
from aiorate import CalendarWindow, TokenBucket
from aiorate.redis import RedisBudget, RedisLimiter

pytestmark = [pytest.mark.asyncio(loop_factories=["virtual"]), pytest.mark.usefixtures("stopped")]


async def test_closing_gives_slots_back_and_leaves_nothing(store: RealServer) -> None:
    one, other = Process(store, "100/s", horizon=1.0), Process(store, "100/s")
    tasks = one.ask(50)
    await asyncio.sleep(0.095)
    await one.limiter.aclose()
    await asyncio.wait(tasks)
    assert not others()
    await other.one()

    assert [pytest.approx(0.1, abs=1e-3)] == other.granted
    assert {aiorate.LimiterClosed} == {type(task.exception()) for task in tasks[10:]}
    with pytest.raises(aiorate.LimiterClosed):
        await one.limiter.acquire()
    one.limiter.apply("100,1,start")
    await one.one()


async def test_a_charge_just_before_closing_is_told(store: RealServer) -> None:
    """A program that is told to pause, or that charges for what it used, may end with that."""
    one, other = Process(store, latency=0.01), Process(store)
    await one.one()
    one.limiter.pause(30)
    await one.limiter.aclose()
    await other.one()
    assert [pytest.approx(30.04, abs=0.02)] == other.granted

    third = RedisLimiter(one.client, "x", "10/s")
    third.charge(100)
    await third.aclose()
    await other.one()
    assert pytest.approx(40.2, abs=0.2) == other.granted[1]


async def test_a_request_as_the_last_limiter_closes_is_served(store: RealServer) -> None:
    """The task is being cancelled, which does not concern a new limiter of the same client."""
    for turns in range(6):
        store.send("FLUSHALL")
        process = Process(store)
        other = RedisLimiter(process.client, "y", "10/s")
        await process.one()
        closing = asyncio.create_task(process.limiter.aclose())
        for _ in range(turns):
            await asyncio.sleep(0)

        assert 0.0 == await other.acquire(), turns
        await closing
        await other.acquire()
        await other.aclose()
        assert not others()


async def test_closing_that_is_cancelled_breaks_nothing(store: RealServer) -> None:
    one, other = Process(store, latency=0.05), Process(store)
    one.limiter.charge(5)
    closing = asyncio.create_task(one.limiter.aclose())
    await asyncio.sleep(0.01)
    closing.cancel()
    await asyncio.wait([closing])
    await asyncio.sleep(0.2)
    await other.one()

    assert closing.cancelled()
    assert [pytest.approx(0.55, abs=0.01)] == other.granted
    await one.limiter.aclose()


# Permits that were taken from the store and not used.


DAY = CalendarWindow("100_000/day", "UTC")
ENDS = [step * 0.0073 for step in range(1, 30, 3)]  # seconds: before, during and after a call to a store 10 ms away


async def taken(store: RealServer) -> int:
    limiter = RedisLimiter(TimedClient(store), "x", DAY)
    await limiter.acquire()
    used = 100_000 - 1 - int(limiter.statistics().available)
    await limiter.aclose()
    return used


async def test_runs_of_one_request_lose_nothing(store: RealServer) -> None:
    """A process that makes one request takes nothing ahead, so nothing is lost even if the limiter is not closed."""
    for max_wait, closes in product((None, 0), (True, False)):
        store.send("FLUSHALL")
        for _ in range(3):
            limiter = RedisLimiter(TimedClient(store, latency=0.01), "x", DAY)
            await limiter.acquire(3, max_wait=max_wait)
            await asyncio.sleep(0)
            if closes:
                await limiter.aclose()

        assert 9 == await taken(store), (max_wait, closes)


async def test_a_limiter_closed_at_any_instant_loses_nothing(store: RealServer) -> None:
    for ends in ENDS:
        store.send("FLUSHALL")
        process = Process(store, DAY, latency=0.01)
        process.load(3)
        await asyncio.sleep(ends)
        await stop(process)

        assert len(process.granted) == await taken(store), ends
    assert not others()


async def test_a_killed_process_loses_what_it_asked_for_last(store: RealServer) -> None:
    """A window has no lease: three tasks lose three permits at most."""
    for ends in ENDS:
        store.send("FLUSHALL")
        process = Process(store, DAY, latency=0.001)
        for _ in range(3):
            process.tasks.append(asyncio.create_task(at_times(process)))
        await asyncio.sleep(0.2 + ends)
        process.client.hangs = True

        assert 0 <= await taken(store) - len(process.granted) <= 3, ends
        await stop(process)


async def at_times(process: Process) -> None:
    while True:
        await process.one()
        await asyncio.sleep(0.01)


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


async def test_a_budget_has_back_what_nobody_used(store: RealServer) -> None:
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


async def test_statistics_show_what_the_store_has_left(store: RealServer) -> None:
    window = Process(store, CalendarWindow("1000/day", "UTC"))
    other = Process(store, CalendarWindow("1000/day", "UTC"))
    bucket = RedisLimiter(TimedClient(store), "bucket", TokenBucket("1/hour", burst=50), lease=0.05)
    assert (1000, 50) == (window.limiter.statistics().available, bucket.statistics().available)
    await other.one(600)
    await window.one()
    await bucket.acquire(20)

    assert (399, 400) == (window.limiter.statistics().available, other.limiter.statistics().available)
    assert 30 == bucket.statistics().available
    bucket.pause(10)
    assert 0 == bucket.statistics().available
    await bucket.aclose()
