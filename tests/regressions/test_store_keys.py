"""Keys whose limits are in a store: what is left of those that were evicted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.driving import others
from helpers.stores import RealServer, TimedClient

from aiorate import KeyedBudget, KeyedLimiter
from aiorate.redis import RedisBudget, RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


@pytest.fixture(scope="module")
def store() -> Any:
    with RealServer() as server:
        yield server


async def one_after_the_other(keyed: Any) -> None:
    for key in range(6):
        if isinstance(keyed, KeyedBudget):
            async with keyed.reserve(key):
                pass
        else:
            await keyed.acquire(key)
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("kind", ["limiters", "budgets"])
async def test_close_leaves_no_task_after_evictions(store: RealServer, kind: str) -> None:
    """The limits of evicted keys are not collected yet, and do not count for their client."""
    client = TimedClient(store)
    keyed: Any
    if kind == "limiters":
        keyed = KeyedLimiter(lambda key: RedisLimiter(client, f"x{key}", "1000/s"), max_keys=2)
    else:
        keyed = KeyedBudget(lambda key: RedisBudget(client, f"b{key}", requests="1000/s"), max_keys=2)
    await one_after_the_other(keyed)
    assert len(keyed) < 6

    await keyed.aclose()

    assert not others()


async def test_a_key_stays_until_its_store_has_answered(store: RealServer) -> None:
    """What it tells may have to be told again."""
    client = TimedClient(store, latency=0.2)
    keyed = KeyedBudget(lambda key: RedisBudget(client, f"t{key}", tokens="1000/s"))
    async with keyed.reserve("a", tokens=10) as lease:
        lease.settle(tokens=20)
    del lease
    await asyncio.sleep(0.3)  # the debt is under way

    assert 0 == keyed.evict()
    await asyncio.sleep(1.0)
    assert 1 == keyed.evict()
    await keyed.aclose()
