"""What the middleware costs: CPU time, compared with an application that only answers, in the same process and minute."""

from __future__ import annotations

import asyncio
from time import process_time
from typing import Any

import pytest
from helpers.asgi import nothing, ok, scope_of

from aiorate import KeyedLimiter, TokenBucket
from aiorate.asgi import RateLimitMiddleware

REQUESTS, ROUNDS, MOST = 5_000, 15, 10


async def _dropped(message: Any) -> None:
    """The server of the measurement: it sends nothing."""


@pytest.mark.slow
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_request_costs_less_than_ten_empty_calls() -> None:
    """With a token bucket for each address, and the two fields on each answer. The quietest of several rounds counts."""
    limited = RateLimitMiddleware(ok, KeyedLimiter(lambda client: TokenBucket("1000/s", burst=10**9)))
    scopes = [scope_of(f"192.0.2.{number}") for number in range(1, 101)]

    async def cost(app: Any) -> float:
        began = process_time()
        for number in range(REQUESTS):
            await app(scopes[number % 100], nothing, _dropped)
        await asyncio.sleep(0)
        return process_time() - began

    rounds = [(await cost(ok), await cost(limited)) for _ in range(ROUNDS)]
    empty, with_limit = (min(each) for each in zip(*rounds, strict=True))

    assert with_limit < MOST * empty
