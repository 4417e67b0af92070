"""A FastAPI server that allows each client 10 requests in any 2 seconds, and reports what is left.

No request waits: one too many gets 429, with Retry-After. Every answer says how many requests are left and when there
will be more, in the RateLimit fields of draft-ietf-httpapi-ratelimit-headers-11. To serve, run ``uvicorn fastapi_server:app``.
Run as a program, it shows one client that sends all requests at once, and one that follows these fields.

A client is an address. Behind a proxy that is the proxy's: let the server read the proxy's headers, or take the name of an account, as
starlette_server.py does. Never trust a header that the client sends, because a new name in each request would avoid the limit.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter

import httpx2
from fastapi import FastAPI

from aiorate import KeyedLimiter, Limiter, SlidingWindow
from aiorate.asgi import RateLimitMiddleware
from aiorate.http import hooks


def make_app(clients: KeyedLimiter[str]) -> FastAPI:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=clients)

    @app.get("/items")
    async def items() -> list[str]:
        return ["one", "two"]

    return app


app = make_app(KeyedLimiter(lambda client: SlidingWindow("10/2s"), name="client"))


async def main() -> None:
    logging.basicConfig(stream=sys.stdout, format="  %(message)s")  # shows the pauses of the last client
    hasty = httpx2.ASGITransport(app, client=("192.0.2.1", 1))  # connects client and server without a network
    async with httpx2.AsyncClient(base_url="http://server", transport=hasty) as client:
        answers = await asyncio.gather(*(client.get("/items") for _ in range(25)))
    print("all at once:", dict(Counter(answer.status_code for answer in answers)))
    for name in ("Retry-After", "RateLimit-Policy", "RateLimit"):
        print(f"  {name}: {answers[-1].headers[name]}")

    heeding = httpx2.ASGITransport(app, client=("192.0.2.2", 1))
    async with httpx2.AsyncClient(base_url="http://server", transport=heeding, event_hooks=hooks(Limiter("100/s"))) as client:
        begin = time.monotonic()
        statuses = Counter([(await client.get("/items")).status_code for _ in range(25)])
        print(f"heeding: {dict(statuses)} in {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())
