"""httpx2 and httpx under trio, against a real server: the same limit, in trio's scopes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing
from helpers.clients import HTTPX, client_of
from helpers.server import Server, in_thread

from aiorate import Limiter, TokenBucket, WaitTooLong
from aiorate.testing import ManualClock


@pytest.fixture
def remote() -> Iterator[Server]:
    """A server in another thread, since it runs on asyncio."""
    with in_thread() as server:
        yield server


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; the wire sends no event here."""
    while not condition():
        await trio.sleep(0.001)


@pytest.mark.parametrize("kind", HTTPX)
def test_request_given_up_in_line_is_never_sent(kind: str, remote: Server) -> None:
    """By a scope, by a deadline, or with its whole nursery; those behind it move up."""

    async def main() -> None:
        clock = ManualClock()
        limiter = Limiter(TokenBucket("10/s", burst=1), clock=clock)
        async with client_of(kind, limiter) as client, trio.open_nursery() as nursery:
            await client.get(remote.url + "/first")
            scope, deadline = trio.CancelScope(), trio.CancelScope()

            async def get(path: str, scope: trio.CancelScope) -> None:
                with scope:
                    await client.get(remote.url + path)

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


@pytest.mark.parametrize("kind", HTTPX)
def test_one_limiter_serves_asyncio_and_then_trio(kind: str, remote: Server) -> None:
    """A script may call `asyncio.run` for one task and `trio.run` for another: the server counts both."""
    limiter = Limiter(TokenBucket("3/day", burst=3))

    async def main() -> None:
        async with client_of(kind, limiter, max_wait=0) as client:
            await client.get(remote.url)

    asyncio.run(main())
    trio.run(main)
    asyncio.run(main())
    with pytest.raises(WaitTooLong):
        trio.run(main)

    assert 3 == len(remote.arrivals)
