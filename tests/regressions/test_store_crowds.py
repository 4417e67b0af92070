"""Thousands of callers at once over a store that has permits for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.driving import LONG, one_loop, others
from helpers.stores import RealServer

from aiorate import WaitTooLong
from aiorate.redis import RedisLimiter


async def granted(limiter: RedisLimiter, count: int, **options: Any) -> list[bool]:
    """Return which of ``count`` callers are granted."""

    async def one() -> bool:
        try:
            await limiter.acquire(**options)
        except WaitTooLong:
            return False
        return True

    async with asyncio.timeout(LONG):
        return await asyncio.gather(*[one() for _ in range(count)])


@one_loop
@pytest.mark.parametrize("lease", [0, 0.01])
@pytest.mark.parametrize("max_wait", [0, 0.00001])
async def test_as_many_of_a_crowd_are_granted_as_are_due(store: RealServer, max_wait: float, lease: float) -> None:
    """Refusing some took so long that the slots of others lapsed: 1002 were granted, and 4000 lost.

    The store is asked only for what the loop can wake in time, and the rest of the burst stays there.
    """
    most = 0
    for attempt in range(5):  # on a busy machine the loop may miss some portions
        limiter = RedisLimiter(store.url, f"crowd {attempt}", "100/s", burst=3_000, lease=lease)
        results = await granted(limiter, 6_000, max_wait=max_wait)
        most = max(most, sum(results[:3_000]))

        assert sum(results) == limiter.statistics().granted
        assert 6_000 == sum(results) + limiter.statistics().refused
        await limiter.aclose()
        assert not others()
        if most >= 2_500:
            break
    assert most >= 2_000


@one_loop
async def test_a_crowd_that_waits_loses_nothing_of_a_burst(store: RealServer) -> None:
    """3000 waiters resume over several turns of the loop, and the slots of the last had lapsed by then."""
    limiter = RedisLimiter(store.url, "x", "100/s", burst=3_000, slack=0.001)
    await granted(limiter, 3_000)

    assert 500 >= limiter.statistics().skipped
    await limiter.aclose()


@one_loop
async def test_one_large_request_is_asked_for_at_once(store: RealServer) -> None:
    """The size of a portion does not bound a single request."""
    limiter = RedisLimiter(store.url, "x", "1/min", burst=5_000)
    calls = store.calls()
    assert isinstance(await limiter.acquire(2_000, max_wait=0), float)
    assert isinstance(await limiter.acquire(2_000), float)

    assert store.calls() <= calls + 3  # one call loads the script
    assert [True] * 1_000 == await granted(limiter, 1_000, max_wait=0)
    await limiter.aclose()
