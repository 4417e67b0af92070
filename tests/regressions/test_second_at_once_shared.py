"""Defects found by the second attack: numbers 12 and 13. ``max_wait=0`` where one of several limits is in a store."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from helpers.stores import RealServer, TimedClient, now

from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket, WaitTooLong
from aiorate.redis import RedisLimiter

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


@pytest.mark.parametrize("max_wait", [0, 0.0001])
@pytest.mark.parametrize("lease", [None, 0.05])
async def test_a_key_in_a_store_waits_for_no_shared_limit(store: RealServer, lease: float | None, max_wait: float) -> None:
    """Number 12: it had its slot from the store, and then stood in the line of the shared limit for as long as that took."""
    client = TimedClient(store, latency=0.01)
    shared = Limiter(TokenBucket("1/min", burst=2)) if lease is None else RedisLimiter(client, "shared", "1/min", burst=2, lease=lease)
    keyed = KeyedLimiter(lambda key: RedisLimiter(client, f"key {key}", "100/s", burst=10), shared=shared)
    await keyed.acquire("ann")
    await keyed.acquire("ann", max_wait=1)
    begin = now()
    for _ in range(3):
        with pytest.raises(WaitTooLong):
            await keyed.acquire("ann", max_wait=max_wait)

    assert now() < begin + 0.1  # three answers at most
    assert 0 == keyed["ann"].statistics().waiting == shared.statistics().waiting
    await keyed.aclose()
    await shared.aclose()


async def test_what_could_only_be_refused_says_so(store: RealServer) -> None:
    """Number 13: beneath a shared limit in a store, every caller that would not wait was refused for ever."""
    shared = RedisLimiter(TimedClient(store), "shared", "100/s", burst=10)
    keyed = KeyedLimiter(lambda key: "1000/s", shared=shared)
    both = KeyedLimiter(lambda key: RedisLimiter(TimedClient(store), key, "1000/s"), shared=shared)
    budget = Budget(requests=shared, tokens="1000/s")

    for limits in (keyed, both):
        with pytest.raises(RuntimeError, match=r"acquire\(max_wait=0\): a shared RedisLimiter without a lease"):
            await limits.acquire("ann", max_wait=0)
    with pytest.raises(RuntimeError, match=r"try_acquire\(\): a shared RedisLimiter without a lease.*lease=0\.05"):
        keyed.try_acquire("ann")
    with pytest.raises(RuntimeError, match=r"reserve\(max_wait=0\): a shared RedisLimiter without a lease"):
        await budget.reserve(requests=1, tokens=1, max_wait=0).__aenter__()
    await keyed.acquire("ann", max_wait=0.1)
    assert 1 == shared.statistics().granted
    await both.aclose()
    await budget.aclose()
    await keyed.aclose()
    await shared.aclose()


async def test_a_lease_has_permits_for_those_that_do_not_wait(store: RealServer) -> None:
    """Number 13: that is what the error says to write."""
    shared = RedisLimiter(TimedClient(store), "shared", "100/s", burst=10, lease=0.05)
    keyed = KeyedLimiter(lambda key: "1000/s", shared=shared)
    await keyed.acquire("ann")
    await keyed.acquire("ann", max_wait=0.1)

    for _ in range(50):
        await asyncio.sleep(0.01)
        with suppress(WaitTooLong):
            await keyed.acquire("ann", max_wait=0)
    assert 25 < shared.statistics().granted
    await keyed.aclose()
    await shared.aclose()
