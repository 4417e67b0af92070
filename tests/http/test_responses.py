"""What responses say, through real clients, from a real server: which limiter hears it, and what is sent meanwhile.

In real time only what holds on any machine. Exact figures are in tests/limiter/test_observe.py, and the reading of headers is in
tests/http/test_feedback.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import aiohttp
import httpx
import httpx_retries
import pytest
from helpers.clients import client_of, each_client, fetching
from helpers.driving import one_loop
from helpers.server import Observed, Server, bucket, get, session_of

from aiorate import Budget, KeyedLimiter, TokenBucket
from aiorate.aiohttp import middleware
from aiorate.http import limit_transport
from aiorate.testing import ManualClock

LEFT = {"x-ratelimit-remaining": "2", "x-ratelimit-reset": "9"}


# Which limiter hears it.


@one_loop
@each_client
async def test_responses_are_observed_unless_that_is_turned_off(kind: str, server: Server) -> None:
    """On by default, for users who do not know of 429."""
    for options, paused_until in (({}, 5.0), ({"feedback": True}, 5.0), ({"feedback": False}, None)):
        limiter = bucket()
        server.answers((429, {"Retry-After": "5"}))
        async with fetching(kind, limiter, **options) as fetch:
            assert await fetch(server.url) == 429

        assert paused_until == limiter.statistics().paused_until


@one_loop
@each_client
async def test_a_429_pauses_the_origin_that_sent_it(kind: str, server: Server) -> None:
    """Another server is not concerned."""
    clock = ManualClock()
    limiters = KeyedLimiter[str](lambda key: bucket(clock=clock))
    async with Server() as other:
        async with fetching(kind, limiters) as fetch:
            server.answers((429, {"Retry-After": "5"}))
            assert [429, 200, 200] == [await fetch(server.url), await fetch(other.url), await fetch(other.url)]

        assert [5.0, None] == [limiters[url].statistics().paused_until for url in (server.url, other.url)]
        assert not limiters[server.url].try_acquire()
        assert limiters[other.url].try_acquire()


@one_loop
@each_client
async def test_a_global_limit_pauses_what_all_keys_share(kind: str, server: Server) -> None:
    """Discord's 429 with X-RateLimit-Global."""
    clock = ManualClock()
    keyed: KeyedLimiter[str] = KeyedLimiter(lambda key: bucket(clock=clock), shared=bucket(burst=50, clock=clock))
    server.answers((429, {"Retry-After": "5", "X-RateLimit-Global": "true"}))
    async with fetching(kind, keyed, key=lambda request: request.url.path) as fetch:
        await fetch(f"{server.url}/channels/1")

    assert keyed.shared is not None
    assert [5.0, None] == [keyed.shared.statistics().paused_until, keyed["/channels/1"].statistics().paused_until]
    assert not keyed.try_acquire("/channels/2")


@one_loop
@each_client
async def test_a_budget_is_only_informed(kind: str, server: Server) -> None:
    """Reservations surround the call, so a request takes nothing; and a pause holds reservations."""
    budget = Budget(requests=TokenBucket("10/s", burst=10), clock=ManualClock())
    server.answers((0, {}), (0, LEFT), (429, {"Retry-After": "5"}))
    async with fetching(kind, budget) as fetch:
        left = []
        for _ in range(3):
            await fetch(server.url)
            left.append((budget.available("requests"), budget.delay(requests=1)))

    assert [(10, 0.0), (2, 0.0)] == left[:2]
    assert left[2][1] == 5.0


@one_loop
@each_client
async def test_request_that_costs_nothing_passes_the_limiter_by(kind: str, server: Server) -> None:
    """So does its response: the key may have no limiter at all."""
    limiter = bucket()
    key_of_none: Any = lambda request: {}[request]  # noqa: E731
    for limiters, options in ((limiter, {}), ({}, {}), ({}, {"key": key_of_none})):
        server.answers((429, {"Retry-After": "5", **LEFT}))
        async with fetching(kind, limiters, **options) as fetch:
            assert await fetch(server.url, free=True) == 429

    assert (None, 10) == (limiter.statistics().paused_until, limiter.statistics().available)


@one_loop
@each_client
async def test_a_key_is_asked_for_once(kind: str, server: Server) -> None:
    """The limiter that let a request through hears the response, even if the key function returns another key by then."""
    clock, keys = ManualClock(), iter(["first", "second"])
    keyed: KeyedLimiter[str] = KeyedLimiter(lambda key: bucket(clock=clock))
    server.answers((429, {"Retry-After": "5"}))
    async with fetching(kind, keyed, key=lambda request: next(keys)) as fetch:
        await fetch(server.url)

    assert ["first"] == list(keyed)
    assert keyed["first"].statistics().paused_until == 5.0


