"""A Starlette server with two limits for each account: requests by its plan, and two streams at a time.

The key of a request is an async function, since a database knows whose token it is. Health checks are not limited: their key is None.
A request with an unknown token counts for its address, so that nobody guesses tokens at any rate. To serve, run
``uvicorn starlette_server:app``. Run as a program, it serves, and shows what several clients get.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from aiorate import KeyedLimiter, Limiter, TokenBucket
from aiorate.asgi import RateLimitMiddleware, client_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

ACCOUNTS = {"token-of-alice": "alice", "token-of-bob": "bob"}
BURSTS = {"alice": 5, "bob": 20}


async def account_of(headers: list[tuple[bytes, bytes]]) -> str | None:
    await asyncio.sleep(0)  # for a database
    scheme, _, token = dict(headers).get(b"authorization", b"").decode("latin-1").partition(" ")
    return ACCOUNTS.get(token) if scheme == "Bearer" else None


async def client_of(scope: Any) -> str | None:
    if scope["path"] == "/health":
        return None
    return await account_of(scope["headers"]) or client_address(scope)


def requests_of(client: str) -> Limiter:
    return Limiter(TokenBucket("1/s", burst=BURSTS.get(client, 3)), name="requests")


def streams_of(client: str) -> Limiter:
    return Limiter(TokenBucket("100/s", burst=100), max_concurrency=2, name="streams")


async def health(request: Request) -> Response:
    return PlainTextResponse("well\n")


async def items(request: Request) -> Response:
    account = await account_of(request.scope["headers"])
    return PlainTextResponse("one\ntwo\n" if account else "unknown token\n", 200 if account else 401)


async def stream(request: Request) -> Response:
    async def numbers() -> AsyncIterator[str]:
        for number in range(10):
            yield f"{number}\n"
            await asyncio.sleep(0.05)

    return StreamingResponse(numbers(), media_type="text/plain")


def make_app(requests: KeyedLimiter[str], streams: KeyedLimiter[str]) -> Starlette:
    at_a_time = [Middleware(RateLimitMiddleware, limiter=streams, key=client_of)]
    return Starlette(
        routes=[
            Route("/health", health),
            Route("/items", items),
            Mount("/streams", routes=[Route("/{name}", stream)], middleware=at_a_time),
        ],
        middleware=[Middleware(RateLimitMiddleware, limiter=requests, key=client_of)],
    )


app = make_app(KeyedLimiter(requests_of), KeyedLimiter(streams_of))


async def main() -> None:
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve([listener]))
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}") as client:

            async def show(what: str, path: str, token: str, count: int) -> None:
                headers = {"Authorization": f"Bearer {token}"}
                answers = await asyncio.gather(*(client.get(path, headers=headers) for _ in range(count)))
                print(f"{what}: {dict(Counter(answer.status_code for answer in answers))}")

            await show("alice, items", "/items", "token-of-alice", 10)
            await show("bob, items", "/items", "token-of-bob", 10)
            await show("bob, streams", "/streams/all", "token-of-bob", 5)
            await show("guessed tokens", "/items", "token-of-carol", 10)
            await show("health checks", "/health", "none", 10)
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(main())
