"""An httpx2 client that sends at most 20 requests per second, from any number of tasks.

All it takes is ``event_hooks=hooks(limiter)``. The rest is a local server that records when requests arrive, so that there is
something to see. One request in ten is a search, which costs as much as five others. The code for httpx is the same.
"""

from __future__ import annotations

import asyncio
import time

import httpx2
from aiohttp import web
from aiohttp.test_utils import TestServer

from aiorate import Limiter
from aiorate.http import hooks

SEARCH = {"aiorate": {"cost": 5}}


async def main() -> None:
    arrivals: list[tuple[float, str]] = []

    async def answer(request: web.Request) -> web.Response:
        arrivals.append((time.monotonic(), request.path))
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/{path}", answer)
    limiter = Limiter("20/s")

    async with TestServer(app) as server:
        url = str(server.make_url("/"))
        async with httpx2.AsyncClient(base_url=url, event_hooks=hooks(limiter)) as client, asyncio.TaskGroup() as tasks:
            for number in range(20):
                if number % 10 == 9:
                    tasks.create_task(client.get("/search", extensions=SEARCH))
                else:
                    tasks.create_task(client.get("/item"))

    for instant, path in arrivals:
        print(f"{instant - arrivals[0][0]:6.2f} s  {path}")
    counts = limiter.statistics()
    print(f"{len(arrivals)} requests, {counts.granted} permits at {counts.rate}; the longest wait was {counts.waited_max:.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
