"""A limiter that is closed, or whose task is cancelled, while the store does not answer. In virtual time."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import others
from helpers.outages import limiter_of, outcome
from helpers.stores import RealServer, now
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import NoPermissionError

import aiorate
from aiorate.redis import RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


async def test_closing_during_an_outage_does_not_wait_for_the_store(store: RealServer) -> None:
    """The requests in line fail, and no task is left."""
    limiter, client = limiter_of(store, "wait")
    client.hangs = True
    task = asyncio.create_task(outcome(limiter.acquire()))
    await asyncio.sleep(0.1)
    await limiter.aclose()

    assert isinstance(await task, aiorate.LimiterClosed)
    assert pytest.approx(0.1, abs=1e-3) == now()
    assert not others()


async def test_a_cancelled_task_leaves_no_request_hanging(store: RealServer) -> None:
    """A program that cancels all its tasks and goes on."""
    limiter, client = limiter_of(store)
    client.hangs = True
    waiting = asyncio.create_task(outcome(limiter.acquire()))
    await asyncio.sleep(0.01)
    for task in others() - {waiting}:
        task.cancel()

    assert isinstance(await waiting, RuntimeError)
    client.hangs = False
    assert 0 <= await limiter.acquire() < 0.01
    await limiter.aclose()


async def test_a_limiter_closed_in_an_outage_asks_no_longer(store: RealServer) -> None:
    """While another of the same client waits for the store, and is served when it is back."""
    limiter, client = limiter_of(store, "wait")
    closed = RedisLimiter(client, "y", "10/s")
    client.error, client.latency = NoConnection(), 0.01
    waiting = [asyncio.create_task(outcome(each.acquire())) for each in (limiter, closed)]
    await asyncio.sleep(0.055)  # in the middle of a call
    await closed.aclose()
    await asyncio.sleep(1)
    client.error = None
    waited, sent_away = await asyncio.gather(*waiting)

    assert isinstance(sent_away, aiorate.LimiterClosed)
    assert 1.05 <= waited <= 1.6
    assert {limiter.key} == client.served
    await limiter.aclose()
    assert not others()


async def test_a_refusal_while_closing_raises_nothing(store: RealServer) -> None:
    """No request is in line, and the caller that closes can do nothing about it."""
    limiter, client = limiter_of(store)
    client.error = NoPermissionError("NOPERM")
    limiter.charge(5)
    await limiter.aclose()

    assert 1 == client.calls
    assert not others()


async def test_a_task_cancelled_while_closing_does_not_block_it(store: RealServer) -> None:
    """A program that cancels all its tasks and ends."""
    limiter, client = limiter_of(store)
    client.hangs = True
    limiter.charge(5)
    closing = asyncio.create_task(limiter.aclose())
    await asyncio.sleep(0.1)
    for task in others() - {closing}:
        task.cancel()
    await closing

    assert pytest.approx(0.1, abs=1e-3) == now()
    assert not others()
