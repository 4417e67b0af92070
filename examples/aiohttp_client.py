"""An aiohttp session that keeps a limit for each server it talks to.

All it takes is ``middlewares=[middleware(limiters)]`` and a timeout that excludes the wait. The rest is two local servers that
count requests. A redirect costs a permit like any other request, and the search costs five.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from aiohttp import ClientSession, ClientTimeout, web
from aiohttp.test_utils import TestServer

from aiorate import KeyedLimiter, SlidingWindow
from aiorate.aiohttp import cost, middleware

# For servers that allow 10 per second, with a margin for the network. A burst of 10 can pay for the search.
limiters: KeyedLimiter[str] = KeyedLimiter(lambda origin: SlidingWindow("10/1.1s"))


async def fetch(session: ClientSession, url: str) -> None:
    async with session.get(url) as response:
        response.raise_for_status()
        await response.read()


class CountingServer(TestServer):
    """Counts requests by the tenth of a second in which they arrive."""

    def __init__(self) -> None:
        app = web.Application()
        app.router.add_get("/{path}", self.answer)
        super().__init__(app)
        self.arrivals: Counter[int] = Counter()
        self.begin = time.monotonic()

    async def answer(self, request: web.Request) -> web.Response:
        self.arrivals[int(10 * (time.monotonic() - self.begin))] += 1
        if request.path == "/moved":
            raise web.HTTPFound("/item")
        return web.Response(text="ok")


async def main() -> None:
    # The default is total=300, which includes the time in line.
    timeout = ClientTimeout(total=None, sock_connect=10, sock_read=60)
    busy, quiet = CountingServer(), CountingServer()
    async with busy, quiet:
        async with ClientSession(middlewares=[middleware(limiters)], timeout=timeout) as session, asyncio.TaskGroup() as tasks:
            for _ in range(20):
                tasks.create_task(fetch(session, str(busy.make_url("/item"))))
            tasks.create_task(fetch(session, str(quiet.make_url("/moved"))))
            with cost(5):
                tasks.create_task(fetch(session, str(busy.make_url("/search"))))

        for name, server in (("busy", busy), ("quiet", quiet)):
            counts = limiters[f"http://{server.host}:{server.port}"].statistics()
            tenths = " ".join(str(server.arrivals[tenth] or ".") for tenth in range(24))
            print(f"{name:>5}: {server.arrivals.total()} requests for {counts.granted} permits, the longest wait {counts.waited_max:.1f} s")
            print(f"       by tenth of a second: {tenths}")


if __name__ == "__main__":
    asyncio.run(main())
