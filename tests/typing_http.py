"""What type checkers make of the HTTP adapters. Never run: mypy and pyright read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

import aiohttp
import httpx
import httpx2

from aiorate import Limiter
from aiorate.aiohttp import cost, middleware
from aiorate.http import Limiters, hooks, limit_transport

if TYPE_CHECKING:
    from aiohttp import ClientRequest


class PerKey:
    def __getitem__(self, key: str) -> Limiter:
        return Limiter("1/s")


class OnDemand(dict[str, Limiter]):
    def __missing__(self, key: str) -> Limiter:
        return self.setdefault(key, Limiter("1/s"))


limiter = Limiter("1/s")
one_each: dict[str, Limiter] = {"a": limiter}
choices: list[Limiter | Limiters] = [limiter, one_each, PerKey(), OnDemand()]


def httpx2_key(request: httpx2.Request) -> str:
    return request.url.host


def httpx2_cost(request: httpx2.Request) -> int:
    return len(request.content)


def aiohttp_key(request: ClientRequest) -> str:
    return request.url.host or ""


# Both families take the same hooks, and a transport stays what it was.
httpx2.AsyncClient(event_hooks=hooks(limiter, cost=httpx2_cost))
httpx.AsyncClient(event_hooks=hooks(one_each, key=lambda request: str(request.url), max_wait=1))
assert_type(limit_transport(httpx2.AsyncHTTPTransport(), PerKey(), httpx2_key, httpx2_cost), httpx2.AsyncHTTPTransport)
httpx2.AsyncClient(transport=limit_transport(httpx2.AsyncHTTPTransport(), limiter))
httpx.AsyncClient(transport=limit_transport(httpx.AsyncHTTPTransport(), OnDemand(), max_wait=0.5))


async def session() -> None:
    limited = middleware(one_each, key=aiohttp_key, cost=lambda request: len(request.headers), max_wait=2)
    async with aiohttp.ClientSession(middlewares=[limited]) as session:
        with cost(7):
            await session.get("https://example.com", middlewares=(middleware(limiter),))


# What must not pass: with warn_unused_ignores each of these has to be an error.
hooks("10/s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
hooks({"a": "10/s"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
middleware(limiter, cost=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
middleware(limiter, max_wait="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
cost("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
