"""An aiohttp server that allows each client 10 requests in any 2 seconds, and reports what is left.

No request waits: one too many gets 429, with Retry-After. Every answer says how many requests are left and when there
will be more, in the RateLimit fields of draft-ietf-httpapi-ratelimit-headers-11. Run as a program, it shows one session that sends
all requests at once, and one that follows the fields.

A client is an address. Behind a proxy that is the proxy's: take the address that the proxy passes on, or the name of an account.
Never trust a header that the client sends, because a new name in each request would avoid the limit.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from aiorate import KeyedLimiter, Limiter, Rate, SlidingWindow
from aiorate.aiohttp import middleware
from aiorate.asgi import rate_limit_headers

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

REQUESTS, SECONDS = 10, 2


def make_app(clients: KeyedLimiter[str]) -> web.Application:
    @web.middleware
    async def limit(request: web.Request, handler: Handler) -> web.StreamResponse:
        limiter = clients[request.remote or ""]
        if limiter.try_acquire():
            return await handler(request)
        raise web.HTTPTooManyRequests(headers=rate_limit_headers(limiter, "client", refused=True))

    async def tell(request: web.Request, response: web.StreamResponse) -> None:
        """Set the headers of every answer, errors and streams included: what is left, and in how many seconds there is more."""
        response.headers.update(rate_limit_headers(clients[request.remote or ""], "client"))

    async def items(request: web.Request) -> web.Response:
        return web.json_response(["one", "two"])

    app = web.Application(middlewares=[limit])
    app.on_response_prepare.append(tell)
    app.router.add_get("/items", items)
    return app


async def fetch(session: ClientSession, url: str) -> int:
    async with session.get(url) as response:
        await response.read()
        return response.status


async def main() -> None:
    logging.basicConfig(stream=sys.stdout, format="  %(message)s")  # shows the pauses of the last session
    clients: KeyedLimiter[str] = KeyedLimiter(lambda client: SlidingWindow(Rate(REQUESTS, SECONDS)))
    async with TestServer(make_app(clients)) as server:
        url = str(server.make_url("/items"))
        async with ClientSession() as hasty:
            print("all at once:", dict(Counter(await asyncio.gather(*(fetch(hasty, url) for _ in range(25))))))
            async with hasty.get(url) as response:
                for name in ("Retry-After", "RateLimit-Policy", "RateLimit"):
                    print(f"  {name}: {response.headers[name]}")

        await asyncio.sleep(SECONDS)
        async with ClientSession(middlewares=[middleware(Limiter("100/s"))]) as heeding:
            begin = time.monotonic()
            statuses = Counter([await fetch(heeding, url) for _ in range(25)])
            print(f"heeding: {dict(statuses)} in {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())
