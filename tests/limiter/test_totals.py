"""totals(): the counts of limiters and of their keys, for metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, TokenBucket, Waited

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


@pytest.fixture
def told() -> list[Waited]:
    return []


async def test_totals_survive_a_reset_and_an_eviction(told: list[Waited]) -> None:
    """Counters for metrics never go down, while somebody watches."""
    limiter = Limiter(TokenBucket("10/s", 10), on_wait=told.append)
    keyed = KeyedLimiter(lambda key: TokenBucket("10/s", 10), on_wait=told.append)
    budgets = KeyedBudget(lambda key: Budget(tokens=TokenBucket("1000/s", 50)), on_wait=told.append)
    for _ in range(12):
        limiter.try_acquire()
        keyed.try_acquire("ann")
    async with budgets.reserve("ann", tokens=30):
        pass
    before = [each._totals() for each in (limiter, keyed, budgets)]

    limiter.reset()
    await asyncio.sleep(10)
    assert keyed.evict() == budgets.evict() == 1

    assert [{None: 10}, {None: 10}, {"tokens": 30}] == [total.granted for total in before]
    assert before == [each._totals() for each in (limiter, keyed, budgets)]
    assert (limiter.statistics().granted, len(keyed)) == (0, 0)
    assert limiter.try_acquire()
    assert keyed.try_acquire("ann")
    assert [{None: 11}, {None: 11}] == [each._totals().granted for each in (limiter, keyed)]
    assert limiter._totals().refused == keyed._totals().refused == 2


async def test_totals_survive_forgotten_keys(told: list[Waited]) -> None:
    """A counter for metrics goes on from where it was."""
    keyed = KeyedLimiter(lambda key: TokenBucket("10/s", 10), on_wait=told.append)
    for key in ("ann", "ann", "bob"):
        assert keyed.try_acquire(key)

    keyed.forget()

    assert (len(keyed), keyed._totals().granted) == (0, {None: 3})
    assert keyed.try_acquire("ann")
    assert {None: 4} == keyed._totals().granted


async def test_totals_count_those_who_wait(told: list[Waited]) -> None:
    """In line, for a place, and over all keys."""
    limiter = Limiter(TokenBucket("10/s", 1), max_concurrency=1)
    keyed = KeyedLimiter(lambda key: TokenBucket("1/s", burst=1))

    async def work() -> None:
        async with limiter:
            await asyncio.sleep(5)

    tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(work()) for _ in range(3)]
    tasks += [asyncio.ensure_future(keyed.acquire(key)) for key in "aabbb"]
    await asyncio.sleep(0.1)

    assert (2, 3) == (limiter._totals().waiting, keyed._totals().waiting)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
