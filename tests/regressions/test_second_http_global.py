"""Defects found by the second attack: number 8, seen over HTTP. What one hostile server says concerns that server alone."""

from __future__ import annotations

from typing import Any

import aiohttp
import httpx2
import pytest
from helpers.driving import one_loop
from helpers.server import Server

from aiorate import KeyedLimiter, TokenBucket
from aiorate.aiohttp import middleware
from aiorate.http import hooks, limit_transport

pytestmark = one_loop


async def ask(kind: str, keyed: KeyedLimiter[str], url: str, key: Any = None) -> None:
    if kind == "middleware":
        async with aiohttp.ClientSession(middlewares=[middleware(keyed, key=key)]) as session, session.get(url):
            return
    options: Any = {"event_hooks": hooks(keyed, key=key)} if kind == "hooks" else {}
    if kind == "transport":
        options = {"transport": limit_transport(httpx2.AsyncHTTPTransport(), keyed, key=key)}
    async with httpx2.AsyncClient(**options) as client:
        await client.get(url)


@pytest.mark.parametrize("kind", ["hooks", "transport", "middleware"])
async def test_a_server_that_says_global_pauses_itself_alone(kind: str) -> None:
    """Number 8: one response of one host, with Discord's header, stopped a crawl of all hosts for a day."""
    keyed = KeyedLimiter[str](lambda origin: TokenBucket("10/s", burst=10), shared=TokenBucket("50/s", burst=50))
    async with Server() as hostile:
        hostile.answers((429, {"Retry-After": "86400", "X-RateLimit-Global": "true"}))
        await ask(kind, keyed, hostile.url)

        assert keyed.shared is not None
        assert keyed[hostile.url].delay() > 86_000
        assert (0.0, 0.0) == (keyed["http://other:80"].delay(), keyed.shared.delay())


@pytest.mark.parametrize("kind", ["hooks", "transport", "middleware"])
async def test_keys_of_ones_own_still_share_what_is_global(kind: str) -> None:
    """Number 8: with a key for each route, all of them are of the one server that says so."""
    keyed = KeyedLimiter[str](lambda route: TokenBucket("10/s", burst=10), shared=TokenBucket("50/s", burst=50))
    async with Server() as discord:
        discord.answers((429, {"Retry-After": "5", "X-RateLimit-Global": "true"}))
        await ask(kind, keyed, discord.url, key=lambda request: request.url.path)

    assert keyed["another route"].delay() > 4
