"""Defects found by the second attack: numbers 10 and 44, once more. A rehearsal stands in for the log and the line of a limiter."""

from __future__ import annotations

import asyncio

from helpers.driving import one_loop, turns

from aiorate import AllOf, BurstCompensation, KeyedLimiter, Limiter, SlidingWindow, TokenBucket
from aiorate.testing import ManualClock

pytestmark = one_loop

KEYS = 90  # more than a question looks at one by one, and not twice as many as the window holds


async def test_a_key_in_line_is_told_behind_many_others_at_a_shared_window() -> None:
    """Number 10: IndexError. A window whose line was taken ahead in a rehearsal forgot the log that the rest of it follows from."""
    clock = ManualClock()
    window = Limiter(SlidingWindow("50/2s"), clock=clock)
    keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("10/s", burst=9), clock=clock), shared=window)
    for _ in range(10):
        assert window.try_acquire(5)
        clock.advance(0.01)
    waiting = [asyncio.create_task(keyed.acquire(number % KEYS)) for number in range(2 * KEYS)]
    await turns(5)

    told = keyed[0].delay()
    last = asyncio.create_task(keyed.acquire(0))
    await clock.run(1_000)

    assert all(task.done() for task in waiting)
    assert 0 < told <= last.result()


async def test_a_key_with_a_shared_limit_is_told_what_catch_up_brings_it() -> None:
    """Number 44: 20 ms too long, or too short. Behind a shared limit, a late booking was not foretold as the key would make it."""
    clock = ManualClock()
    limit = AllOf(TokenBucket("10/s", burst=3), SlidingWindow("8/2s"))
    keyed = KeyedLimiter(lambda key: Limiter(limit, clock=clock), shared=Limiter(TokenBucket("1000/s", burst=8), clock=clock))
    for permits, seconds in ((1, 0.1), (1, 0.1), (3, 0.3), (3, 0)):
        assert keyed.try_acquire("key", permits)
        clock.advance(seconds)
    waiting = asyncio.create_task(keyed.acquire("key", 3))
    await turns(5)

    told = keyed["key"].delay()
    last = asyncio.create_task(keyed.acquire("key"))
    await clock.run(10)

    assert told == last.result() == 1.78
    assert waiting.done()


async def test_a_level_held_up_by_the_one_above_is_not_told_as_late() -> None:
    """Number 44: 20 ms too short. What waits at a third level for the first was rehearsed as if the second made up for the time."""
    clock = ManualClock()
    top = Limiter(SlidingWindow("8/3s"), clock=clock)
    tenants = KeyedLimiter(lambda key: Limiter(BurstCompensation("10/s", 1), clock=clock), shared=top)
    users = KeyedLimiter(lambda key: Limiter(TokenBucket("10/s", burst=3), clock=clock), shared=tenants["acme"])
    asked = [top.acquire(2), top.acquire(2), *(tenants.acquire("acme") for _ in range(2)), *(users.acquire("ann") for _ in range(6))]
    waiting = [asyncio.create_task(request) for request in asked]
    await clock.run(0.15)

    told = users["ann"].delay()
    last = asyncio.create_task(users.acquire("ann"))
    await clock.run(20)

    assert told == last.result() == 3.25
    assert all(task.done() for task in waiting)
