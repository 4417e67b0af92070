"""A real HTTP server on loopback that records each request, its instant and its connection, and helpers for tests of HTTP clients."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass
from time import get_clock_info, monotonic_ns
from typing import TYPE_CHECKING, Any, Self

from aiohttp import ClientSession, ClientTimeout, web

from aiorate import Limiter, TokenBucket
from aiorate.aiohttp import middleware
from aiorate.testing import ManualClock
from helpers.driving import LONG, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from aiohttp.typedefs import Handler

    from aiorate.http import Feedback


_SAID = web.RequestKey("said", dict) if hasattr(web, "RequestKey") else "said"


@dataclass(slots=True)
class Arrival:
    """One request, as the server saw it."""

    path: str
    instant: int
    """`time.monotonic_ns()` when its head had been read."""
    connection: int
    """The number of its connection, from 1."""
    status: int = 0
    """The status of the answer; 0 before there is one."""


class Server:
    """``async with Server() as server:`` and then ``server.url``, ``server.arrivals`` and ``server.connections``.

    ``/redirect/3`` redirects three times, ``/flaky/2`` answers 503 twice (and asks for no pause) and 200 from then on, ``/stream``
    sends its head and ``first``, then waits for ``go.set()`` before it sends ``last``; ``/ws`` is a WebSocket that echoes. Any other path
    is answered with ``ok``. `answers` sets status and headers of the next answers, `enforce` sets a limit.
    """

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.connections = 0
        """The number of connections accepted."""
        self.url = ""
        self.go = asyncio.Event()
        self._seen: Counter[str] = Counter()
        self._more = asyncio.Event()
        self._numbers: dict[object, int] = {}
        self._next: deque[tuple[int, Mapping[str, str]]] = deque()
        self._limit: _Limit | None = None
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
        """The paths of all requests, in order of arrival."""
        return [arrival.path for arrival in self.arrivals]

    async def arrived(self, count: int) -> None:
        """Return when ``count`` requests have arrived; TimeoutError if they never do."""
        async with asyncio.timeout(LONG):
            while len(self.arrivals) < count:
                self._more.clear()
                await self._more.wait()

    @property
    def refused(self) -> int:
        """The number of requests answered with 429."""
        return sum(arrival.status == 429 for arrival in self.arrivals)

    def answers(self, *each: tuple[int, Mapping[str, str]]) -> None:
        """Set status and additional headers of the next answers, one after the other. A status of 0 changes nothing."""
        self._next.extend(each)

    def enforce(self, permits: int, window: float, *, sliding: bool = False) -> None:
        """From now on, allow ``permits`` requests per ``window`` seconds: in windows from the first request on, or in any window.

        Others get 429 and Retry-After, in seconds with a fraction. Unless ``sliding``, every answer reports what is left of its window.
        """
        self._limit = _Limit(permits, round(window * SECOND), sliding)

    def _accept(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        protocol = server()
        self.connections += 1
        self._numbers[protocol] = self.connections
        return protocol

    @web.middleware
    async def _remember(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        arrival = Arrival(request.path, monotonic_ns(), self._numbers[request.protocol])
        self.arrivals.append(arrival)
        self._seen[request.path] += 1
        self._more.set()
        said = [self._next.popleft()] if self._next else []
        if self._limit is not None:
            said.append(self._limit.answer(arrival.instant))
        request[_SAID] = {name: text for _, headers in said for name, text in headers.items()}
        status = next((status for status, _ in said if status), 0)
        response = web.Response(status=status) if status >= 400 else await handler(request)
        if status and not response.prepared:
            response.set_status(status)
        if not response.prepared:
            response.headers.update(request[_SAID])
        arrival.status = response.status
        return response

    async def _ok(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _redirect(self, request: web.Request) -> web.Response:
        left = int(request.match_info["left"])
        return web.Response(status=302, headers={"Location": f"/redirect/{left - 1}" if left > 1 else "/end"})

    async def _flaky(self, request: web.Request) -> web.Response:
        well = self._seen[request.path] > int(request.match_info["failures"])
        return web.Response(status=200 if well else 503, headers={} if well else {"Retry-After": "0"})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=request[_SAID])
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


class _Limit:
    """At most ``permits`` requests per ``window`` ns."""

    def __init__(self, permits: int, window: int, sliding: bool) -> None:
        self.permits, self.window, self.sliding = permits, window, sliding
        self.allowed: list[int] = []  # instants
        self.begin: int | None = None

    def answer(self, now: int) -> tuple[int, Mapping[str, str]]:
        """The status and the headers of the answer to a request that arrived now."""
        if self.sliding:
            self.allowed = [instant for instant in self.allowed if now - instant < self.window]
        elif self.begin is None or now - self.begin >= self.window:
            self.allowed, self.begin = [], now
        left = self.permits - len(self.allowed)
        if left:
            self.allowed.append(now)
        if self.sliding:
            return (0, {}) if left else (429, {"Retry-After": _seconds(self.allowed[0] + self.window - now)})
        assert self.begin is not None
        rest = _seconds(self.begin + self.window - now)
        if not left:
            return 429, {"Retry-After": rest}
        return 0, {"X-RateLimit-Limit": str(self.permits), "X-RateLimit-Remaining": str(left - 1), "X-RateLimit-Reset-After": rest}


def _seconds(ns: int) -> str:
    return f"{ns // SECOND}.{ns % SECOND:09}"


class Observed(Limiter):
    """A limiter that notes each feedback: how many permits may be granted in all, and at least until when."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.told: list[tuple[int, int]] = []
        """(permits that may be granted in all, reading of `time.monotonic_ns` until which that holds)."""
        self.feedback: list[Feedback] = []

    def observe(self, feedback: Any, *, jitter: Any = 0) -> None:
        reading = monotonic_ns()
        super().observe(feedback, jitter=jitter)
        if feedback is not None:
            self.feedback.append(feedback)
            granted = self.statistics().granted
            if feedback.pause:
                self.told.append((granted, reading + round(feedback.pause * SECOND)))
            for quota in feedback.quotas:
                if quota.remaining and quota.reset:
                    self.told.append((granted + quota.remaining, reading + round(quota.reset * SECOND)))

    def check(self, arrivals: Sequence[Arrival]) -> None:
        """Assert that the server saw at most that many requests. Only arrivals are counted, since granted requests may be on the way."""
        tick = round(get_clock_info("monotonic").resolution * SECOND)  # which trio's clock does not have: on Linux a nanosecond
        instants = sorted(arrival.instant + tick for arrival in arrivals)
        for allowed, until in self.told:
            assert [until - instant for instant in instants[allowed:] if instant < until] == []


