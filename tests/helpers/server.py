"""A real HTTP server on loopback that remembers what arrived, when, and on which connection; with it, what the
tests of HTTP clients share."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Self

from aiohttp import ClientSession, ClientTimeout, web

from aiorate import Limiter, TokenBucket
from aiorate.aiohttp import middleware
from aiorate.testing import ManualClock
from helpers.driving import LONG

if TYPE_CHECKING:
    from types import TracebackType

    from aiohttp.typedefs import Handler

__all__ = ["Arrival", "Server", "bucket", "get", "in_line", "most_in_any_window", "session_of"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, as the server saw it."""

    path: str
    instant: int
    """`time.monotonic_ns()` when its head had been read."""
    connection: int
    """Which connection brought it, counted from 1."""


class Server:
    """``async with Server() as server:`` and then ``server.url``, ``server.arrivals`` and ``server.connections``.

    ``/redirect/3`` redirects three times, ``/flaky/2`` answers 503 twice, without a pause, and 200 then, ``/stream`` sends its head and
    ``first``, then waits for ``go.set()`` before it sends ``last``; ``/ws`` is a WebSocket that echoes. All else is ``ok``.
    """

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.connections = 0
        """How many connections were ever accepted."""
        self.url = ""
        self.go = asyncio.Event()
        self._seen: Counter[str] = Counter()
        self._more = asyncio.Event()
        self._numbers: dict[object, int] = {}
        app = web.Application(middlewares=[self._remember])
        app.router.add_get("/redirect/{left}", self._redirect)
        app.router.add_get("/flaky/{failures}", self._flaky)
        app.router.add_get("/stream", self._stream)
        app.router.add_get("/ws", self._echo)
        app.router.add_route("*", "/{path:.*}", self._ok)
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        self._listener = await asyncio.get_running_loop().create_server(self._accept, "127.0.0.1", 0)
        host, port = self._listener.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.go.set()
        self._listener.close()
        await self._runner.cleanup()
        await self._listener.wait_closed()

    @property
    def paths(self) -> list[str]:
        """What arrived, in order."""
        return [arrival.path for arrival in self.arrivals]

    async def arrived(self, count: int) -> None:
        """Return when so many requests have arrived; TimeoutError if they never do."""
        async with asyncio.timeout(LONG):
            while len(self.arrivals) < count:
                self._more.clear()
                await self._more.wait()

    def _accept(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        protocol = server()
        self.connections += 1
        self._numbers[protocol] = self.connections
        return protocol

    @web.middleware
    async def _remember(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.arrivals.append(Arrival(request.path, monotonic_ns(), self._numbers[request.protocol]))
        self._seen[request.path] += 1
        self._more.set()
        return await handler(request)

    async def _ok(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _redirect(self, request: web.Request) -> web.Response:
        left = int(request.match_info["left"])
        return web.Response(status=302, headers={"Location": f"/redirect/{left - 1}" if left > 1 else "/end"})

    async def _flaky(self, request: web.Request) -> web.Response:
        well = self._seen[request.path] > int(request.match_info["failures"])
        return web.Response(status=200 if well else 503, headers={} if well else {"Retry-After": "0"})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await self.go.wait()
        await response.write(b"last")
        return response

    async def _echo(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket


def most_in_any_window(instants: list[int], window: int) -> int:
    """The most of the instants (ns) within any half-open window of so many ns."""
    instants = sorted(instants)
    most = begin = 0
    for end, instant in enumerate(instants):
        while instant - instants[begin] >= window:
            begin += 1
        most = max(most, end - begin + 1)
    return most


def bucket(burst: int = 10, rate: str = "10/s", **options: Any) -> Limiter:
    """A limiter that grants so many permits at once. Its clock stands still, unless one is given: then everybody waits."""
    return Limiter(TokenBucket(rate, burst=burst), **{"clock": ManualClock(), **options})


async def in_line(limiter: Limiter, count: int) -> None:
    """Return when so many requests wait; TimeoutError if they never do."""
    for _ in range(100_000):
        if limiter.statistics().waiting == count:
            return
        await asyncio.sleep(0)
    raise TimeoutError(f"{limiter.statistics().waiting} are in line, not {count}")


def session_of(server: Server, limiter: Any, *, session: dict[str, Any] | None = None, **options: Any) -> ClientSession:
    """An aiohttp session with the server as its base; options are those of middleware()."""
    settings = {"timeout": ClientTimeout(total=LONG), **(session or {})}
    return ClientSession(server.url, middlewares=[middleware(limiter, **options)], **settings)


async def get(session: ClientSession, url: str = "/", **options: Any) -> int:
    """The status of the answer, read to its end."""
    async with session.get(url, **options) as response:
        await response.read()
        return response.status
