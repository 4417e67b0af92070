"""What an estimate costs does not grow with the line, the log or the debt.

Calls of functions are counted, as the interpreter's profiler sees them, so that a slow machine fails nothing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
from helpers.driving import Crowd, one_loop, turns
from helpers.strategies import EACH

from aiorate import (
    AllOf,
    Budget,
    BurstCompensation,
    BurstRatio,
    CalendarWindow,
    KeyedLimiter,
    Limiter,
    LimiterError,
    LineFull,
    Scheduler,
    SlidingWindow,
    SmoothBursty,
    SmoothWarmingUp,
    TicksAccumulator,
    TokenBucket,
    TokenPool,
    WaitTooLong,
)
from aiorate.http import read_feedback
from aiorate.testing import ManualClock


class Counted(TokenBucket):
    """A bucket that counts how often it is asked, copies included."""

    asked = 0

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        Counted.asked += 1
        return super().take(permits, now, since)

    def peek(self, permits: int, now: int) -> int:
        Counted.asked += 1
        return super().peek(permits, now)


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("question", ["max_wait", "delay"])
async def test_long_line_is_not_walked_again_after_each_departure(question: str) -> None:
    """One cancellation made the next ``max_wait`` or ``delay()`` rehearse the whole line, 184 ms with 20 000 waiting."""
    waiting, rounds = 2_000, 100
    clock = ManualClock()
    crowd = Crowd(Limiter(Counted("1/s", burst=1), clock=clock), clock)
    assert crowd.limiter.try_acquire()
    await crowd.queue(range(waiting))
    Counted.asked = 0

    for who in range(waiting - rounds, waiting):
        crowd.tasks[who].cancel()
        await turns(2)
        if question == "delay":
            assert crowd.limiter.delay() >= waiting - rounds
        else:
            with pytest.raises(WaitTooLong):
                await crowd.limiter.acquire(max_wait=0)

    # The line is walked once, two questions for each request in it; then 64 requests for each question until those are paid for.
    assert 2 * waiting + 2 * 64 * rounds + 10 * rounds >= Counted.asked
    for task in crowd.tasks.values():
        task.cancel()
    await turns(3)


class Asked(Exception):
    """A scheduler was asked more often than a question is worth."""


def asked_seldom(kind: type[Scheduler]) -> Callable[..., Scheduler]:
    """Return the strategy with a limit of 100 questions."""
    left = 100

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Asked

    class Seldom(kind):  # type: ignore[misc, valid-type]
        def take(self, permits: int, now: int, since: int | None = None) -> int:
            count()
            return int(super().take(permits, now, since))

        def peek(self, permits: int, now: int) -> int:
            count()
            return int(super().peek(permits, now))

    return Seldom


LARGE: dict[str, Callable[[], Scheduler]] = {
    "TokenPool": lambda: asked_seldom(TokenPool)("1/s"),
    "TicksAccumulator": lambda: asked_seldom(TicksAccumulator)("1/s"),
    "BurstCompensation": lambda: asked_seldom(BurstCompensation)("1/s"),
    "BurstRatio": lambda: asked_seldom(BurstRatio)("1/s"),
    "SmoothBursty": lambda: asked_seldom(SmoothBursty)("1/s"),
    "SmoothWarmingUp": lambda: asked_seldom(SmoothWarmingUp)("1/s", warmup=2),
    "TokenBucket": lambda: asked_seldom(TokenBucket)("1/s", burst=1),
    "SlidingWindow": lambda: asked_seldom(SlidingWindow)("1/s"),
    "CalendarWindow": lambda: asked_seldom(CalendarWindow)("1/s", "UTC", origin=0),
    "AllOf": lambda: AllOf(asked_seldom(TokenBucket)("1/s", burst=1), asked_seldom(SlidingWindow)("1/s")),
}


@pytest.mark.parametrize("strategy", LARGE)
def test_a_debt_costs_the_same_however_large_it_is(strategy: str) -> None:
    """A charge was walked in portions at every ``delay()``: 6 s for a million permits on a bucket of one."""
    debt = 10**18
    limiter = Limiter(LARGE[strategy](), clock=ManualClock())
    assert limiter.delay() == 0.0  # starts every schedule

    limiter.charge(debt)

    assert limiter.delay() == pytest.approx(debt, rel=1e-15)
    with pytest.raises(WaitTooLong):
        asyncio.run(limiter.acquire(max_wait=1e9))
    limiter.charge(debt)
    assert limiter.delay() == pytest.approx(2 * debt, rel=1e-15)


QUOTA = read_feedback(200, {"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset-After": "30"})


def cost(ask: Callable[[], Any]) -> int:
    """Count the function calls until the answer."""
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


def refused(coroutine: Any) -> None:
    """Run it to its error, which comes at once, without a wait."""
    with pytest.raises(LimiterError):
        coroutine.send(None)


def filled(size: int, clock: ManualClock, **options: Any) -> Limiter:
    """Return a full window whose log has an entry for every permit."""
    limiter = Limiter(SlidingWindow(f"{size}/day"), clock=clock, **options)
    begin = clock.now()
    for permit in range(size):
        clock.set(begin + permit)
        assert limiter.try_acquire()
    return limiter


def questions(limiter: Limiter) -> dict[str, Callable[[], Any]]:
    """Return every question that needs no wait."""
    return {
        "delay": limiter.delay,
        "delay of all": lambda: limiter.delay(limiter.scheduler.max_permits or 1),
        "a refused max_wait": lambda: refused(limiter.acquire(max_wait=0)),
        "statistics": limiter.statistics,
        "available": lambda: limiter.scheduler.available(0),
    }


async def costs_of_a_log(situation: str, size: int) -> dict[str, int]:
    """Return what each question costs for a window whose log has ``size`` entries."""
    clock = ManualClock()
    limiter = filled(size, clock)
    tasks = []
    if situation == "shared":
        keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("10/s", burst=5), clock=clock), shared=limiter)
        tasks = [asyncio.ensure_future(keyed.acquire(key)) for key in ("a", "a", "b")]
        limiter = keyed["a"]
    elif situation == "waiting":
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(3)]
    await turns(3)
    if situation == "paused":
        limiter.pause(5)
    elif situation == "a quota":
        limiter.observe(QUOTA)
    found = {name: cost(ask) for name, ask in questions(limiter).items()}
    limiter.charge(1)
    found["after a change"] = cost(limiter.delay)
    for task in tasks:
        task.cancel()
    await turns(3)
    return found


@one_loop
@pytest.mark.parametrize("situation", ["at rest", "paused", "a quota", "waiting", "shared"])
async def test_no_answer_costs_more_for_a_longer_log(situation: str) -> None:
    """A window of 10 000 a day was copied for each question, in 42 ms; one of 100 000 in 700 ms."""
    short, long = await costs_of_a_log(situation, 50), await costs_of_a_log(situation, 5_000)

    assert {} == {name: (short[name], calls) for name, calls in long.items() if calls > short[name] + 20}
    assert max(long.values()) < 1_500


async def costs_of_a_line(kind: str, waiting: int) -> tuple[int, int]:
    """Return what ``delay()`` and ``statistics()`` cost with ``waiting`` requests in a line that shares a limit."""
    clock = ManualClock()
    shared = Limiter(SlidingWindow("10/s") if "window" in kind else TokenBucket("1000/s", burst=5), clock=clock)
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
@pytest.mark.parametrize("kind", ["key", "key of a window", "budget"])
async def test_no_answer_costs_more_for_a_longer_line(kind: str) -> None:
    """With 100 000 requests waiting for one key that shares a limit, each question took 91 ms."""
    short, _ = await costs_of_a_line(kind, 60)
    long, statistics = await costs_of_a_line(kind, 4_000)

    assert short + 20 >= long
    assert statistics < 1_500


@one_loop
@pytest.mark.parametrize("name", EACH)
async def test_alternating_changes_and_questions_walk_no_line(name: str) -> None:
    """Settling a lease changes the budget, and the next reservation with ``max_wait`` rehearsed the whole line again."""
    clock = ManualClock()
    limiter = Limiter(EACH[name](), clock=clock)
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(3_000)]
    await turns(3)
    limiter.delay()

    def both() -> None:
        limiter.charge(1)
        limiter.delay()

    assert cost(both) < 5_000  # a few for each of the first 32 requests
    for task in tasks:
        task.cancel()
    await turns(3)


@one_loop
async def test_arrival_at_a_full_line_for_places_does_not_walk_it() -> None:
    """With ``max_concurrency`` and ``max_waiting``, each arrival walked the line for places: 11 ms for 20 000 waiters."""
    clock = ManualClock()
    waiting = 5_000
    limiter = Limiter("1000/s", clock=clock, max_concurrency=1, max_waiting=waiting)
    await limiter._enter(1)
    arrivals = 0

    async def enter() -> None:
        nonlocal arrivals
        await limiter._enter(1)
        arrivals += 1
        limiter._leave()

    tasks = [asyncio.ensure_future(enter()) for _ in range(waiting)]
    await turns(3)
    calls = sum(cost(lambda: refused(limiter._enter(1))) for _ in range(100))

    assert 100 * 200 + 3 * waiting > calls  # a part of the line for each, and all of it a few times
    with pytest.raises(LineFull):
        await limiter._enter(1)
    for task in tasks[::2]:
        task.cancel()
    await turns(3)
    assert waiting // 2 == limiter.statistics().waiting
    limiter._leave()
    await clock.run(10)
    assert waiting // 2 == arrivals
