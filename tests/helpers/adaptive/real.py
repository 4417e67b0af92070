"""A real HTTP server on loopback that enforces the limit of a model, and real clients that look for it. In real time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from aiohttp import ClientSession, web
from httpx2 import AsyncClient

from aiorate.aiohttp import middleware
from aiorate.http import hooks
from helpers.adaptive.servers import SECOND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from helpers.adaptive.servers import Server

__all__ = ["CLIENTS", "Seen", "follow", "serve"]

CLIENTS = ("aiohttp", "httpx2")


@dataclass(slots=True)
class Seen:
    """What the server saw: its address, and the seconds since its start at which it served and refused."""

    url: str = ""
    served: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)

    def given(self, begin: float, end: float) -> float:
        """The requests served per second between two seconds: the server's own meter."""
        return sum(begin <= at < end for at in self.served) / (end - begin)

    def refusals(self, begin: float = 0, end: float = float("inf")) -> float:
        """The share of the requests between two seconds that it refused."""
        refused = sum(begin <= at < end for at in self.refused)
        return refused / max(1, refused + sum(begin <= at < end for at in self.served))


@asynccontextmanager
async def serve(model: Server, *, status: int = 429) -> AsyncIterator[Seen]:
    """Serve on loopback as the model decides: 200, or ``status`` with the Retry-After of the model, if it names one."""
    seen = Seen()
    begin = monotonic_ns()

    async def decide(request: web.Request) -> web.Response:
        now = monotonic_ns() - begin
        answer = model.ask(now)
        (seen.served if answer.served else seen.refused).append(now / SECOND)
        if answer.service:
            await asyncio.sleep(answer.service / SECOND)
        if answer.served:
            return web.Response(text="ok")
        return web.Response(status=status, headers={} if answer.retry_after is None else {"Retry-After": f"{answer.retry_after:.3f}"})

    app = web.Application()
    app.router.add_get("/", decide)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    seen.url = f"http://{host}:{port}/"
    try:
        yield seen
    finally:
        await runner.cleanup()


async def follow(client: str, limiter: Any, seen: Seen, seconds: float, look: Callable[[float], object], *, tasks: int = 20) -> None:
    """Have tasks ask all the time for ``seconds``, through a client whose requests pass the limiter. ``look(second)``: every 0.1 s."""
    async with _fetching(client, limiter) as fetch:

        async def ask() -> None:
            while True:
                await fetch(seen.url)

        asking = [asyncio.ensure_future(ask()) for _ in range(tasks)]
        begin = monotonic_ns()
        try:
            while (passed := (monotonic_ns() - begin) / SECOND) < seconds:
                look(passed)
                await asyncio.sleep(0.1)
        finally:
            for task in asking:
                task.cancel()
            for task in asking:
                with suppress(asyncio.CancelledError):
                    await task


@asynccontextmanager
async def _fetching(client: str, limiter: Any) -> AsyncIterator[Callable[[str], Awaitable[object]]]:
    if client == "aiohttp":
        async with ClientSession(middlewares=[middleware(limiter)]) as session:

            async def fetch(url: str) -> object:
                async with session.get(url) as response:
                    return await response.read()

            yield fetch
    else:
        async with AsyncClient(timeout=60, event_hooks=hooks(limiter), verify=False) as httpx:
            yield httpx.get
