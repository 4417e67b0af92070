"""A pause is for all processes, and so is its end: in virtual time, with two or more limiters that share only the store."""

from __future__ import annotations

import asyncio

import pytest
from helpers.stores import Process, RealServer, now, stop
from redis.exceptions import ConnectionError as NoConnection

from aiorate.http import Feedback

pytestmark = [pytest.mark.asyncio(loop_factories=["virtual"]), pytest.mark.usefixtures("stopped")]


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
