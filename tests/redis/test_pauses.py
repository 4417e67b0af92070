"""A pause is for all processes, and so is its end: in virtual time, with two or more limiters that share only the store."""

from __future__ import annotations

import asyncio

import pytest
from helpers.stores import Process, RealServer, now, stop
from redis.exceptions import ConnectionError as NoConnection

import aiorate
from aiorate.http import Feedback

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


async def test_a_pause_holds_all_processes(store: RealServer) -> None:
    """One was told to wait; afterwards all go on, paced."""
    one, other = Process(store), Process(store)
    await one.one()
    one.limiter.observe(Feedback(429, pause=5.0))
    await asyncio.sleep(0.5)
    other.ask(3)
    one.ask(2)
    await asyncio.wait([*one.tasks, *other.tasks])

    assert [pytest.approx(5 + index / 10, abs=1e-2) for index in range(5)] == sorted(one.granted[1:] + other.granted)
    await stop(one, other)


async def test_a_pause_is_ended_for_all_processes(store: RealServer) -> None:
    """Processes in which requests wait ask now and then."""
    one, other = Process(store), Process(store)
    one.limiter.pause(3600)
    await asyncio.sleep(0.01)
    other.ask()
    await asyncio.sleep(10)
    one.limiter.resume()
    await asyncio.wait(other.tasks, timeout=5)

    assert [pytest.approx(10.5, abs=0.6)] == other.granted
    await stop(one, other)


async def test_the_longer_of_two_pauses_holds_for_all(store: RealServer) -> None:
    """Two responses told to wait, in either order, and also while the first is on its way to the store."""
    one, other = Process(store, latency=0.01), Process(store)
    one.limiter.pause(2)
    await asyncio.sleep(0.005)
    one.limiter.pause(5)
    one.limiter.pause(1)
    await asyncio.sleep(0.1)
    await other.one()

    assert [pytest.approx(5.005, abs=0.03)] == other.granted
    await stop(one, other)


async def test_a_longer_local_pause_outlasts_the_shared_one(store: RealServer) -> None:
    """The answer that the other is over was on its way when this one was made."""
    one, other = Process(store), Process(store, latency=0.05)
    one.limiter.pause(3)
    await asyncio.sleep(0.01)
    other.ask()
    await asyncio.sleep(0.5)
    one.limiter.resume()
    await asyncio.sleep(0.62)  # it has just asked again
    other.limiter.pause(5)
    await asyncio.wait(other.tasks)

    assert [pytest.approx(6.33, abs=0.01)] == other.granted  # each of two round trips came on top
    await stop(one, other)


async def test_closing_ends_the_wait_for_a_long_pause(store: RealServer) -> None:
    """The waiting request fails, and no timer is left that would ask whether the pause goes on."""
    one, other = Process(store), Process(store)
    one.limiter.pause(3600)
    await asyncio.sleep(0.01)
    (waiting,) = other.ask()
    await asyncio.sleep(0.5)
    other.limiter.charge(1)  # the answer says once more how long the pause is
    await asyncio.sleep(0.1)
    await other.limiter.aclose()
    await asyncio.wait([waiting])
    calls = other.client.calls
    await asyncio.sleep(10)

    assert isinstance(waiting.exception(), aiorate.LimiterClosed)
    assert calls == other.client.calls
    await stop(one)


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
    await stop(long, short, third)


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
    """Before the pause that was made meanwhile."""
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
    await stop(long, operator, third)


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
    await stop(one, other)


async def test_a_failed_recheck_of_a_pause_is_repeated(store: RealServer) -> None:
    """A waiting request hears of its end, although the store was down at the last recheck."""
    one, other = Process(store), Process(store)
    one.limiter.pause(3600)
    await asyncio.sleep(0.01)
    other.ask()
    await asyncio.sleep(0.5)
    other.client.error = NoConnection()
    await asyncio.sleep(0.7)
    other.client.error = None
    await asyncio.sleep(5)
    one.limiter.resume()
    await asyncio.wait(other.tasks, timeout=60)

    assert [pytest.approx(6.7, abs=0.51)] == other.granted
    await stop(one, other)


async def test_a_request_in_a_pause_learns_of_its_end_in_a_second(store: RealServer) -> None:
    """Also where no request of this process waited when the pause began."""
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


async def test_a_pause_without_waiters_is_not_rechecked(store: RealServer) -> None:
    """Neither while the line is empty, nor once the last request has given up, nor within the last second."""
    one, other = Process(store), Process(store)
    other.limiter.pause(60)
    await asyncio.sleep(0.01)
    (waiting,) = one.ask()
    await asyncio.sleep(1.5)
    waiting.cancel()
    await asyncio.sleep(2)
    calls = one.client.calls
    await asyncio.sleep(55.7)
    assert calls == one.client.calls
    one.ask()
    await asyncio.sleep(0.5)

    assert calls == one.client.calls
    await stop(one, other)
