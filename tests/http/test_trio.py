"""httpx2 and httpx under trio, against a real server: the same limit, in trio's scopes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import pytest
import trio
import trio.testing
from helpers.clients import HTTPX
from helpers.driving import LONG
from helpers.server import Server, in_thread

from aiorate import Limiter, TokenBucket, WaitTooLong
from aiorate.http import hooks, limit_transport
from aiorate.testing import ManualClock

PACKAGES = {"httpx2": httpx2, "httpx": httpx}


@pytest.fixture
def remote() -> Iterator[Server]:
    """A server in another thread, since it runs on asyncio."""
    with in_thread() as server:
        yield server


@pytest.fixture(params=HTTPX)
def client_with(request: pytest.FixtureRequest, remote: Server) -> Callable[..., Any]:
    """Return a function that makes a client whose requests pass the limiter."""
    name, way = request.param.split("-")
    package = PACKAGES[name]

    def make(limiter: Limiter, **options: Any) -> Any:
        if way == "hooks":
            return package.AsyncClient(base_url=remote.url, timeout=LONG, event_hooks=hooks(limiter, **options))
        transport = limit_transport(package.AsyncHTTPTransport(), limiter, **options)
        return package.AsyncClient(base_url=remote.url, timeout=LONG, transport=transport)

    return make


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; the wire sends no event here."""
    while not condition():
        await trio.sleep(0.001)


def test_request_given_up_in_line_is_never_sent(client_with: Any, remote: Server) -> None:
    """By a scope, by a deadline, or with its whole nursery; those behind it move up."""

    async def main() -> None:
        clock = ManualClock()
        limiter = Limiter(TokenBucket("10/s", burst=1), clock=clock)
        async with client_with(limiter) as client, trio.open_nursery() as nursery:
            await client.get("/first")
            scope, deadline = trio.CancelScope(), trio.CancelScope()

            async def get(path: str, scope: trio.CancelScope) -> None:
                with scope:
                    await client.get(path)

            async def in_line(count: int) -> None:
                await until(lambda: limiter.statistics().waiting == count)

            nursery.start_soon(get, "/scope", scope)
            await in_line(1)
            nursery.start_soon(get, "/deadline", deadline)
            await in_line(2)
            nursery.start_soon(get, "/stays", trio.CancelScope())
            await in_line(3)
            async with trio.open_nursery() as doomed:
                doomed.start_soon(get, "/nursery", trio.CancelScope())
                await in_line(4)
                doomed.cancel_scope.cancel()
            deadline.deadline = trio.current_time()
            scope.cancel()
            await until(lambda: limiter.statistics().cancelled == 3)

            assert (1, 1) == (limiter.statistics().waiting, limiter.statistics().granted)
            clock.advance(0.1)
            await until(lambda: len(remote.arrivals) == 2)
        assert (2, 0) == (limiter.statistics().granted, clock.timers)

    trio.run(main)

    assert ["/first", "/stays"] == remote.paths


def test_one_limiter_serves_asyncio_and_then_trio(client_with: Any, remote: Server) -> None:
    """A script may call `asyncio.run` for one task and `trio.run` for another: the server counts both."""
    limiter = Limiter(TokenBucket("3/day", burst=3))

    async def main() -> None:
        async with client_with(limiter, max_wait=0) as client:
            await client.get("/")

    asyncio.run(main())
    trio.run(main)
    asyncio.run(main())
    with pytest.raises(WaitTooLong):
        trio.run(main)

    assert 3 == len(remote.arrivals)
