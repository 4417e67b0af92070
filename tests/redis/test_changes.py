"""Changes that all processes of a RedisLimiter hear of: charges, rates, lost state, jumps of the clock, pauses. In virtual time."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest
from helpers.driving import others
from helpers.server import most_in_any_window
from helpers.stores import Process, RealServer, TimedClient, now, stop
from redis.exceptions import ConnectionError as NoConnection

import aiorate
from aiorate import CalendarWindow, TokenBucket
from aiorate.http import Feedback
from aiorate.redis import RedisBudget, RedisLimiter

pytestmark = [pytest.mark.asyncio(loop_factories=["virtual"]), pytest.mark.usefixtures("stopped")]


async def test_a_server_whose_clock_jumps_books_nothing_twice(store: RealServer) -> None:
    process = Process(store, "1000/s")
    process.load(50)
    for skew in (-3600.0, 0.0, 7200.0):
        await asyncio.sleep(0.5)
        process.client.skew = skew
    await asyncio.sleep(0.5)

    assert most_in_any_window(process.granted, 0.5) <= process.limiter.bound(0.5) + 40  # two horizons, of the two jumps forward
    assert 1800 <= len(process.granted)


async def test_a_charge_delays_all_processes(store: RealServer) -> None:
    one, other = Process(store), Process(store)
    one.limiter.charge(5)
    one.limiter.refund(2)
    await asyncio.sleep(0.01)
    await other.one()

    assert [pytest.approx(0.3, abs=1e-3)] == other.granted
    assert 5 == one.limiter.statistics().charged


async def test_set_rate_changes_the_rate_of_its_process(store: RealServer) -> None:
    """Slots that are booked stay, with the interval after them; those that follow come at the new rate."""
    process = Process(store)
    process.ask(4)
    await asyncio.sleep(0.05)
    process.limiter.set_rate("100/s")
    await asyncio.wait(process.tasks)

    assert [pytest.approx(slot, abs=1e-3) for slot in (0, 0.1, 0.2, 0.21)] == process.granted
    assert aiorate.Rate.parse("100/s") == process.limiter.rate


async def test_slots_on_their_way_are_those_of_the_rate_asked_for(store: RealServer) -> None:
    """Laid out at another, they would be granted faster than the store knows, or once more to another process."""
    for before, after, interval in (("1000/s", "10/s", 0.001), ("10/s", "1000/s", 0.1)):
        store.send("FLUSHALL")
        one, other, began = Process(store, before, latency=0.01, horizon=1.0), Process(store, "1000/s"), now()
        one.ask(4)
        await asyncio.sleep(0.005)
        one.limiter.set_rate(after)
        await asyncio.sleep(0.01)
        other.ask()
        await asyncio.wait(one.tasks + other.tasks)

        assert [pytest.approx(began + 0.02 + index * interval, abs=2e-3) for index in range(4)] == one.granted, after
        assert [pytest.approx(began + max(0.01 + 4 * interval, 0.015), abs=2e-3)] == other.granted, after
        await stop(one, other)


@pytest.mark.parametrize("burst", [1, 300])
async def test_lost_state_is_restored_by_a_process_that_remembers(store: RealServer, burst: int) -> None:
    processes = [Process(store, "1000/s", burst=burst) for _ in range(4)]
    for process in processes:
        process.load(25)
    await asyncio.sleep(1.0)
    store.send("FLUSHALL")
    await asyncio.sleep(1.0)

    instants = [instant for process in processes for instant in process.granted]
    assert most_in_any_window(instants, 0.5) <= 1.05 * (processes[0].limiter.bound(0.5) or 0)
    assert len(instants) >= 0.97 * 2000


async def test_a_loop_that_stood_still_sends_no_burst(store: RealServer) -> None:
    process = Process(store, "1000/s", horizon=0.1)
    process.load(200)
    await asyncio.sleep(0.05)
    asyncio.get_running_loop()._jump(0.2)  # type: ignore[attr-defined]  # time passes, and nothing runs
    before = len(process.granted)
    await asyncio.sleep(0.001)

    assert len(process.granted) - before <= 8
    await asyncio.sleep(0.5)
    assert most_in_any_window(process.granted, 0.1) <= (process.limiter.bound(0.1) or 0)
    assert 1 <= process.limiter.statistics().skipped


async def test_a_replica_that_had_heard_of_less_is_told_the_rest(store: RealServer) -> None:
    one, other = Process(store), Process(store)
    await one.one()
    before = store.send("GET", one.limiter.key)
    one.limiter.charge(18)
    await asyncio.sleep(0.01)
    store.send("SET", one.limiter.key, before)
    one.limiter.charge(1)
    await asyncio.sleep(0.001)
    other.ask()
    await asyncio.wait(other.tasks)

    assert [pytest.approx(2.0, abs=0.15)] == other.granted


async def test_the_key_is_gone_soon_after_it_has_no_effect(store: RealServer) -> None:
    """Never a fixed time: an hourly limit is kept for an hour, a fast one for a second, and any as long as a pause or a charge."""
    for rate, least, most in (("1/h", 3_600_000, 3_601_000), (TokenBucket("1000/s", burst=100), 0, 1_101)):
        store.send("FLUSHALL")
        process = Process(store, rate)
        await process.one()
        assert least < int(store.send("PTTL", process.limiter.key)) <= most, rate
        process.limiter.pause(7200)
        await asyncio.sleep(0.001)
        assert 7_190_000 < int(store.send("PTTL", process.limiter.key)), rate
        await stop(process)


# Pauses.


async def test_a_pause_holds_all_processes(store: RealServer) -> None:
    one, other = Process(store), Process(store)
    await one.one()
    one.limiter.observe(Feedback(429, pause=5.0))
    await asyncio.sleep(0.5)
    other.limiter.pause(1)  # the longer one holds
    other.ask(3)
    one.ask(2)
    await asyncio.wait([*one.tasks, *other.tasks])

    assert [pytest.approx(5 + index / 10, abs=1e-2) for index in range(5)] == sorted(one.granted[1:] + other.granted)


async def test_a_pause_over_before_it_is_told_ends_no_other(store: RealServer) -> None:
    """A short pause of a loop that stands still, after a long one of another process: no time is left, but no pause was ended."""
    long, short, third = Process(store), Process(store), Process(store)
    long.limiter.pause(3)
    await asyncio.sleep(0.01)
    short.limiter.pause(0.001)
    asyncio.get_running_loop()._jump(0.002)  # type: ignore[attr-defined]  # time passes, and nothing runs
    await asyncio.sleep(0.01)
    await third.one()

    assert [pytest.approx(3.0, abs=1e-2)] == third.granted


async def test_a_resume_and_a_pause_of_one_moment_are_both_heard(store: RealServer) -> None:
    """An operator ends a long pause with a short one: the store hears of the end first, though both come before the next question."""
    for latency in (0.0, 0.01):
        store.send("FLUSHALL")
        long, operator, third = Process(store), Process(store, latency=latency), Process(store)
        long.limiter.pause(3600)
        await asyncio.sleep(0.5)
        began = now()
        operator.limiter.resume()
        operator.limiter.pause(1)
        await asyncio.sleep(0.1)
        async with asyncio.timeout(60):
            await third.one()

        assert [pytest.approx(began + 1 + latency, abs=0.02)] == third.granted
        await stop(long, operator, third)


async def test_a_resume_lost_in_an_outage_is_told_again(store: RealServer) -> None:
    long, operator, third = Process(store), Process(store), Process(store)
    long.limiter.pause(3600)
    await asyncio.sleep(0.5)
    operator.client.error = NoConnection()
    operator.limiter.resume()
    await asyncio.sleep(0.1)
    operator.limiter.pause(1)
    operator.client.error = None
    await asyncio.sleep(0.3)
    async with asyncio.timeout(60):
        await third.one()

    assert [pytest.approx(1.6, abs=0.02)] == third.granted


async def test_a_request_in_a_pause_learns_of_its_end_in_a_second(store: RealServer) -> None:
    for joined in (0.3, 1.5, 5.0):
        one, other = Process(store), Process(store)
        one.limiter.pause(60)
        await asyncio.sleep(joined)
        one.ask()
        await asyncio.sleep(0.3)
        other.limiter.resume()
        resumed = now()
        await asyncio.wait(one.tasks, timeout=90)

        assert [pytest.approx(resumed + 0.5, abs=0.5)] == one.granted, joined
        await stop(one, other)


async def test_a_shorter_pause_replaces_one_ended_elsewhere(store: RealServer) -> None:
    """A process that knew only of the first would be held for its whole length."""
    one, other = Process(store), Process(store)
    one.limiter.pause(3600)
    await asyncio.sleep(0.01)
    other.ask()
    await asyncio.sleep(0.5)
    one.limiter.resume()
    await asyncio.sleep(0.1)
    other.limiter.pause(5)
    await asyncio.wait(other.tasks, timeout=60)

    assert [pytest.approx(5.61, abs=0.02)] == other.granted


# aclose(): what it tells the store, which permits it returns, and that it leaves nothing behind.


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
