"""Limiting a real aiohttp session that talks to a real server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from helpers.server import Server, bucket, get, in_line, session_of

from aiorate import Limiter
from aiorate.aiohttp import cost, middleware
from aiorate.testing import ManualClock

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.asyncio


async def test_each_request_is_sent_at_its_instant_and_not_before(server: Server) -> None:
    """The clock decides when, and a real server sees exactly those requests."""
    clock = ManualClock()
    limiter = Limiter("10/s", clock=clock)
    async with session_of(server, limiter) as session, asyncio.TaskGroup() as tasks:
        sent = [tasks.create_task(get(session)) for _ in range(4)]
        await in_line(limiter, 3)

        for tenths in range(4):
            await server.arrived(1 + tenths)
            assert (limiter.statistics().granted, limiter.statistics().waiting) == (1 + tenths, 3 - tenths)
            await clock.run(0.1)

    assert [task.result() for task in sent] == [200] * 4
    assert len(server.arrivals) == 4


async def test_the_handshake_of_a_websocket_pays(server: Server) -> None:
    """It pays once; messages afterwards are not limited."""
    limiter = bucket()
    async with session_of(server, limiter) as session, session.ws_connect("/ws") as socket:
        for word in ("a", "b", "c"):
            await socket.send_str(word)
            assert (await socket.receive()).data == word

    assert limiter.statistics().granted == 1


async def test_cost_of_a_function_and_of_a_single_request(server: Server) -> None:
    """Costs come from a function of the request; inside `cost` another applies, on all hops."""
    limiter = bucket(burst=100)

    def granted() -> int:
        return limiter.statistics().granted

    async with session_of(server, limiter, cost=lambda request: int(request.headers["weight"])) as session:
        await get(session, headers={"weight": "5"})
        assert granted() == 5

        with cost(7):
            await get(session, "/redirect/1")
            with cost(1):
                await get(session)
            assert granted() == 5 + 2 * 7 + 1
            await asyncio.create_task(get(session))
            assert granted() == 5 + 3 * 7 + 1

        await get(session, headers={"weight": "0"})
        assert granted() == 5 + 3 * 7 + 1

    assert len(server.arrivals) == 6


async def test_a_wrong_cost_is_refused_where_it_is_written() -> None:
    """Later it would fail somewhere inside aiohttp."""
    table: list[tuple[Any, type[Exception]]] = [(-1, ValueError), (True, TypeError), (1.5, TypeError), ("7", TypeError), (None, TypeError)]
    for permits, error in table:
        with pytest.raises(error, match="0: not limited"):
            cost(permits)


async def test_the_key_is_the_origin_unless_told_otherwise(server: Server) -> None:
    """Two servers have two limiters; a third has none, which is an error."""
    limiters = {server.url: bucket()}
    async with Server() as other, Server() as third, session_of(server, limiters) as session:
        limiters[other.url] = bucket()
        for url in ("/a", "/b", f"{other.url}/c"):
            await get(session, url)
        with pytest.raises(LookupError, match=f"no limiter for '{third.url}'"):
            await get(session, third.url)

        assert [limiters[key.url].statistics().granted for key in (server, other)] == [2, 1]
        assert third.connections == 0


async def test_a_request_may_have_another_limiter_or_none(server: Server) -> None:
    """aiohttp replaces the session's middlewares with those of the request."""
    limiter, other = bucket(), bucket()
    async with session_of(server, limiter) as session:
        await get(session, middlewares=[middleware(other)])
        await get(session, middlewares=())

    assert (limiter.statistics().granted, other.statistics().granted) == (0, 1)
