"""Budgets that share a budget or a limiter take turns there, by its first dimension."""

from __future__ import annotations

import asyncio

from helpers.driving import SteppedClock, one_loop, turns
from helpers.turns import furthest

from aiorate import Budget, KeyedBudget, Limiter, TokenBucket

pytestmark = one_loop


class Reservations:
    """Reservations of two keys, granted in the order of ``grants``, with the tokens of each."""

    def __init__(self, keyed: KeyedBudget[str]) -> None:
        self.keyed = keyed
        self.grants: list[tuple[str, int]] = []

    async def reserve(self, key: str, tokens: int) -> None:
        async with self.keyed.reserve(key, tokens=tokens):
            self.grants.append((key, tokens))

    async def fill(self, sizes: dict[str, int], each: int) -> list[asyncio.Task[None]]:
        tasks = [asyncio.ensure_future(self.reserve(key, size)) for _ in range(each) for key, size in sizes.items()]
        await turns(3)
        return tasks


async def test_keys_of_budgets_share_the_first_dimension_alike() -> None:
    """Where one reserves five times as many tokens at a time, it gets a fifth of the reservations."""
    clock = SteppedClock()
    shared = Budget(tokens=TokenBucket("100/s", burst=50, initial=0), requests=TokenBucket("1000/s", burst=50), clock=clock)
    calls = Reservations(KeyedBudget[str](lambda key: Budget(tokens=TokenBucket("9999/s", burst=9999), clock=clock), shared=shared))
    tasks = await calls.fill({"large": 25, "small": 5}, 300)

    while len(calls.grants) < 240:
        clock.fire()
        await turns(6)

    assert furthest(calls.grants[:240], {"large": 1, "small": 1}) <= 25
    assert 190 <= [key for key, _ in calls.grants[:240]].count("small") <= 210
    for task in tasks:
        task.cancel()
    await turns(4)
    assert clock.next_timer is None


async def test_reservations_of_zero_do_not_hold_up_others() -> None:
    """They take nothing of the first dimension, and count as one."""
    clock = SteppedClock()
    shared = Budget(tokens=TokenBucket("100/s", burst=50), requests=TokenBucket("10/s", burst=1, initial=0), clock=clock)
    calls = Reservations(KeyedBudget[str](lambda key: Budget(tokens=TokenBucket("9999/s", burst=9999), clock=clock), shared=shared))
    tasks = await calls.fill({"none": 0, "one": 1}, 50)

    while len(calls.grants) < 20:
        clock.fire()
        await turns(6)

    assert [key for key, _ in calls.grants[:20]].count("one") == 10
    for task in tasks:
        task.cancel()
    await turns(4)


async def test_budgets_and_keys_take_turns_at_one_limiter() -> None:
    """The shared limiter of a budget counts its dimension."""
    clock = SteppedClock()
    tokens = Limiter(TokenBucket("100/s", burst=50, initial=0), clock=clock)
    budgets = {key: Budget(requests="9999/s", tokens=tokens, clock=clock) for key in "ab"}
    grants: list[tuple[str, int]] = []

    async def reserve(key: str, size: int) -> None:
        async with budgets[key].reserve(tokens=size):
            grants.append((key, size))

    tasks = [asyncio.ensure_future(reserve(key, size)) for _ in range(300) for key, size in (("a", 20), ("b", 4))]
    await turns(3)
    while len(grants) < 200:
        clock.fire()
        await turns(6)

    assert furthest(grants[:200], {"a": 1, "b": 1}) <= 20
    for task in tasks:
        task.cancel()
    await turns(4)
