"""Requests to aiohttp that wait: what they hold, which timeouts cover them, and what ends the wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from helpers.driving import LONG
from helpers.server import Server, bucket, get, in_line, session_of

from aiorate import LimiterClosed, LineFull, WaitTooLong
from aiorate.aiohttp import cost
from aiorate.testing import ManualClock

pytestmark = pytest.mark.asyncio
leaping = pytest.mark.asyncio(loop_factories=["leaping"])


async def test_waiting_holds_no_connection(server: Server) -> None:
    """Otherwise a full line would starve all other users of the connector."""
    limiter = bucket(burst=1)
    options = {"connector": TCPConnector(limit=1), "timeout": ClientTimeout(connect=LONG)}
    async with session_of(server, limiter, session=options) as session:
        await get(session)
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(get(session)) for _ in range(3)]
            await in_line(limiter, 3)

            with cost(0):
                other = await get(session, "/unlimited")

            for task in waiting:
                task.cancel()

    assert other == 200
    assert server.paths == ["/", "/unlimited"]
    assert {arrival.connection for arrival in server.arrivals} == {1}


@leaping
async def test_the_total_timeout_covers_the_wait(server: Server) -> None:
    """aiohttp's total is 300 s by default; the documentation says what to do about it. Nothing is spent."""
    limiter = bucket(burst=1)
    assert limiter.try_acquire()
    loop: Any = asyncio.get_running_loop()
    async with session_of(server, limiter) as session:
        request = asyncio.create_task(get(session))
        await in_line(limiter, 1)

        await loop.leap(2 * LONG)

        with pytest.raises(TimeoutError) as late:
            await request

    counts = limiter.statistics()
    assert not isinstance(late.value, WaitTooLong)
    assert (counts.granted, counts.cancelled, counts.waiting) == (1, 1, 0)
    assert server.connections == 0


@leaping
async def test_limiter_entered_before_the_request_avoids_timeouts(server: Server) -> None:
    """The other remedy, for sessions that keep their total."""
    clock = ManualClock()
    limiter = bucket(burst=1, clock=clock)
    assert limiter.try_acquire()
    loop: Any = asyncio.get_running_loop()

    async def fetch(session: ClientSession) -> int:
        async with limiter, session.get("/") as response:
            return response.status

    async with ClientSession(server.url, timeout=ClientTimeout(total=LONG)) as session:
        request = asyncio.create_task(fetch(session))
        await in_line(limiter, 1)

        await loop.leap(100 * LONG)
        await clock.run(0.1)

        assert await request == 200


async def test_cancelled_while_waiting_spends_and_sends_nothing(server: Server) -> None:
    """Also where wait_for() or a task group cancelled it."""
    limiter = bucket(burst=1)
    assert limiter.try_acquire()
    async with session_of(server, limiter) as session:
        task = asyncio.create_task(get(session))
        await in_line(limiter, 1)

        task.cancel()
        await asyncio.wait([task])

    counts = limiter.statistics()
    assert task.cancelled()
    assert (counts.granted, counts.cancelled, counts.waiting) == (1, 1, 0)
    assert server.connections == 0


async def test_errors_of_the_limiter_come_through(server: Server) -> None:
    """Unchanged, at once, with nothing sent; aiohttp turns some TimeoutErrors into ClientOSError, but not these."""
    limiter = bucket(burst=1, rate="1/min", max_waiting=1)
    assert limiter.try_acquire()
    async with session_of(server, limiter, max_wait=30) as session:
        with pytest.raises(WaitTooLong, match="would wait 60 s, but max_wait is 30 s") as long:
            await get(session)
        waiting = asyncio.create_task(limiter.acquire())
        await in_line(limiter, 1)
        with pytest.raises(LineFull, match="max_waiting=1") as full:
            await get(session)
        await limiter.aclose()
        with pytest.raises(LimiterClosed, match="start"):
            await get(session)
        await asyncio.wait([waiting])

    assert isinstance(waiting.exception(), LimiterClosed)
    assert not isinstance(long.value, ClientError)
    assert not isinstance(full.value, ClientError)
    assert server.arrivals == []
    assert limiter.statistics().granted == 1
