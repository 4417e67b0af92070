"""Limiting a real aiohttp session that talks to a real server."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientSession
from helpers.driving import SECOND
from helpers.server import Server, bucket, get, in_line, session_of

from aiorate import BurstCompensation, Limiter
from aiorate.aiohttp import cost, middleware
from aiorate.testing import ManualClock

if TYPE_CHECKING:
    from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

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


async def test_nothing_arrives_before_its_instant(server: Server) -> None:
    """In real time, at the server: the network delays requests and moves them closer together, but none ahead."""
    limiter = Limiter(BurstCompensation("100/s"))
    begin = monotonic_ns()
    async with session_of(server, limiter) as session:
        await asyncio.gather(*(get(session) for _ in range(20)))

    instants = sorted(arrival.instant - begin for arrival in server.arrivals)
    assert len(instants) == 20
    assert [k for k, at in enumerate(instants) if at < k * SECOND // 100] == []


async def test_each_hop_of_a_redirect_pays(server: Server) -> None:
    """The server counts requests, not calls."""
    limiter = bucket()
    async with session_of(server, limiter) as session:
        await get(session, "/redirect/2")

    assert server.paths == ["/redirect/2", "/redirect/1", "/end"]
    assert limiter.statistics().granted == 3


async def test_requests_repeated_by_an_outer_middleware_pay_again(server: Server) -> None:
    """So the limiter is listed last; listed first, it would see one request."""

    async def retry(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        while (response := await handler(request)).status == 503:
            response.release()
        return response

    limiter, outside = bucket(), bucket()
    async with ClientSession(server.url, middlewares=[middleware(outside), retry, middleware(limiter)]) as session:
        status = await get(session, "/flaky/2")

    assert status == 200
    assert len(server.arrivals) == 3
    assert (limiter.statistics().granted, outside.statistics().granted) == (3, 1)


async def test_retries_above_the_session_pay_again(server: Server) -> None:
    """As in a loop around the call."""
    limiter = bucket()
    async with session_of(server, limiter) as session:
        while await get(session, "/flaky/2") == 503:
            pass

    assert limiter.statistics().granted == len(server.arrivals) == 3


async def test_the_handshake_of_a_websocket_pays(server: Server) -> None:
    """It pays once; messages afterwards are not limited."""
    limiter = bucket()
    async with session_of(server, limiter) as session, session.ws_connect("/ws") as socket:
        for word in ("a", "b", "c"):
            await socket.send_str(word)
            assert (await socket.receive()).data == word

    assert limiter.statistics().granted == 1


async def test_a_stream_is_not_broken(server: Server) -> None:
    """The response is handed over with its head, before the server has made the rest."""
    async with session_of(server, bucket()) as session, session.get("/stream") as response:
        first = await response.content.readany()
        server.go.set()
        rest = await response.content.read()

    assert (first, rest) == (b"first", b"last")


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


@pytest.mark.parametrize(("permits", "error"), [(-1, ValueError), (True, TypeError), (1.5, TypeError), ("7", TypeError), (None, TypeError)])
async def test_a_wrong_cost_is_refused_where_it_is_written(permits: Any, error: type[Exception]) -> None:
    """Later it would fail somewhere inside aiohttp."""
    with pytest.raises(error, match=r"cost\(\) must be .*0: not limited"):
        cost(permits)


async def test_cost_above_capacity_is_refused_before_sending(server: Server) -> None:
    """It could only wait for ever."""
    limiter = bucket(burst=10)
    async with session_of(server, limiter) as session:
        with cost(11), pytest.raises(ValueError, match="10 is the most at once"):
            await get(session)

    assert server.arrivals == []
    assert limiter.statistics().granted == 0


async def test_a_full_key_does_not_hold_up_another(server: Server) -> None:
    """Each key has a separate line."""
    limiters = {"/a": bucket(burst=1), "/b": bucket(burst=1)}
    async with session_of(server, limiters, key=lambda request: request.url.path) as session:
        await get(session, "/a")
        task = asyncio.create_task(get(session, "/a"))
        await in_line(limiters["/a"], 1)

        await get(session, "/b")

        task.cancel()
        await asyncio.wait([task])
    assert server.paths == ["/a", "/b"]


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
