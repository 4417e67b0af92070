"""Limits for real clients of httpx2, httpx and aiohttp that talk to a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import httpx2
import httpx_retries
import pytest
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector
from helpers.clients import HTTPX, client_of, each_client, fetching
from helpers.driving import LONG
from helpers.server import Server, bucket, get, in_line, session_of

from aiorate import Limiter, LimiterClosed, LineFull, WaitTooLong
from aiorate.aiohttp import cost, middleware
from aiorate.http import hooks, limit_transport
from aiorate.testing import ManualClock

pytestmark = pytest.mark.asyncio
leaping = pytest.mark.asyncio(loop_factories=["leaping"])
each_of_httpx = pytest.mark.parametrize("kind", HTTPX)
PACKAGES: dict[str, Any] = {"httpx2": httpx2, "httpx": httpx}


# Every client.


@each_client
async def test_each_request_is_sent_at_its_instant_and_not_before(kind: str, server: Server) -> None:
    """The clock decides when, and a real server sees exactly those requests."""
    clock = ManualClock()
    limiter = Limiter("10/s", clock=clock)
    async with fetching(kind, limiter) as fetch, asyncio.TaskGroup() as tasks:
        sent = [tasks.create_task(fetch(server.url)) for _ in range(4)]
        await in_line(limiter, 3)

        for tenths in range(4):
            await server.arrived(1 + tenths)
            assert (limiter.statistics().granted, limiter.statistics().waiting) == (1 + tenths, 3 - tenths)
            await clock.run(0.1)

    assert [task.result() for task in sent] == [200] * 4
    assert len(server.arrivals) == 4


@each_client
async def test_cancelled_while_waiting_spends_and_sends_nothing(kind: str, server: Server) -> None:
    """Also where wait_for() or a task group cancelled it."""
    limiter = bucket(burst=1)
    assert limiter.try_acquire()
    async with fetching(kind, limiter) as fetch:
        task = asyncio.ensure_future(fetch(server.url))
        await in_line(limiter, 1)

        task.cancel()
        await asyncio.wait([task])

    counts = limiter.statistics()
    assert task.cancelled()
    assert (counts.granted, counts.cancelled, counts.waiting) == (1, 1, 0)
    assert server.connections == 0


@each_client
async def test_the_key_is_the_origin_unless_told_otherwise(kind: str, server: Server) -> None:
    """Two servers have two limiters, which a mapping may make; a third has none, which is an error."""

    class OnDemand(dict[str, Limiter]):
        def __missing__(self, key: str) -> Limiter:
            if len(self) == 2:
                raise KeyError(key)
            return self.setdefault(key, bucket())

    limiters = OnDemand()
    async with Server() as other, Server() as third, fetching(kind, limiters) as fetch:
        for url in ("/a", "/b"):
            await fetch(server.url + url)
        await fetch(other.url)
        with pytest.raises(LookupError, match=third.url):
            await fetch(third.url)

        assert {server.url: 2, other.url: 1} == {key: limiter.statistics().granted for key, limiter in limiters.items()}
        assert third.connections == 0


@each_client
async def test_errors_of_the_limiter_come_through(kind: str, server: Server) -> None:
    """Unchanged, at once, with nothing sent; aiohttp turns some TimeoutErrors into ClientOSError, but not these."""
    limiter = bucket(burst=1, rate="1/min", max_waiting=1)
    assert limiter.try_acquire()
    async with fetching(kind, limiter, max_wait=30) as fetch:
        with pytest.raises(WaitTooLong, match="would wait 60 s, but max_wait is 30 s") as long:
            await fetch(server.url)
        waiting = asyncio.create_task(limiter.acquire())
        await in_line(limiter, 1)
        with pytest.raises(LineFull, match="max_waiting=1") as full:
            await fetch(server.url)
        await limiter.aclose()
        with pytest.raises(LimiterClosed, match="start"):
            await fetch(server.url)
        await asyncio.wait([waiting])

    assert isinstance(waiting.exception(), LimiterClosed)
    assert not isinstance(long.value, ClientError | httpx.HTTPError | httpx2.HTTPError)
    assert not isinstance(full.value, ClientError | httpx.HTTPError | httpx2.HTTPError)
    assert server.arrivals == []
    assert limiter.statistics().granted == 1


@each_client
async def test_waiting_holds_no_connection(kind: str, server: Server) -> None:
    """Otherwise a full line would starve all other users of the pool, and end in PoolTimeout."""
    limiter = bucket(burst=1)
    async with _of_one_connection(kind, limiter) as client:
        await _get(client, server.url)
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(_get(client, server.url)) for _ in range(3)]
            await in_line(limiter, 3)

            other = await _get(client, f"{server.url}/unlimited", free=True)

            for task in waiting:
                task.cancel()

    assert other == 200
    assert server.paths == ["/", "/unlimited"]
    assert {arrival.connection for arrival in server.arrivals} == {1}


def _of_one_connection(kind: str, limiter: Limiter) -> Any:
    if kind == "aiohttp":
        timeout = ClientTimeout(connect=LONG)
        return ClientSession(middlewares=[middleware(limiter)], connector=TCPConnector(limit=1), timeout=timeout)
    package = PACKAGES[kind.partition("-")[0]]
    options = {"limits": package.Limits(max_connections=1), "verify": False}
    timeout = package.Timeout(LONG, pool=0.05)
    if kind.endswith("hooks"):
        return package.AsyncClient(event_hooks=hooks(limiter), timeout=timeout, **options)
    return package.AsyncClient(transport=limit_transport(package.AsyncHTTPTransport(**options), limiter), timeout=timeout)


async def _get(client: Any, url: str, free: bool = False) -> int:
    if isinstance(client, ClientSession):
        if free:
            with cost(0):
                return await get(client, url)
        return await get(client, url)
    status: int = (await client.get(url, extensions={"aiorate": {"cost": 0}} if free else None)).status_code
    return status


# httpx2 and httpx.


@each_of_httpx
async def test_authentication_that_sends_twice_pays_twice(kind: str, server: Server) -> None:
    """An httpx Auth would miss the challenge; the limiter does not."""

    class Again(PACKAGES[kind.partition("-")[0]].Auth):  # type: ignore[misc]
        def auth_flow(self, request: Any) -> Any:
            yield request
            yield request

    limiter = bucket()
    async with client_of(kind, limiter) as client:
        await client.get(server.url, auth=Again())

    assert 2 == limiter.statistics().granted == len(server.arrivals)


async def test_hooks_do_not_see_the_attempts_of_a_retry_transport(server: Server) -> None:
    """The documentation warns of it; if it ever changes, so should the page."""
    limiter = bucket()
    transport = httpx_retries.RetryTransport(retry=httpx_retries.Retry(total=5, backoff_factor=0))
    async with httpx.AsyncClient(transport=transport, event_hooks=hooks(limiter)) as client:
        await client.get(f"{server.url}/flaky/2")

    assert (limiter.statistics().granted, len(server.arrivals)) == (1, 3)


@leaping
@each_of_httpx
async def test_no_timeout_of_httpx_covers_the_wait(kind: str, server: Server) -> None:
    """A request in line is not a slow request."""
    clock = ManualClock()
    limiter = bucket(burst=1, clock=clock)
    assert limiter.try_acquire()
    loop: Any = asyncio.get_running_loop()
    async with client_of(kind, limiter) as client:
        request = asyncio.create_task(client.get(server.url))
        await in_line(limiter, 1)

        await loop.leap(100 * LONG)
        await clock.run(0.1)

        assert (await request).status_code == 200


@each_of_httpx
async def test_a_request_of_httpx_may_have_another_cost_and_max_wait(kind: str, server: Server) -> None:
    """Costs come from a function of the request; a single request may give another, on all its hops."""
    limiter = bucket(burst=20)
    async with client_of(kind, limiter, cost=lambda request: int(request.headers["weight"]), max_wait=30) as client:
        await client.get(server.url, headers={"weight": "5"})
        assert limiter.statistics().granted == 5

        await client.get(f"{server.url}/redirect/1", extensions={"aiorate": {"cost": 7}}, follow_redirects=True)
        assert limiter.statistics().granted == 5 + 2 * 7

        await client.get(server.url, headers={"weight": "0"})
        with pytest.raises(WaitTooLong, match=r"max_wait is 0\.5 s"):
            await client.get(server.url, headers={"weight": "10"}, extensions={"aiorate": {"max_wait": 0.5}})
        assert limiter.statistics().granted == 5 + 2 * 7
        limiter.pause(60)
        task = asyncio.create_task(client.get(server.url, headers={"weight": "1"}, extensions={"aiorate": {"max_wait": None}}))
        await in_line(limiter, 1)
        await limiter.aclose()
        with pytest.raises(LimiterClosed):
            await task

    assert len(server.arrivals) == 4


# aiohttp.


async def test_the_handshake_of_a_websocket_pays(server: Server) -> None:
    """It pays once; messages afterwards are not limited."""
    limiter = bucket()
    async with session_of(server, limiter) as session, session.ws_connect("/ws") as socket:
        for word in ("a", "b", "c"):
            await socket.send_str(word)
            assert (await socket.receive()).data == word

    assert limiter.statistics().granted == 1


async def test_a_request_of_aiohttp_may_have_another_cost(server: Server) -> None:
    """Inside `cost`, it is that instead of what a function says, on all hops."""
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
        with pytest.raises(error, match="0: not limited"), cost(permits):
            pass


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
async def test_two_remedies_against_the_total_timeout(server: Server) -> None:
    """Other timeouts, none of which covers the wait; or the limiter entered before the request."""
    timeouts = ClientTimeout(total=None, connect=LONG, sock_connect=LONG, sock_read=LONG), ClientTimeout(total=LONG)
    for timeout in timeouts:
        clock = ManualClock()
        limiter = bucket(burst=1, clock=clock)
        assert limiter.try_acquire()
        loop: Any = asyncio.get_running_loop()

        async def fetch(session: ClientSession, limiter: Limiter = limiter) -> int:
            async with limiter:
                return await get(session)

        async with ClientSession(server.url, timeout=timeout, middlewares=[middleware(limiter)] * (timeout.total is None)) as session:
            request = asyncio.create_task(get(session) if timeout.total is None else fetch(session))
            await in_line(limiter, 1)

            await loop.leap(100 * LONG)
            await clock.run(0.1)

            assert await request == 200
