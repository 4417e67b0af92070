"""Slots booked from a store: late loops, callers that do not wait, evicted keys, impossible durations, and the shares of processes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from helpers.driving import LONG, one_loop, others
from helpers.stores import Process, RealServer, TimedClient, now
from redis.exceptions import ConnectionError as NoConnection

import aiorate
from aiorate import (
    Budget,
    KeyedBudget,
    KeyedLimiter,
    WaitTooLong,
)
from aiorate.redis import RedisBudget, RedisLimiter
from aiorate.testing import VirtualLoop


async def late_loop(store: RealServer, rate: Any, stall: float, seconds: float, **options: Any) -> tuple[RedisLimiter, list[float]]:
    """Let ten tasks acquire repeatedly in a loop that stalls for ``stall`` seconds at a time."""
    loop: Any = asyncio.get_running_loop()
    limiter = RedisLimiter(TimedClient(store), "x", rate, **options)
    granted: list[float] = []

    async def worker() -> None:
        while True:
            await limiter.acquire()
            granted.append(loop.time())

    async def block() -> None:
        while True:
            loop._jump(stall)  # time passes, and nothing runs
            await asyncio.sleep(0.001)

    tasks = [asyncio.create_task(worker()) for _ in range(10)] + [asyncio.create_task(block())]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await limiter.aclose()
    return limiter, granted


@pytest.mark.parametrize(("rate", "stall"), [("2/s", 0.03), ("1/min", 2.0), (["100/s", "2/s"], 0.03)])
def test_late_loop_loses_no_slots_of_a_slow_rate(store: RealServer, rate: Any, stall: float) -> None:
    """At 2/s a loop 30 ms late delivered a quarter, because a slot lapsed 5 ms after it was due; below a faster rate a third."""
    per_second = aiorate.Rate.parse(rate if isinstance(rate, str) else rate[-1]).per_second
    seconds = 40 / per_second
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        limiter, granted = runner.run(late_loop(store, rate, stall, seconds, burst=1))

    assert 0.9 * 40 <= len(granted) <= 42
    for window in (0.1, 1.0, 5.0):
        most = max(sum(begin <= each < begin + window for each in granted) for begin in granted)
        assert most <= (limiter.bound(window) or 0)


async def granted(limiter: RedisLimiter, count: int, **options: Any) -> list[bool]:
    """Return which of ``count`` callers are granted."""

    async def one() -> bool:
        try:
            await limiter.acquire(**options)
        except WaitTooLong:
            return False
        return True

    async with asyncio.timeout(LONG):
        return await asyncio.gather(*[one() for _ in range(count)])


@one_loop
async def test_one_large_request_is_asked_for_at_once(store: RealServer) -> None:
    """The size of a portion does not bound a single request."""
    limiter = RedisLimiter(store.url, "x", "1/min", burst=5_000)
    calls = store.calls()
    assert isinstance(await limiter.acquire(2_000, max_wait=0), float)
    assert isinstance(await limiter.acquire(2_000), float)

    assert store.calls() <= calls + 3  # one call loads the script
    assert [True] * 1_000 == await granted(limiter, 1_000, max_wait=0)
    await limiter.aclose()


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_key_stays_until_its_store_has_answered(store: RealServer) -> None:
    """What it tells may have to be told again."""
    client = TimedClient(store, latency=0.2)
    keyed = KeyedBudget(lambda key: RedisBudget(client, f"t{key}", tokens="1000/s"))
    async with keyed.reserve("a", tokens=10) as lease:
        lease.settle(tokens=20)
    del lease
    await asyncio.sleep(0.3)  # the debt is under way

    assert 0 == keyed.evict()
    await asyncio.sleep(1.0)
    assert 1 == keyed.evict()
    await keyed.aclose()


async def outcomes(limiter: Any, count: int, permits: int = 1) -> list[float | str]:
    """Return the wait of each call, or the name of its error."""

    async def one() -> float | str:
        try:
            waited: float = await limiter.acquire(permits, max_wait=0)
        except aiorate.LimiterError as error:
            return type(error).__name__
        return waited

    return await asyncio.gather(*[one() for _ in range(count)])


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_full_budget_is_granted(store: RealServer) -> None:
    """40 of 40 were refused on an unused budget, so every server answered 429 to everybody."""
    process = Process(store, "10/s", burst=20, latency=0.01)

    results = await outcomes(process.limiter, 40)
    assert [pytest.approx(0.02)] * 20 == results[:20]
    assert ["WaitTooLong"] * 20 == results[20:]
    assert pytest.approx(0.02) == now()
    assert (20, 20, 0) == tuple(getattr(process.limiter.statistics(), name) for name in ("granted", "refused", "waiting"))
    await process.stop()
    assert not others()


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_the_first_caller_asks_once(store: RealServer) -> None:
    """A refusal takes one question too, and the error says when to come again."""
    process = Process(store, "10/s", latency=0.01)
    await process.limiter.acquire(max_wait=0)
    calls = process.client.calls
    with pytest.raises(WaitTooLong, match=r"acquire\(1\)") as caught:
        await process.limiter.acquire(max_wait=timedelta(0))

    assert 1 == process.client.calls - calls
    assert pytest.approx(0.08, abs=0.011) == caught.value.wait
    await asyncio.sleep(caught.value.wait)
    assert pytest.approx(0.02, abs=0.005) == await process.limiter.acquire(max_wait=0)
    await process.stop()


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_max_wait_shorter_than_a_round_trip_asks_once(store: RealServer) -> None:
    """A store 40 ms away can grant nothing in 10 ms, so all callers were refused for ever, and nothing was asked."""
    process = Process(store, "10/s", burst=3, latency=0.02)
    await process.limiter.acquire()
    await asyncio.sleep(1)
    assert [pytest.approx(0.04)] * 3 == await asyncio.gather(*[process.limiter.acquire(max_wait=0.01) for _ in range(3)])

    with pytest.raises(WaitTooLong, match=r"max_wait \(0\.01 s\)"):
        await process.limiter.acquire(max_wait=0.01)
    await process.stop()


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_refused_callers_cost_no_permit(store: RealServer) -> None:
    """A slot booked for a caller that has gone would lapse, so no caller would ever be granted under load."""
    process = Process(store, "5/s", burst=3)
    granted = 0
    for _ in range(300):
        granted += "WaitTooLong" not in await outcomes(process.limiter, 1)
        await asyncio.sleep(0.013)

    seconds = 300 * 0.013
    assert 2 + 5 * seconds * 0.9 <= granted <= 4 + 5 * seconds
    await process.stop()


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_max_wait_0_under_a_shared_limit_in_a_store_is_an_error(store: RealServer) -> None:
    """Below a shared limit in a store, every caller that would not wait was refused for ever."""
    shared = RedisLimiter(TimedClient(store), "shared", "100/s", burst=10)
    keyed = KeyedLimiter(lambda key: "1000/s", shared=shared)
    both = KeyedLimiter(lambda key: RedisLimiter(TimedClient(store), key, "1000/s"), shared=shared)
    budget = Budget(requests=shared, tokens="1000/s")

    for limits in (keyed, both):
        with pytest.raises(RuntimeError, match=r"acquire\(max_wait=0\).*lease"):
            await limits.acquire("ann", max_wait=0)
    with pytest.raises(RuntimeError, match=r"try_acquire\(\).*lease"):
        keyed.try_acquire("ann")
    with pytest.raises(RuntimeError, match=r"reserve\(max_wait=0\).*lease"):
        await budget.reserve(requests=1, tokens=1, max_wait=0).__aenter__()
    await keyed.acquire("ann", max_wait=0.1)
    assert 1 == shared.statistics().granted
    await both.aclose()
    await budget.aclose()
    await keyed.aclose()
    await shared.aclose()


# Shares.


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_long_round_trip_takes_no_larger_share(store: RealServer) -> None:
    """A process 200 ms away took 0.9 of 50/s, so one worker in another region starved all others."""
    parts, delivered = await shares(store, 50, [0.2, NEAR, NEAR, NEAR], 20)

    assert [pytest.approx(1 / 3, abs=0.05)] * 3 == [part / sum(parts[1:]) for part in parts[1:]]
    assert 0 < parts[0] <= 0.3
    assert 0.98 <= delivered <= 1.02


NEAR, TASKS = 0.0001, 50


async def shares(store: RealServer, rate: int, trips: Sequence[float], seconds: float, tasks: int = TASKS) -> tuple[list[float], float]:
    """Return each process's share of the grants after a warm-up, and the sum as a part of the rate."""
    processes = [Process(store, f"{rate}/s", latency=trip / 2) for trip in trips]
    for process in processes:
        process.load(tasks)
    await asyncio.sleep(4)
    begin = now()
    await asyncio.sleep(seconds)
    granted = [process.within(begin, begin + seconds) for process in processes]
    for process in processes:
        await process.stop()
    return [each / sum(granted) for each in granted], sum(granted) / (rate * seconds)


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_lonely_process_far_away_has_the_whole_rate(store: RealServer) -> None:
    """Keeping a far process from the share of others must not slow it down when it is alone."""
    for _ in range(3):  # time may go on while the server of a busy machine answers
        _, delivered = await shares(store, 50, [0.2], 5, tasks=400)
        if delivered >= 0.98:
            break
        store.send("FLUSHALL")

    assert 0.98 <= delivered <= 1.02


def local_pair(store: RealServer, **options: Any) -> tuple[Process, Process]:
    """Make two busy processes at 300/s, each with half of the rate in an outage."""
    one, other = (Process(store, "300/s", on_unavailable="local", local_share=0.5, **options) for _ in range(2))
    one.load(TASKS)
    other.load(TASKS)
    return one, other


async def cut_off(process: Process, seconds: float) -> None:
    process.client.error = NoConnection()
    await asyncio.sleep(seconds)
    process.client.error = None


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_flapping_connection_grants_its_share_at_most(store: RealServer) -> None:
    """Each outage grants another share of the rate, beside a process that has all of it, and no burst."""
    one, other = local_pair(store, grace=0.2)
    await asyncio.sleep(1)
    for _ in range(5):
        await cut_off(one, 1.5)
        await asyncio.sleep(0.5)
    await asyncio.sleep(1.5)

    assert one.within(1, 12.5) + other.within(1, 12.5) <= 1.01 * (
        300 * 11.5 + 150 * 5 * (1.5 + 0.5)
    )  # the store is asked again every half second
    assert one.within(1, 12.5) + other.within(1, 12.5) >= 0.8 * 300 * 11.5
    await one.stop()
    await other.stop()
