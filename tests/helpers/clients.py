"""Clients of each package and kind whose requests pass a limiter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest

from aiorate.aiohttp import cost, middleware
from aiorate.http import hooks, limit_transport
from helpers.driving import LONG
from helpers.server import get

HTTPX = ("httpx2-hooks", "httpx-transport")
"""Both packages and both ways; each package can have each way."""
EACH = (*HTTPX, "aiohttp")

Fetch = Callable[..., Awaitable[int]]

each_client = pytest.mark.parametrize("kind", EACH)


def client_of(kind: str, limiter: Any, **options: Any) -> Any:
    """Make a client of httpx2 or httpx."""
    name, _, way = kind.partition("-")
    package: Any = httpx2 if name == "httpx2" else httpx
    if way == "hooks":
        # verify=False: no certificate is needed, and reading those of the system takes longer than the test.
        return package.AsyncClient(timeout=LONG, verify=False, event_hooks=hooks(limiter, **options))
    return package.AsyncClient(timeout=LONG, transport=limit_transport(package.AsyncHTTPTransport(verify=False), limiter, **options))


@asynccontextmanager
async def fetching(kind: str, limiter: Any, **options: Any) -> AsyncIterator[Fetch]:
    """Yield a function that fetches a URL and returns the status; with ``free=True`` the request costs nothing."""
    if kind == "aiohttp":
        settings = {"timeout": aiohttp.ClientTimeout(total=LONG), "connector": aiohttp.TCPConnector(limit=50)}
        async with aiohttp.ClientSession(middlewares=[middleware(limiter, **options)], **settings) as session:  # type: ignore[arg-type]

            async def fetch_by_aiohttp(url: str, *, free: bool = False) -> int:
                if free:
                    with cost(0):
                        return await get(session, url)
                return await get(session, url)

            yield fetch_by_aiohttp
    else:
        async with client_of(kind, limiter, **options) as client:

            async def fetch(url: str, *, free: bool = False) -> int:
                extensions = {"aiorate": {"cost": 0}} if free else None
                response = await client.get(url, extensions=extensions, follow_redirects=True)
                return int(response.status_code)

            yield fetch
