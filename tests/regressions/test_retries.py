"""Callers that are refused and retry at once let their event loop turn.

A caller that asks without end must be ended by a timeout: each of these would keep its loop for 200 000 calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from socket import socket
from typing import Any

import pytest
import trio

import aiorate
from aiorate.redis import RedisLimiter

REFUSALS = (aiorate.LineFull, aiorate.LimiterClosed, aiorate.WaitTooLong, aiorate.EngineUnavailable)


ENOUGH = 200_000  # calls, more than any machine makes between two iterations of the loop


@asynccontextmanager
async def crowded(**options: Any) -> AsyncIterator[aiorate.Limiter]:
    """A limiter whose only place is taken and whose line is full."""
    limiter = aiorate.Limiter("1000000/s", max_concurrency=1, max_waiting=0, **options)
    async with limiter:
        yield limiter


@asynccontextmanager
async def closed(**options: Any) -> AsyncIterator[aiorate.Limiter]:
    """A closed limiter whose only place is taken."""
    limiter = aiorate.Limiter("1000000/s", max_concurrency=1, **options)
    async with limiter:
        await limiter.aclose()
        yield limiter


async def block(limiter: aiorate.Limiter) -> None:
    async with limiter:
        pass


async def weighted_block(limiter: aiorate.Limiter) -> None:
    async with limiter.of(1):
        pass


async def decorated(limiter: aiorate.Limiter) -> None:
    @limiter
    async def call() -> None:
        pass

    await call()


async def first_slot(limiter: aiorate.Limiter) -> None:
    async for _ in limiter.slots():
        return


async def insist(call: Callable[[], Awaitable[object]], refusals: tuple[type[Exception], ...] = REFUSALS) -> None:
    """Call again and again, as a careless retry does."""
    refused = 0
    for _ in range(ENOUGH):
        try:
            await call()
        except refusals:
            refused += 1
    assert ENOUGH == refused


@pytest.mark.asyncio
@pytest.mark.parametrize("scope", ["loop", "process"])
@pytest.mark.parametrize("way", [block, weighted_block, decorated])
@pytest.mark.parametrize("limiter", [crowded, closed])
async def test_timeout_ends_a_retry_that_gets_no_place(limiter: Callable[..., Any], way: Callable[..., Any], scope: str) -> None:
    """With ``max_concurrency``, a refusal came before any look at whether the loop turns; the timeout never fired."""
    async with limiter(scope=scope) as refusing:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await insist(lambda: way(refusing))


@pytest.mark.asyncio
@pytest.mark.parametrize("scope", ["loop", "process"])
async def test_timeout_ends_a_retry_of_slots(scope: Any) -> None:
    """Each retry is a new generator, whose first step was refused without a look at the loop."""
    limiter = aiorate.Limiter("1/h", max_waiting=0, scope=scope)
    await limiter.acquire()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await insist(lambda: first_slot(limiter))
        await limiter.aclose()


CLOSED_KEYS: dict[str, Callable[[aiorate.KeyedLimiter[str], str], Awaitable[object]]] = {
    "acquire": lambda keyed, key: keyed.acquire(key),
    "max_wait": lambda keyed, key: keyed.acquire(key, 2, max_wait=1),
    "call": lambda keyed, key: block(keyed(key)),
    "index": lambda keyed, key: block(keyed[key]),
    "slots": lambda keyed, key: first_slot(keyed[key]),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["used before", "new"])
@pytest.mark.parametrize("way", CLOSED_KEYS)
async def test_timeout_ends_a_retry_on_a_closed_keyed_limiter(way: str, key: str) -> None:
    """A key that it did not have was refused before anything was awaited."""
    keyed = aiorate.KeyedLimiter[str](lambda key: "1/h")
    await keyed.acquire("used before")
    await keyed.aclose()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await insist(lambda: CLOSED_KEYS[way](keyed, key))


@pytest.mark.asyncio
async def test_a_closed_keyed_limiter_stays_closed() -> None:
    """Limiters that it hands out for new keys refuse every call, and cannot be opened."""
    keyed = aiorate.KeyedLimiter[str](lambda key: "1/h")
    await keyed.aclose()

    for _ in range(2):
        with pytest.raises(aiorate.LimiterClosed, match="adds no key"):
            await keyed.acquire("new")
        with pytest.raises(aiorate.LimiterClosed, match="adds no key"):
            keyed("new").try_acquire()
        with pytest.raises(aiorate.LimiterClosed, match="adds no key"):
            keyed["new"].apply("1,1,start")
    assert 0 == len(keyed)


BUDGETS: dict[str, Callable[[aiorate.Budget], Any]] = {
    "full": lambda budget: budget.reserve(),
    "too long": lambda budget: budget.reserve(max_wait=0.001),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("way", BUDGETS)
async def test_timeout_ends_a_retry_of_a_reservation(way: str) -> None:
    """The same for a budget."""
    budget = aiorate.Budget(requests="1/h", max_waiting=0)
    async with budget.reserve():
        pass

    async def reserve() -> None:
        async with BUDGETS[way](budget):
            pass

    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await insist(reserve)
        await budget.aclose()


@pytest.mark.parametrize("scope", ["loop", "process"])
def test_a_cancel_scope_ends_a_retry_under_trio(scope: Any) -> None:
    """The same in trio's loop."""

    async def main() -> bool:
        async with crowded(scope=scope) as limiter:
            with trio.move_on_after(0.01) as given_up:
                await insist(lambda: block(limiter))
        return given_up.cancelled_caught

    assert trio.run(main)


REDIS: dict[str, Callable[[RedisLimiter], Awaitable[object]]] = {
    "acquire": lambda limiter: limiter.acquire(),
    "max_wait": lambda limiter: limiter.acquire(max_wait=1),
    "at once": lambda limiter: limiter.acquire(max_wait=0),
    "block": block,
    "slots": first_slot,
}


@pytest.mark.asyncio
@pytest.mark.parametrize("way", [*REDIS, "shared"])
async def test_timeout_ends_a_retry_while_a_store_is_out_of_reach(way: str) -> None:
    """With the policy "raise", each call fails at once, before anything is awaited."""
    with socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # never listens
        limiter = RedisLimiter(f"redis://127.0.0.1:{nobody.getsockname()[1]}", "retries", "1/h", grace=0)
        with pytest.raises(aiorate.EngineUnavailable):
            await limiter.acquire()
        keyed = aiorate.KeyedLimiter[str](lambda key: "1000000/s", shared=limiter)
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await insist(lambda: keyed.acquire("a") if way == "shared" else REDIS[way](limiter))
        finally:
            await limiter.aclose()


@pytest.mark.asyncio
async def test_a_place_that_becomes_free_meanwhile_is_taken() -> None:
    """A caller that lets the loop turn asks again before it is refused."""
    refused = 0
    async with AsyncExitStack() as holder:
        limiter = await holder.enter_async_context(crowded())
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(holder.aclose()))
        while refused < ENOUGH:
            try:
                await block(limiter)
                break
            except aiorate.LineFull:
                refused += 1

    assert 0 < refused < ENOUGH
    assert 2 == limiter.statistics().granted
