"""The SDKs of OpenAI and Anthropic under a budget, against a provider that keeps limits per minute: no 429, and little left unused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

import pytest
from helpers.driving import SECOND
from helpers.llm import Provider

import aiorate
from aiorate import Budget, TokenBucket
from aiorate.http import hooks

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

CALLS, MAX_TOKENS = 100, 400
QUESTION = "What is the answer? " * 40  # 200 tokens
LIMITS = {"openai": {"requests": 500, "tokens": 40_000}, "anthropic": {"requests": 500, "input_tokens": 40_000, "output_tokens": 20_000}}
Call = Callable[[], Awaitable[dict[str, int]]]


async def caller(sdk: str, provider: Provider, limit: Any) -> Call:
    """Return one call of that SDK, which returns its usage by dimension.

    The first call asks a thread for the platform, and virtual time does not wait for threads where it can wait for something else. So
    one is made before the provider begins to count.
    """
    call = openai_caller(provider, limit) if sdk == "openai" else anthropic_caller(provider, limit)
    await call()
    provider.begin()
    return call


def openai_caller(provider: Provider, limit: Any) -> Call:
    openai = pytest.importorskip("openai")  # imported here, because it takes seconds
    http = openai.DefaultAsyncHttpxClient(transport=provider.network, event_hooks=hooks(limit))
    client = openai.AsyncOpenAI(http_client=http, base_url="http://test/v1", api_key="none", max_retries=0)

    async def complete() -> dict[str, int]:
        messages = [{"role": "user", "content": QUESTION}]
        reply = await client.chat.completions.create(model="gpt", max_tokens=MAX_TOKENS, messages=messages)
        return {"tokens": reply.usage.total_tokens}

    return complete


def anthropic_caller(provider: Provider, limit: Any) -> Call:
    anthropic = pytest.importorskip("anthropic")
    http = anthropic.DefaultAsyncHttpxClient(transport=provider.network, event_hooks=hooks(limit))
    client = anthropic.AsyncAnthropic(http_client=http, base_url="http://test", api_key="none", max_retries=0)

    async def message() -> dict[str, int]:
        messages = [{"role": "user", "content": QUESTION}]
        reply = await client.messages.create(model="claude", max_tokens=MAX_TOKENS, messages=messages)
        return {"input_tokens": reply.usage.input_tokens, "output_tokens": reply.usage.output_tokens}

    return message


def estimate(sdk: str) -> dict[str, int]:
    """Return the most that a call may use."""
    return {"tokens": 200 + MAX_TOKENS} if sdk == "openai" else {"input_tokens": 200, "output_tokens": MAX_TOKENS}


def bucket(limit: int, part: float = 1.0, **options: Any) -> TokenBucket:
    """Make a bucket of ``limit`` per minute, of which ``part`` may be taken at once."""
    return TokenBucket(aiorate.Rate(limit, per=60), burst=round(limit * part), **options)


def provider_of(sdk: str, left: float = 0.1, seconds_a_token: float = 0.01) -> Provider:
    """Make a provider with buckets of a minute's worth, like the real ones, of which others have left ``left``."""
    client = pytest.importorskip(sdk).DefaultAsyncHttpxClient
    http = import_module(next(base.__module__ for base in client.__mro__ if base.__name__ == "AsyncClient").partition(".")[0])
    return Provider(http, {name: bucket(limit, initial=round(limit * left)) for name, limit in LIMITS[sdk].items()}, seconds_a_token)


async def shares(sdk: str, budget: Budget, burst: float, **reserve: int) -> dict[str, float]:
    """Of 100 calls in the first second that use 3/5 of what they reserve: the part used of what each limit allowed. None is refused."""
    provider = provider_of(sdk)
    call, dice = await caller(sdk, provider, budget), random.Random(sdk)

    async def one() -> None:
        await asyncio.sleep(dice.random())
        async with budget.reserve(**reserve) as lease:
            lease.settle(**await call())

    began = provider.now()
    await asyncio.gather(*(one() for _ in range(CALLS)))

    seconds = (max(at for at, _ in provider.used) - began) / SECOND
    assert (provider.refused, len(provider.used)) == (0, CALLS)
    return {
        name: sum(used[name] for _, used in provider.used) / (burst * limit + limit / 60 * seconds) for name, limit in LIMITS[sdk].items()
    }


@pytest.mark.parametrize("sdk", LIMITS)
async def test_no_call_is_refused_and_95_percent_of_the_limit_is_used(sdk: str) -> None:
    """The tightest limit counts."""
    used = await shares(sdk, Budget(**{name: bucket(limit, 0.1) for name, limit in LIMITS[sdk].items()}), 0.1, **estimate(sdk))

    assert 0.95 <= max(used.values()) <= 1.0
    assert max(used, key=used.__getitem__) == ("tokens" if sdk == "openai" else "output_tokens")


@pytest.mark.parametrize("sdk", LIMITS)
async def test_a_limit_that_others_have_used_up_pauses_the_budget(sdk: str) -> None:
    """The first 429 holds all calls back; its caller asks again after it, and the others never see one."""
    provider = provider_of(sdk, left=0.0)
    budget = Budget(**{name: bucket(limit, 0.1) for name, limit in LIMITS[sdk].items()})
    call = await caller(sdk, provider, budget)
    refused = pytest.importorskip(sdk).RateLimitError

    async def one() -> None:
        while True:
            try:
                async with budget.reserve(**estimate(sdk), on_error="refund") as lease:
                    lease.settle(**await call())
                    return
            except refused:
                continue

    await asyncio.gather(*(one() for _ in range(30)))

    assert len(provider.used) == 30
    assert 0 < provider.refused < 30
