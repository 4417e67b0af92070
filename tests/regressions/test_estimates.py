"""Estimates: `delay()` and `max_wait` behind long lines and shared limits, and what they cost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
from helpers.driving import one_loop, turns
from helpers.strategies import EACH

from aiorate import (
    Budget,
    KeyedLimiter,
    Limiter,
    SlidingWindow,
    TokenBucket,
    WaitTooLong,
)
from aiorate.testing import ManualClock, VirtualLoop

KEYS = 90  # more than a question looks at one by one, and less than twice the window


def test_newcomer_behind_a_line_after_a_pause_is_told_the_truth() -> None:
    """Its request was judged by the clock's reading, which is later by the pause: refused for 2.6 s instead of waiting 0.65 s."""

    async def main() -> tuple[float, float]:
        limiter = Limiter("20/s")
        waiting = [asyncio.ensure_future(limiter.acquire()) for _ in range(20)]
        await asyncio.sleep(0)
        limiter.pause(2)
        await asyncio.sleep(2.35)
        said = limiter.delay()
        waited = await limiter.acquire(max_wait=1.5)
        await asyncio.wait(waiting)
        return said, waited

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        said, waited = runner.run(main())

    assert said == waited < 0.75


@one_loop
async def test_delay_is_exact_after_some_have_left_a_long_line() -> None:
    """Beside a line of 5900, seven of which were cancelled, it said 1477.0 s where 1475.25 s was right."""
    for name in ("TokenPool", "BurstRatio", "SmoothBursty", "TokenBucket", "SlidingWindow"):
        clock = ManualClock()
        limiter = Limiter(EACH[name](), clock=clock)
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(500)]
        await turns(3)
        limiter.delay()
        for task in tasks[1:-1:2][:7]:
            task.cancel()
        await turns(3)
        said = limiter.delay()

        last = asyncio.ensure_future(limiter.acquire())
        await clock.run(said - 0.000_001)
        assert not last.done(), name
        await clock.run(0.000_002)
        assert last.done(), name
        assert not limiter.statistics().waiting, name


@one_loop
async def test_available_of_a_window_is_what_one_request_is_granted() -> None:
    """``statistics()`` of a full window of 100 000 took 16 ms, because it tried one size after the other."""
    clock = ManualClock()
    limiter = Limiter(SlidingWindow("20/s"), clock=clock)
    for step in range(400):
        clock.advance(0.013 * (step % 7))
        available = limiter.statistics().available
        assert available == max(size for size in range(21) if not size or not limiter.delay(size))
        if available:
            assert limiter.try_acquire(1 + step % available)
        else:
            with pytest.raises(WaitTooLong):
                await limiter.acquire(max_wait=0)
        if step % 11 == 0:
            limiter.refund(2)
        if step % 17 == 0:
            limiter.charge(5)


@one_loop
async def test_estimate_of_a_key_behind_many_others_at_a_shared_window() -> None:
    """It raised IndexError: a window rehearsed past its line forgot the log that the rest follows from."""
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


def cost(ask: Callable[[], Any]) -> int:
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    ask()  # imports and caches
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        ask()
    finally:
        sys.setprofile(before)
    return calls


async def costs_of_a_line(kind: str, waiting: int) -> tuple[int, int]:
    """Return what ``delay()`` and ``statistics()`` cost with ``waiting`` requests in a line that shares a limit."""
    clock = ManualClock()
    shared = Limiter(TokenBucket("1000/s", burst=5), clock=clock)
    keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("10/s", burst=5), clock=clock), shared=shared)
    budget = Budget(clock=clock, requests="10/s", tokens=SlidingWindow("1000/min"), all=shared)

    async def call() -> None:
        if kind == "budget":
            async with budget.reserve(tokens=300):
                pass
        else:
            await keyed.acquire("a")

    tasks = [asyncio.ensure_future(call()) for _ in range(waiting)]
    await turns(3)
    found = (cost(budget.delay), cost(budget.statistics)) if kind == "budget" else (cost(keyed["a"].delay), cost(keyed["a"].statistics))
    for task in tasks:
        task.cancel()
    await turns(3)
    return found


@one_loop
@pytest.mark.parametrize("kind", ["key", "budget"])
async def test_no_answer_costs_more_for_a_longer_line(kind: str) -> None:
    """With 100 000 requests waiting for one key that shares a limit, each question took 91 ms."""
    short, _ = await costs_of_a_line(kind, 60)
    long, statistics = await costs_of_a_line(kind, 2_000)

    assert short + 20 >= long
    assert statistics < 1_500
