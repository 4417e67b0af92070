"""The program of examples/adapters/ for FastMCP: a real server over HTTP, asked by its real client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import httpx2
import pytest
import uvicorn
from fastmcp import Client
from mcp.shared.exceptions import MCPError
from starlette.middleware import Middleware

from aiorate import KeyedLimiter, Limiter, TokenBucket
from aiorate.asgi import RateLimitMiddleware
from aiorate.testing import ManualClock

Program = Callable[[str], ModuleType]


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.ensure_future(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            await running


@pytest.mark.asyncio
async def test_calls_above_the_limit_are_refused_by_429(program: Program) -> None:
    """Before MCP sees them. Once the time has come, the same session is served again."""
    module, clock = program("fastmcp_server"), ManualClock()
    clients = KeyedLimiter(lambda address: Limiter(TokenBucket("5/s", burst=20), clock=clock))
    app = module.mcp.http_app(middleware=[Middleware(RateLimitMiddleware, limiter=clients)])
    found: list[str] = []

    async def find(client: Client[Any], times: int = 1) -> None:
        for _ in range(times):
            call = await client.call_tool("find", {"title": "Emma"})
            found.append(call.data)

    async with serving(app) as url, Client(url) as client:
        with pytest.raises(MCPError):
            await find(client, 21)
        most = len(found)
        clock.advance(1)
        await find(client)

    assert ["Emma: shelf 4"] * (most + 1) == found
    assert 15 <= most <= 19  # the others began the session


@pytest.mark.asyncio
async def test_a_client_of_mcp_that_heeds_the_fields_meets_no_429(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for as long as the server says. Its calls follow one another: those in flight cannot know of an answer yet to come."""
    module = program("fastmcp_server")
    statuses: list[int] = []
    send = httpx2.AsyncClient.send

    async def noting(client: httpx2.AsyncClient, *args: Any, **options: Any) -> httpx2.Response:
        response = await send(client, *args, **options)
        statuses.append(response.status_code)
        return response

    monkeypatch.setattr(httpx2.AsyncClient, "send", noting)
    async with serving(module.app) as url, module.heeding_client(url) as client:
        calls = [await client.call_tool("find", {"title": "Emma"}) for _ in range(30)]

    assert ["Emma: shelf 4"] * 30 == [call.data for call in calls]
    assert len(statuses) >= 30
    assert 429 not in statuses
