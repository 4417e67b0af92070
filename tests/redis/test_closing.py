"""aclose(): what it tells the store, which slots it returns, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import others
from helpers.server import most_in_any_window
from helpers.stores import Process, RealServer, now

import aiorate
from aiorate.redis import RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


async def test_closing_gives_slots_back_and_leaves_nothing(store: RealServer) -> None:
    """The next process finds the next slot free, and no task is left."""
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
    await one.stop()
    await other.stop()


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
    await other.stop()
    assert not others()


@pytest.mark.parametrize("turns", range(6))
async def test_a_request_as_the_last_limiter_closes_is_served(store: RealServer, turns: int) -> None:
    """The task is being cancelled, which does not concern a new limiter of the same client."""
    process = Process(store)
    other = RedisLimiter(process.client, "y", "10/s")
    await process.one()
    closing = asyncio.create_task(process.limiter.aclose())
    for _ in range(turns):
        await asyncio.sleep(0)

    assert 0.0 == await other.acquire()
    await closing
    await other.acquire()
    await other.aclose()
    assert not others()


async def test_a_closed_limiter_that_is_only_configured_stays_closed(store: RealServer) -> None:
    """And asks the store for nothing; ``start`` opens it."""
    process = Process(store)
    await process.one()
    await process.limiter.aclose()
    calls = process.client.calls
    process.limiter.apply("100,1,configure")
    process.limiter.delay()
    with pytest.raises(aiorate.LimiterClosed):
        await process.one()
    assert calls == process.client.calls

    process.limiter.apply("100,1,start")
    await process.one()
    assert 2 == len(process.granted)
    await process.stop()


async def test_a_limiter_that_is_started_while_it_closes_stays_open(store: RealServer) -> None:
    """An operator restarts it while the store is told of a charge: the next request is served."""
    process = Process(store, latency=0.01)
    process.limiter.charge(1)
    closing = asyncio.create_task(process.limiter.aclose())
    await asyncio.sleep(0.005)
    process.limiter.apply("10,1,start")
    async with asyncio.timeout(1):
        await process.one()
        await closing
        await process.one()

    assert 2 == len(process.granted)
    await process.stop()


async def test_slots_that_pass_while_it_closes_are_not_given_back(store: RealServer) -> None:
    """The task is busy with another limiter's call, and afterwards there is nothing left to return."""
    process = Process(store, "1000/s", horizon=0.02)
    other = RedisLimiter(process.client, "y", "10/s")
    tasks = process.ask(10)
    await asyncio.sleep(0.001)
    process.client.latency = 0.05
    asking = asyncio.create_task(other.acquire())
    await asyncio.sleep(0.001)
    calls = process.client.calls
    await process.limiter.aclose()

    assert 0 == process.client.calls - calls
    assert pytest.approx(0.101, abs=1e-3) == now()
    await asking
    await asyncio.wait(tasks)
    await other.aclose()
    assert not others()


async def test_closing_that_is_cancelled_breaks_nothing(store: RealServer) -> None:
    """A program that is in a hurry: the answer comes, and no caller waits for it."""
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
    await other.stop()
    assert not others()


@pytest.mark.parametrize("asks_once_more", [False, True])
async def test_slots_come_back_only_if_they_are_the_last(store: RealServer, asks_once_more: bool) -> None:
    """Not even if the last answer of all brought no slots: its value counts the slots of the others too."""
    closing, behind, last = processes = [Process(store, "100/s", horizon=1.0) for _ in range(3)]
    for process in processes:
        await process.one()
    await asyncio.sleep(0.05)
    tasks = closing.ask(50)
    await asyncio.sleep(0.001)
    for task in tasks:
        task.cancel()
    behind.ask(45)
    await asyncio.sleep(0.001)
    if asks_once_more:
        closing.limiter.resume()
        await asyncio.sleep(0.001)
    await closing.limiter.aclose()
    last.ask(45)
    await asyncio.wait(behind.tasks + last.tasks)

    instants = [instant for process in (behind, last) for instant in process.granted[1:]]
    assert 90 == len(instants)
    assert most_in_any_window(instants, 0.45) <= (last.limiter.bound(0.45) or 0)
    assert 90 == len({round(instant, 4) for instant in instants})
    for process in processes:
        await process.stop()


async def test_two_closes_at_once_both_end(store: RealServer) -> None:
    """``async with`` and a handler of a signal, say. The store hears of it once."""
    process = Process(store, "1000/s", latency=0.01, horizon=1.0)
    tasks = process.ask(20)
    await asyncio.sleep(0.025)
    calls = process.client.calls
    async with asyncio.timeout(5):
        await asyncio.gather(process.limiter.aclose(), process.limiter.aclose())

    assert 1 == process.client.calls - calls
    assert pytest.approx(0.045, abs=1e-3) == now()
    await asyncio.wait(tasks)
    await process.limiter.aclose()
    assert not others()


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_cancelled_close_does_not_cancel_the_other(store: RealServer, cancelled: int) -> None:
    """Both wait for one answer, and each gives up for itself."""
    process = Process(store, latency=0.05)
    process.limiter.charge(5)
    closing = [asyncio.create_task(process.limiter.aclose()) for _ in range(2)]
    await asyncio.sleep(0.01)
    closing[cancelled].cancel()
    await asyncio.wait(closing)

    assert closing[cancelled].cancelled()
    assert closing[1 - cancelled].result() is None
    assert pytest.approx(0.1, abs=1e-3) == now()
    await process.limiter.aclose()
    assert not others()
