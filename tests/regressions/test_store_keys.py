"""Keys whose limits are in a store: what is left of those that were evicted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.driving import others
from helpers.stores import RealServer, TimedClient

from aiorate import KeyedBudget, KeyedLimiter
from aiorate.redis import RedisBudget, RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


@pytest.fixture(scope="module")
def store() -> Iterator[RealServer]:
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
