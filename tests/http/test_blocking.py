"""Limits for the synchronous clients of httpx2 and httpx, which threads share: `blocking_hooks` and `limit_transport`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import httpx
import httpx2
import pytest
from helpers import server as servers
from helpers.clients import HTTPX
from helpers.driving import LONG
from helpers.server import Server
from helpers.threads import LoopThread, in_thread, waiting

from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket, WaitTooLong
from aiorate.http import blocking_hooks, hooks, limit_transport
from aiorate.testing import ManualClock


@pytest.fixture
def server() -> Iterator[Server]:
    with servers.in_thread() as server:
        yield server


@pytest.fixture(params=HTTPX)
def client_with(request: pytest.FixtureRequest, server: Server) -> Callable[..., Any]:
    """Return a function that makes a synchronous client whose requests pass the limiter."""
    name, way = request.param.split("-")
    package: Any = httpx2 if name == "httpx2" else httpx

    def make(limiter: Any, **options: Any) -> Any:
        if way == "hooks":
            return package.Client(base_url=server.url, timeout=LONG, event_hooks=blocking_hooks(limiter, **options))
        transport = limit_transport(package.HTTPTransport(), limiter, **options)
        return package.Client(base_url=server.url, timeout=LONG, transport=transport)

    return make


PACKAGES = pytest.mark.parametrize("package", [httpx2, httpx])


def bucket(burst: int = 10, **options: Any) -> Limiter:
    return Limiter(TokenBucket("10/s", burst=burst), **{"clock": ManualClock(), "scope": "process", **options})


def test_eight_threads_share_one_client(client_with: Any, server: Server) -> None:
    """Each request is sent at its instant, and none before."""
    clock = ManualClock()
    limiter = bucket(burst=1, clock=clock)
    with client_with(limiter) as client:
        asked: list[Future[Any]] = [in_thread(lambda: client.get("/").status_code) for _ in range(8)]
        for granted in range(1, 9):
            waiting(limiter, 8 - granted)
            assert granted == limiter.statistics().granted
            clock.advance(0.1)

        assert [200] * 8 == [future.result(LONG) for future in asked]
    assert 8 == len(server.arrivals)


def test_threads_and_tasks_share_the_limit(client_with: Any, server: Server) -> None:
    """Hooks of an asynchronous client in a loop take from the same limiter."""
    limiter = bucket(burst=6)

    async def fetch() -> None:
        async with httpx2.AsyncClient(base_url=server.url, event_hooks=hooks(limiter)) as client:
            for _ in range(3):
                await client.get("/")

    with client_with(limiter) as client, LoopThread() as loop:
        done = loop.start(fetch)
        for _ in range(3):
            client.get("/")
        done.result(LONG)
        with pytest.raises(WaitTooLong):
            client.get("/", extensions={"aiorate": {"max_wait": 0}})

    assert 6 == limiter.statistics().granted == len(server.arrivals)


def test_options_are_those_of_the_asynchronous_ones(client_with: Any, server: Server) -> None:
    """Cost, key and max_wait, and those that a request brings along."""
    limiters = {"a": bucket(), "b": bucket()}
    with client_with(limiters, key=lambda request: request.url.path[1], cost=lambda request: 4, max_wait=0) as client:
        client.get("/a")
        client.get("/a", extensions={"aiorate": {"cost": 5}})
        client.get("/a", extensions={"aiorate": {"cost": 0}})
        with pytest.raises(WaitTooLong):
            client.get("/a")
        with pytest.raises(LookupError, match="'c'"):
            client.get("/c")

    assert [9, 0] == [limiter.statistics().granted for limiter in limiters.values()]
    assert 3 == len(server.arrivals)


@PACKAGES
def test_a_transport_of_both_kinds_serves_both(package: Any) -> None:
    """A MockTransport is one: asynchronous clients use it with any limiter, synchronous ones with one of the process."""
    answered = package.MockTransport(lambda request: package.Response(200))
    wide, narrow = bucket(), Limiter("10/s")
    both = limit_transport(answered, wide)

    async def fetch(transport: Any) -> None:
        async with package.AsyncClient(transport=transport) as client:
            await client.get("http://a.test")

    asyncio.run(fetch(both))
    asyncio.run(fetch(limit_transport(answered, narrow)))
    with package.Client(transport=both) as client:
        client.get("http://a.test")
    with package.Client(transport=limit_transport(answered, narrow)) as client, pytest.raises(RuntimeError, match="scope='process'"):
        client.get("http://a.test")

    assert (2, 1) == (wide.statistics().granted, narrow.statistics().granted)
    assert isinstance(both, (package.BaseTransport, package.AsyncBaseTransport))


def test_the_scope_of_a_loop_is_refused(client_with: Any, server: Server) -> None:
    """Before anything is sent. The error says what to write."""
    for limiter in (Limiter("10/s"), KeyedLimiter[str](lambda key: "1/s")):
        with client_with(limiter) as client, pytest.raises(RuntimeError, match=r"scope='process'"):
            client.get("/")
    assert server.arrivals == []


def test_in_a_thread_whose_loop_runs_nothing_is_sent(client_with: Any, server: Server) -> None:
    """As in a notebook: a synchronous client would block the loop."""
    limiter = bucket()

    async def main() -> None:
        with client_with(limiter) as client, pytest.raises(RuntimeError, match="would block the event loop"):
            client.get("/")

    asyncio.run(main())
    assert ([], 0) == (server.arrivals, limiter.statistics().granted)


@PACKAGES
def test_an_asynchronous_client_is_told_which_hooks_to_take(package: Any) -> None:
    """It would call them, and block its loop."""

    async def main() -> None:
        transport = package.MockTransport(lambda request: package.Response(200))
        async with package.AsyncClient(transport=transport, event_hooks=blocking_hooks(bucket())) as client:
            with pytest.raises(RuntimeError, match="would block the event loop"):
                await client.get("http://a.test")

    asyncio.run(main())


def test_keys_are_limited_in_all_threads(client_with: Any, server: Server) -> None:
    """By origin, or by what key= says; each response is heeded by its own key, and a 429 pauses the line of all threads."""
    server.answers((429, {"Retry-After": "30"}))
    keyed = KeyedLimiter[str](lambda key: bucket(burst=2), scope="process")
    with client_with(keyed, key=lambda request: request.url.path) as client:
        assert 429 == client.get("/a").status_code
        assert [200, 200] == [in_thread(lambda: client.get("/b").status_code).result(LONG) for _ in range(2)]
        with pytest.raises(WaitTooLong):
            client.get("/b", extensions={"aiorate": {"max_wait": 0}})

    assert (30, 0.1) == (keyed["/a"].delay(), keyed["/b"].delay())


def test_a_budget_observes_the_responses(client_with: Any, server: Server) -> None:
    """The reservation is around the call; a 429 pauses it for all threads."""
    server.answers((429, {"Retry-After": "30"}))
    budget = Budget(requests=TokenBucket("10/s", burst=10), scope="process", clock=ManualClock())
    with client_with(budget) as client, budget.reserve():
        client.get("/")

    assert 30 == budget.delay()