@contextmanager
def in_thread() -> Iterator[Server]:
    """A server in another thread, for clients that do not run on asyncio."""
    begun = threading.Event()
    stops: list[Callable[[], object]] = []
    servers: list[Server] = []

    async def serve() -> None:
        async with Server() as server:
            over, loop = asyncio.Event(), asyncio.get_running_loop()
            servers.append(server)
            stops.append(lambda: loop.call_soon_threadsafe(over.set))
            begun.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    begun.wait()
    try:
        yield servers[0]
    finally:
        stops[0]()
        thread.join()


def most_in_any_window(instants: list[int], window: int) -> int:
    """The largest number of instants (ns) in any half-open window of that many ns."""
    instants = sorted(instants)
    most = begin = 0
    for end, instant in enumerate(instants):
        while instant - instants[begin] >= window:
            begin += 1
        most = max(most, end - begin + 1)
    return most


def bucket(burst: int = 10, rate: str = "10/s", **options: Any) -> Limiter:
    """A limiter that grants ``burst`` permits at once. After those requests wait, since its clock stands still unless one is given."""
    return Limiter(TokenBucket(rate, burst=burst), **{"clock": ManualClock(), **options})


async def in_line(limiter: Limiter, count: int) -> None:
    """Return when ``count`` requests wait; TimeoutError if they never do."""
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
    """Send a request, read the answer to its end, and return the status."""
    async with session.get(url, **options) as response:
        await response.read()
        return response.status