@one_loop
@each_client
async def test_a_response_survives_the_end_of_its_limiter(kind: str, server: Server) -> None:
    """A program closes its limiters while responses are on their way."""
    keyed: KeyedLimiter[str] = KeyedLimiter(lambda key: bucket())
    limiter = bucket()
    for limiters, closed in ((keyed, keyed), (limiter, limiter)):
        server.answers((0, LEFT))
        async with fetching(kind, limiters) as fetch:
            request = asyncio.ensure_future(fetch(server.url))
            await server.arrived(len(server.arrivals) + 1)
            await closed.aclose()
            assert await request == 200


# Redirects, retries, streams.


@one_loop
@each_client
async def test_each_hop_of_a_redirect_is_observed(kind: str, server: Server) -> None:
    """A server tells what remains with the 302 too."""
    limiter = Observed(TokenBucket("10/s", burst=10), clock=ManualClock())
    server.answers(*((0, {"X-RateLimit-Remaining": str(remaining), "X-RateLimit-Reset": "9"}) for remaining in (4, 3, 2)))
    async with fetching(kind, limiter) as fetch:
        assert await fetch(f"{server.url}/redirect/2") == 200

    assert [4, 3, 2] == [feedback.quotas[0].remaining for feedback in limiter.feedback]
    assert (3, 2) == (limiter.statistics().granted, limiter.statistics().available)


@one_loop
@pytest.mark.parametrize("kind", ["httpx-transport", "aiohttp"])
async def test_each_attempt_of_a_retry_pays_and_is_observed(kind: str, server: Server) -> None:
    """Where the limiter is innermost, or listed last."""
    limiter = Observed(TokenBucket("10/s", burst=10), clock=ManualClock())
    if kind == "aiohttp":

        async def again(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
            response = await handler(request)
            return await again(request, handler) if response.status == 503 else response

        async with session_of(server, limiter) as session:
            await get(session, "/flaky/2", middlewares=[again, middleware(limiter)])
    else:
        transport = httpx_retries.RetryTransport(
            transport=limit_transport(httpx.AsyncHTTPTransport(), limiter), retry=httpx_retries.Retry(total=5, backoff_factor=0)
        )
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get(f"{server.url}/flaky/2")

    assert 3 == limiter.statistics().granted == len(server.arrivals)
    assert [0.0, 0.0] == [feedback.pause for feedback in limiter.feedback]  # the server asks for no pause


@one_loop
@each_client
async def test_a_stream_is_observed_at_its_head(kind: str, server: Server) -> None:
    """The body may take minutes, in which other requests are made."""
    limiter = bucket()
    server.answers((0, LEFT))
    url = f"{server.url}/stream"
    if kind == "aiohttp":
        async with session_of(server, limiter) as session, session.get(url) as response:
            available = limiter.statistics().available
            server.go.set()
            body = await response.read()
    else:
        async with client_of(kind, limiter) as client, client.stream("GET", url) as response:
            available = limiter.statistics().available
            server.go.set()
            body = await response.aread()

    assert (2, b"firstlast") == (available, body)


# Nonsense on the wire.


NAMES = ("Retry-After", "RateLimit", "RateLimit-Policy", "X-RateLimit-Remaining", "X-RateLimit-Reset", "x-ratelimit-limit", "Date", "Age")


GARBAGE: tuple[bytes, ...] = (
    b"",
    b"soon",
    b"-1",
    b"\xff\xfe\x80",
    "\u0663\u0660".encode(),
    b'"default";r=1;t=',
    b'"default";r=' + b"9" * 500,
    b"nan",
    b"0x10",
    b'"' * 99,
    b"Fri, 99 Foo 9999 99:99:99 GMT",
)


@asynccontextmanager
async def answering(raw: bytes) -> AsyncIterator[str]:
    """Return the URL of a server that answers every request with these bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as listener:
        host, port = listener.sockets[0].getsockname()
        yield f"http://{host}:{port}"


@one_loop
@each_client
async def test_garbage_on_the_wire_does_nothing(kind: str) -> None:
    """No request fails for it, and no limiter changes: neither on a success, nor where a status throttles without a time."""
    for value, (status, paused_until) in product(GARBAGE, ((b"200 OK", None), (b"429 No", 1.0))):
        limiter = bucket()
        fields = b"".join(name.encode() + b": " + value + b"\r\n" for name in NAMES)
        async with (
            answering(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n" + fields + b"\r\n") as url,
            fetching(kind, limiter) as fetch,
        ):
            assert int(status[:3]) == await fetch(url)

        assert paused_until == limiter.statistics().paused_until, value
        assert paused_until or limiter.statistics().available == 9


@one_loop
@each_client
async def test_fields_that_come_twice_count_by_the_later_end(kind: str) -> None:
    """Clients join repeated fields, or keep both."""
    limiter = bucket()
    head = b"HTTP/1.1 429 No\r\nContent-Length: 0\r\nConnection: close\r\nRetry-After: 3\r\nretry-after: 7\r\n\r\n"
    async with answering(head) as url, fetching(kind, limiter) as fetch:
        await fetch(url)

    assert limiter.statistics().paused_until == 7.0
