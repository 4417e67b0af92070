"""Limits for real httpx2 and httpx clients that talk to a real server, by hooks and by a transport."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import httpx_retries
import pytest
from helpers.clients import HTTPX
from helpers.driving import LONG
from helpers.server import Server, bucket, in_line

from aiorate import Limiter, LimiterClosed, LineFull, WaitTooLong
from aiorate.http import hooks, limit_transport
from aiorate.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.asyncio


@pytest.fixture(params=HTTPX)
def client_with(request: pytest.FixtureRequest, server: Server) -> Callable[..., Any]:
    """Return a function that makes a client whose requests pass the limiter; options are those of hooks() and limit_transport()."""
    name, way = request.param.split("-")
    package = httpx2 if name == "httpx2" else httpx

    def make(limiter: Any, *, client: dict[str, Any] | None = None, inner: dict[str, Any] | None = None, **options: Any) -> Any:
        client, inner = {"timeout": LONG, **(client or {})}, inner or {}
        if way == "hooks":
            return package.AsyncClient(base_url=server.url, event_hooks=hooks(limiter, **options), **inner, **client)
        transport = limit_transport(package.AsyncHTTPTransport(**inner), limiter, **options)
        return package.AsyncClient(base_url=server.url, transport=transport, **client)

    make.package = package  # type: ignore[attr-defined]
    return make


async def test_each_request_is_sent_at_its_instant_and_not_before(client_with: Any, server: Server) -> None:
    """The clock decides when, and a real server sees exactly those requests."""
    clock = ManualClock()
    limiter = Limiter("10/s", clock=clock)
    async with client_with(limiter) as client, asyncio.TaskGroup() as tasks:
        sent = [tasks.create_task(client.get("/")) for _ in range(4)]
        await in_line(limiter, 3)

        for tenths in range(4):
            await server.arrived(1 + tenths)
            assert (1 + tenths, 3 - tenths) == (limiter.statistics().granted, limiter.statistics().waiting)
            await clock.run(0.1)

    assert [task.result().status_code for task in sent] == [200] * 4
    assert len(server.arrivals) == 4


async def test_authentication_that_sends_twice_pays_twice(client_with: Any, server: Server) -> None:
    """An httpx Auth would miss the challenge; the limiter does not."""

    class Again(client_with.package.Auth):  # type: ignore[misc]
        def auth_flow(self, request: Any) -> Any:
            yield request
            yield request

    limiter = bucket()
    async with client_with(limiter) as client:
        await client.get("/", auth=Again())

    assert 2 == limiter.statistics().granted == len(server.arrivals)


async def test_hooks_do_not_see_the_attempts_of_a_retry_transport(server: Server) -> None:
    """The documentation warns of it; if it ever changes, so should the page."""
    limiter = bucket()
    transport = httpx_retries.RetryTransport(retry=httpx_retries.Retry(total=5, backoff_factor=0))
    async with httpx.AsyncClient(transport=transport, event_hooks=hooks(limiter)) as client:
        await client.get(f"{server.url}/flaky/2")

    assert (limiter.statistics().granted, len(server.arrivals)) == (1, 3)


async def test_waiting_holds_no_connection(client_with: Any, server: Server) -> None:
    """Otherwise a full line would starve all other users of the pool, and end in PoolTimeout."""
    package = client_with.package
    limiter = bucket(burst=1)
    limits = package.Limits(max_connections=1)
    async with client_with(limiter, inner={"limits": limits}, client={"timeout": package.Timeout(LONG, pool=0.05)}) as client:
        await client.get("/")
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(client.get("/")) for _ in range(3)]
            await in_line(limiter, 3)

            other = await client.get("/unlimited", extensions={"aiorate": {"cost": 0}})

            for task in waiting:
                task.cancel()

    assert other.status_code == 200
    assert server.paths == ["/", "/unlimited"]
    assert {arrival.connection for arrival in server.arrivals} == {1}


@pytest.mark.asyncio(loop_factories=["leaping"])
async def test_no_timeout_of_the_client_covers_the_wait(client_with: Any) -> None:
    """A request in line is not a slow request."""
    clock = ManualClock()
    limiter = bucket(burst=1, clock=clock)
    assert limiter.try_acquire()
    loop: Any = asyncio.get_running_loop()
    async with client_with(limiter) as client:
        request = asyncio.create_task(client.get("/"))
        await in_line(limiter, 1)

        await loop.leap(100 * LONG)
        await clock.run(0.1)

        assert (await request).status_code == 200


async def test_cancelled_while_waiting_spends_and_sends_nothing(client_with: Any, server: Server) -> None:
    """Also where wait_for() or a task group cancelled it."""
    limiter = bucket(burst=1)
    assert limiter.try_acquire()
    async with client_with(limiter) as client:
        task = asyncio.create_task(client.get("/"))
        await in_line(limiter, 1)

        task.cancel()
        await asyncio.wait([task])

    counts = limiter.statistics()
    assert task.cancelled()
    assert (counts.granted, counts.cancelled, counts.waiting) == (1, 1, 0)
    assert server.connections == 0


async def test_cost_of_a_function_and_of_a_single_request(client_with: Any, server: Server) -> None:
    """Costs come from a function of the request; a single request may give another, on all its hops."""
    limiter = bucket(burst=100)
    async with client_with(limiter, cost=lambda request: int(request.headers["weight"])) as client:
        await client.get("/", headers={"weight": "5"})
        assert limiter.statistics().granted == 5

        await client.get("/redirect/1", extensions={"aiorate": {"cost": 7}}, follow_redirects=True)
        assert limiter.statistics().granted == 5 + 2 * 7

        await client.get("/", headers={"weight": "0"})
        assert limiter.statistics().granted == 5 + 2 * 7

    assert len(server.arrivals) == 4


async def test_the_key_is_the_origin_unless_told_otherwise(client_with: Any, server: Server) -> None:
    """A redirect to another server has another key; a mapping may make limiters for new keys."""

    class OnDemand(dict[str, Limiter]):
        def __missing__(self, key: str) -> Limiter:
            return self.setdefault(key, bucket())

    limiters = OnDemand()
    async with Server() as other, client_with(limiters) as client:
        for url in ("/a", "/b", f"{other.url}/c"):
            await client.get(url)
        counts = {key: limiter.statistics().granted for key, limiter in limiters.items()}
        assert {server.url: 2, other.url: 1} == counts


async def test_errors_of_the_limiter_come_through(client_with: Any, server: Server) -> None:
    """Unchanged, at once, with nothing sent; and not as an HTTPError, which is for errors on the wire."""
    limiter = bucket(burst=1, rate="1/min", max_waiting=0)
    assert limiter.try_acquire()
    async with client_with(limiter, max_wait=30) as client:
        with pytest.raises(LineFull, match="max_waiting=0") as full:
            await client.get("/")
        await limiter.aclose()
        with pytest.raises(LimiterClosed, match="start"):
            await client.get("/")

    assert not isinstance(full.value, client_with.package.HTTPError)
    assert server.arrivals == []
    assert limiter.statistics().granted == 1


async def test_max_wait_fails_at_once_and_a_request_may_set_its_own(client_with: Any, server: Server) -> None:
    """The client's timeouts do not cover the wait, so this is its only bound."""
    limiter = bucket(burst=1, rate="1/min")
    assert limiter.try_acquire()
    async with client_with(limiter, max_wait=30) as client:
        with pytest.raises(WaitTooLong, match="would wait 60 s, but max_wait is 30 s"):
            await client.get("/")
        with pytest.raises(WaitTooLong, match=r"max_wait is 0\.5 s"):
            await client.get("/", extensions={"aiorate": {"max_wait": 0.5}})
        task = asyncio.create_task(client.get("/", extensions={"aiorate": {"max_wait": None}}))
        await in_line(limiter, 1)

        await limiter.aclose()

        with pytest.raises(LimiterClosed):
            await task
    assert server.arrivals == []
