"""Clients of a real server that keeps buckets and says how full they are, as OpenAI and Anthropic do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from time import monotonic_ns
from types import TracebackType
from typing import Any, Self

import aiohttp
import httpx2
import pytest
from aiohttp import web
from helpers.driving import LONG, SECOND

from aiorate import Budget, Rate, TokenBucket
from aiorate.aiohttp import middleware
from aiorate.http import hooks

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


CALLS = 60


def bucket(permits: int, per: float, burst: int, left: int | None = None) -> TokenBucket:
    return TokenBucket(Rate(permits, per=per), burst=burst, initial=left)


class Provider:
    """Keeps a bucket for each amount, and reports them all in each answer."""

    def __init__(self, vendor: str, buckets: dict[str, TokenBucket]) -> None:
        self.answers: list[int] = []
        self.url = ""
        self._vendor = vendor
        self._buckets = buckets
        app = web.Application()
        app.router.add_post("/", self._answer)
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0]
        self.url = f"http://{host}:{port}/"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        amounts, now = await request.json(), monotonic_ns()
        waits = [limit.peek(amounts[name], now) - now for name, limit in self._buckets.items()]
        more = {}
        if max(waits) > 0:
            more = {"retry-after": f"{-(-max(waits) // SECOND)}"}
        else:
            for name, limit in self._buckets.items():
                limit.take(amounts[name], now)
        self.answers.append(429 if more else 200)
        return web.Response(status=self.answers[-1], headers={**self._headers(now), **more})

    def _headers(self, now: int) -> dict[str, str]:
        headers: dict[str, str] = {}
        for name, limit in self._buckets.items():
            left = max(0, limit.available(now))
            full_in = (limit.burst - left) * limit.rate.interval_ns / SECOND
            if self._vendor == "OpenAI":
                headers[f"x-ratelimit-limit-{name}"] = str(limit.burst)
                headers[f"x-ratelimit-remaining-{name}"] = str(left)
                headers[f"x-ratelimit-reset-{name}"] = f"{full_in:.3f}s"
            else:
                of = f"anthropic-ratelimit-{name.replace('_', '-')}"
                headers[f"{of}-limit"] = str(limit.burst)
                headers[f"{of}-remaining"] = str(left)
                headers[f"{of}-reset"] = (datetime.now(UTC) + timedelta(seconds=full_in)).isoformat(timespec="seconds")
        return headers


def provider_of(vendor: str, tight: str) -> Provider:
    """Make a provider with one bucket nearly empty, which refills more slowly than the budget's own."""
    tokens = {"tokens": 500} if vendor == "OpenAI" else {"input_tokens": 100, "output_tokens": 400}
    buckets = {"requests": bucket(100_000, 60, 10_000), **{name: bucket(100 * of * 60, 60, 100 * of * 60) for name, of in tokens.items()}}
    if tight == "requests":
        buckets["requests"] = bucket(3_600, 60, 3_600, 1)
    else:
        name = list(tokens)[-1]
        buckets[name] = bucket(3_600 * tokens[name], 60, 3_600 * tokens[name], tokens[name])
    return Provider(vendor, buckets)


def budget_of(vendor: str) -> tuple[Budget, dict[str, int]]:
    amounts = {"tokens": 500} if vendor == "OpenAI" else {"input_tokens": 100, "output_tokens": 400}
    return Budget(requests=bucket(1_000, 1, 1_000), **{name: bucket(1_000_000, 1, 1_000_000) for name in amounts}), amounts


@pytest.fixture(params=["httpx2", "aiohttp"])
def post_with(request: pytest.FixtureRequest) -> Any:
    """Return a function that makes a client under a budget, and how to post with it."""

    def client_of(budget: Budget) -> tuple[Any, Callable[[Any, str, dict[str, int]], Awaitable[int]]]:
        if request.param == "httpx2":

            async def post(client: Any, url: str, amounts: dict[str, int]) -> int:
                return (await client.post(url, json=amounts)).status_code

            return httpx2.AsyncClient(event_hooks=hooks(budget), timeout=LONG), post

        async def post_by_aiohttp(client: Any, url: str, amounts: dict[str, int]) -> int:
            async with client.post(url, json=amounts) as response:
                return response.status

        return aiohttp.ClientSession(middlewares=[middleware(budget)]), post_by_aiohttp

    return client_of


@pytest.mark.parametrize("vendor", ["OpenAI", "Anthropic"])
@pytest.mark.parametrize("tight", ["requests", "tokens"])
async def test_after_the_first_answer_hardly_any_call_is_refused(post_with: Any, vendor: str, tight: str) -> None:
    """The server allows 60 calls per second and has one left; the budget would let 1000 through.

    Nearly all were refused. Anthropic's times are in whole seconds, so a call may be a little early now and then.
    """
    budget, amounts = budget_of(vendor)
    client, post = post_with(budget)

    async with provider_of(vendor, tight) as provider, client:

        async def call() -> None:
            async with asyncio.timeout(LONG), budget.reserve(**amounts):
                await post(client, provider.url, {"requests": 1, **amounts})

        await call()
        await asyncio.gather(*(call() for _ in range(CALLS)))

    assert (200, CALLS + 1) == (provider.answers[0], len(provider.answers))
    assert provider.answers.count(429) <= 2
