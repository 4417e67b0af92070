"""Defects found by the second attack: number 2."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from helpers.loops import eager_loop, needs_eager
from helpers.stores import RealServer, TimedClient

import aiorate
from aiorate.redis import RedisLimiter
from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine


@pytest.fixture(scope="module")
def store() -> Any:
    with RealServer() as server:
        yield server


def run_eagerly(main: Coroutine[Any, Any, Any]) -> Any:
    """Run it in virtual time, in a loop that starts tasks at once; nothing may take longer than a virtual minute."""
    with asyncio.Runner(loop_factory=lambda: eager_loop(VirtualLoop)) as runner:
        return runner.run(asyncio.wait_for(main, 60))


def names() -> Any:
    """One that no other test has used."""
    number = 0
    while True:
        number += 1
        yield f"second-slots-{number}"


NAMES = names()


# Eager tasks.


@needs_eager
@pytest.mark.parametrize("lease", [0, 0.05])
@pytest.mark.parametrize("count", [1, 100])
def test_redis_limiter_grants_under_eager_tasks(store: RealServer, count: int, lease: float) -> None:
    """Number 2: no request was ever granted, because the store task looked at the line before the request was in it."""

    async def main() -> None:
        limiter = RedisLimiter(TimedClient(store), next(NAMES), "1000/s", lease=lease)
        await asyncio.gather(*[limiter.acquire() for _ in range(count)])
        assert count == limiter.statistics().granted
        await limiter.aclose()

    run_eagerly(main())


@needs_eager
@pytest.mark.parametrize("lease", [0, 0.05])
def test_eager_redis_limiter_grants_after_an_idle_time(store: RealServer, lease: float) -> None:
    """Number 2: the store task ends after an idle second, and the next request starts another one."""

    async def main() -> None:
        limiter = RedisLimiter(TimedClient(store), next(NAMES), "1000/s", lease=lease)
        for _ in range(3):
            await limiter.acquire()
            await asyncio.sleep(5)
        assert 3 == limiter.statistics().granted
        await limiter.aclose()

    run_eagerly(main())


@needs_eager
def test_eager_keyed_limiters_over_redis_all_grant(store: RealServer) -> None:
    """Number 2: one store task serves all keys, so one request that it overlooks is enough to stop them all."""

    async def main() -> None:
        client, prefix = TimedClient(store), next(NAMES)
        keyed = aiorate.KeyedLimiter(lambda key: RedisLimiter(client, f"{prefix}:{key}", "1000/s"), shared="1000/s")
        await asyncio.gather(*[keyed.acquire(key) for key in range(20) for _ in range(3)])
        await keyed.aclose()

    run_eagerly(main())
