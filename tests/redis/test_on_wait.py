"""on_wait of limits that processes share through a store: the wait for the store's answer counts."""

from __future__ import annotations

import asyncio

import pytest
from helpers.stores import RealServer, TimedClient

from aiorate import KeyedBudget, KeyedLimiter, Waited, WaitTooLong
from aiorate.redis import RedisBudget, RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


@pytest.fixture
def told() -> list[Waited]:
    return []


async def test_a_redis_limiter_tells_what_callers_waited(store: RealServer, told: list[Waited]) -> None:
    """Also of the requests that wait for one answer, and not of those that it refuses."""
    limiter = RedisLimiter(TimedClient(store, latency=0.01), "api", "10/s", on_wait=told.append)

    waited = await asyncio.gather(*(limiter.acquire() for _ in range(4)))
    with pytest.raises(WaitTooLong):
        await limiter.acquire(max_wait=0)
    await asyncio.sleep(1)
    waited.append(await limiter.acquire(max_wait=0))
    await limiter.aclose()

    assert waited == [each.seconds for each in told]
    assert 5 == len(told)
    assert {("api", 1, None)} == {(each.name, each.permits, each.limited_by) for each in told}


async def test_a_redis_budget_tells_amounts_and_dimension(store: RealServer, told: list[Waited]) -> None:
    """As its leases do."""
    budget = RedisBudget(TimedClient(store, latency=0.01), "llm", requests="10/s", tokens="100/s", on_wait=told.append)
    leases = []
    for tokens in (50, 5, 0):
        async with budget.reserve(tokens=tokens) as lease:
            leases.append(lease)
    await budget.aclose()

    assert [(lease.waited, lease.amounts, lease.limited_by) for lease in leases] == [
        (each.seconds, each.permits, each.limited_by) for each in told
    ]
    assert "tokens" in {each.limited_by for each in told}


async def test_keys_in_a_store_are_told_with_the_key(store: RealServer, told: list[Waited]) -> None:
    """Where the factory makes limits of a store."""
    client = TimedClient(store, latency=0.01)
    limiters = KeyedLimiter(lambda key: RedisLimiter(client, key, "10/s"), on_wait=told.append)
    budgets = KeyedBudget(lambda key: RedisBudget(client, f"b{key}", tokens="10/s"), on_wait=told.append)

    await limiters.acquire("ann")
    async with budgets.reserve("bob", tokens=3):
        pass
    await limiters.aclose()
    await budgets.aclose()

    assert [("ann", 1), ("bob", {"tokens": 3})] == [(each.key, each.permits) for each in told]


async def test_one_limiter_for_loops_and_threads_is_told(running: RealServer, told: list[Waited]) -> None:
    """In real time: the thread that asks the store tells nobody; the callers do."""
    limiter = RedisLimiter(running.url, "on_wait of a process", "100/s", scope="process", on_wait=told.append)

    waited = [await asyncio.to_thread(limiter.acquire_blocking) for _ in range(3)]
    await limiter.aclose()

    assert [seconds for seconds in waited if seconds] == [each.seconds for each in told]
    assert told
