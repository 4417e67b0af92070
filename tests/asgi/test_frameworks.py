"""The middleware in frameworks, on trio, and behind a real server with clients that follow what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx2
import pytest
import trio
import uvicorn
from fastapi import FastAPI, WebSocket
from fastapi.testclient import TestClient
from helpers.asgi import ask, ok
from helpers.driving import LONG
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from aiorate import KeyedLimiter, Limiter, SlidingWindow, TokenBucket
from aiorate.aiohttp import middleware
from aiorate.asgi import RateLimitMiddleware
from aiorate.http import hooks
from aiorate.testing import ManualClock


def bucket(burst: int) -> Limiter:
    return Limiter(TokenBucket("1/min", burst=burst), clock=ManualClock())


async def hello(request: Any) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def count(request: Any) -> StreamingResponse:
    async def numbers() -> AsyncIterator[str]:
        for number in range(3):
            yield f"{number}\n"

    return StreamingResponse(numbers())


def client_of(app: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://server")


async def check_two_of_three(app: Any, path: str = "/") -> None:
    """Two requests are answered, and the third is refused; all tell what is left."""
    async with client_of(app) as client:
        answers = [await client.get(path) for _ in range(3)]

    assert [200, 200, 429] == [answer.status_code for answer in answers]
    assert ['"default";r=1;t=60', '"default";r=0;t=60', '"default";r=0;t=60'] == [answer.headers["RateLimit"] for answer in answers]
    assert "application/problem+json" == answers[2].headers["Content-Type"]


@pytest.mark.asyncio
async def test_starlette_adds_it() -> None:
    app = Starlette(routes=[Route("/", hello), Route("/count", count)])
    app.add_middleware(RateLimitMiddleware, limiter=bucket(2))

    await check_two_of_three(app, "/count")


@pytest.mark.asyncio
async def test_fastapi_adds_it_and_handles_its_web_sockets() -> None:
    app = FastAPI()

    @app.websocket("/ws")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(await socket.receive_text())

    app.add_api_route("/", lambda: "hello")
    app.add_middleware(RateLimitMiddleware, limiter=bucket(2))

    for _ in range(3):
        with TestClient(app).websocket_connect("/ws") as socket:
            socket.send_text("x")
            assert "x" == socket.receive_text()
    await check_two_of_three(app)


def test_trio_runs_it() -> None:
    async def main() -> None:
        app = RateLimitMiddleware(ok, KeyedLimiter(lambda client: bucket(1)))
        assert [200, 429] == [(await ask(app)).status for _ in range(2)]
        limited = RateLimitMiddleware(ok, Limiter(TokenBucket("1/min", 5), max_concurrency=1))
        assert [200, 200] == [(await ask(limited)).status for _ in range(2)]

    trio.run(main)


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """A real server of the application; yields its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", ws="none", log_level="error"))
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(LONG):
            while not server.started:
                await asyncio.sleep(0.01)
        host, port = server.servers[0].sockets[0].getsockname()
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        await task


@pytest.mark.slow
@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
@pytest.mark.parametrize("limit", [lambda: TokenBucket("5/s", burst=5), lambda: SlidingWindow("8/2s")], ids=["bucket", "window"])
async def test_clients_that_follow_the_fields_are_never_refused(limit: Any) -> None:
    """Each has a limit, learns it from the answers, and sends as much as that allows. Half of them are httpx2's, half aiohttp's."""
    statuses: list[int] = []

    def user(scope: Any) -> str:
        return next(value.decode() for name, value in scope["headers"] if name == b"x-user")

    limiters = KeyedLimiter(lambda name: limit())
    requests = 18

    async def by_httpx(url: str, name: str) -> None:
        async with httpx2.AsyncClient(event_hooks=hooks(Limiter("100/s")), timeout=LONG, headers={"X-User": name}) as client:
            statuses.extend([(await client.get(url)).status_code for _ in range(requests)])

    async def by_aiohttp(url: str, name: str) -> None:
        async with aiohttp.ClientSession(middlewares=[middleware(Limiter("100/s"))], headers={"X-User": name}) as session:
            for _ in range(requests):
                async with session.get(url) as response:
                    await response.read()
                    statuses.append(response.status)

    async with serving(RateLimitMiddleware(ok, limiters, key=user)) as url, asyncio.timeout(LONG), asyncio.TaskGroup() as tasks:
        for number in range(100):
            tasks.create_task((by_httpx if number % 2 else by_aiohttp)(url, f"user {number}"))

    assert [200] * (100 * requests) == statuses


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_real_server_sends_the_refusal() -> None:
    async with serving(RateLimitMiddleware(ok, bucket(1))) as url, httpx2.AsyncClient(timeout=LONG) as client:
        answers = [await client.request(method, url, content=b"x" * 100_000) for method in ("GET", "POST", "HEAD", "GET")]

    assert [200, 429, 429, 429] == [answer.status_code for answer in answers]
    assert [len(answers[3].content)] * 2 == [int(answer.headers["Content-Length"]) for answer in (answers[2], answers[3])]
    assert b"" == answers[2].content
