"""Defects found by the second attack: numbers 10, 22 and 44.

What an answer costs is counted in calls of functions, as the profiler of the interpreter sees them, so that no machine is too slow.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from helpers.driving import one_loop, turns
from helpers.strategies import EACH

from aiorate import Budget, KeyedLimiter, Limiter, LimiterError, LineFull, SlidingWindow, TokenBucket, WaitTooLong
from aiorate.http import read_feedback
from aiorate.testing import ManualClock

pytestmark = one_loop

DAY = 86_400
QUOTA = read_feedback(200, {"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset-After": "30"})


def cost(ask: Callable[[], Any]) -> int:
    """How many functions are called until it has answered."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    ask()  # what is imported, or found out once
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        ask()
    finally:
        sys.setprofile(before)
    return calls


def refused(coroutine: Any) -> None:
    """Run it to its error; it is refused at once, and never waits."""
    with pytest.raises(LimiterError):
        coroutine.send(None)


def filled(size: int, clock: ManualClock, **options: Any) -> Limiter:
    """A window that has no room left, and whose log has an entry for every permit."""
    limiter = Limiter(SlidingWindow(f"{size}/day"), clock=clock, **options)
    begin = clock.now()
    for permit in range(size):
        clock.set(begin + permit)
        assert limiter.try_acquire()
    return limiter


def questions(limiter: Limiter) -> dict[str, Callable[[], Any]]:
    """All that is asked without waiting."""
    return {
        "delay": limiter.delay,
        "delay of all": lambda: limiter.delay(limiter.scheduler.max_permits or 1),
        "a refused max_wait": lambda: refused(limiter.acquire(max_wait=0)),
        "statistics": limiter.statistics,
        "available": lambda: limiter.scheduler.available(0),
    }


async def costs_of_a_log(situation: str, size: int) -> dict[str, int]:
    """What each question costs of a window with so many entries."""
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


@pytest.mark.parametrize("situation", ["at rest", "paused", "a quota", "waiting", "shared"])
async def test_no_answer_costs_more_for_a_longer_log(situation: str) -> None:
    """Number 10: a window of 10 000 a day was copied for each question, 42 ms; and of 100 000, 700 ms."""
    short, long = await costs_of_a_log(situation, 50), await costs_of_a_log(situation, 5_000)

    assert {} == {name: (short[name], calls) for name, calls in long.items() if calls > short[name] + 20}
    assert max(long.values()) < 1_500


async def costs_of_a_line(kind: str, waiting: int) -> tuple[int, int]:
    """What ``delay()`` and ``statistics()`` cost, with so many in a line that shares a limit."""
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


@pytest.mark.parametrize("kind", ["key", "key of a window", "budget"])
async def test_no_answer_costs_more_for_a_longer_line(kind: str) -> None:
    """Number 10: with 100 000 waiting in one key that shares a limit, each question took 91 ms."""
    short, _ = await costs_of_a_line(kind, 60)
    long, statistics = await costs_of_a_line(kind, 4_000)

    assert short + 20 >= long
    assert statistics < 1_500


@pytest.mark.parametrize("name", EACH)
async def test_a_change_and_a_question_by_turns_do_not_walk_the_line(name: str) -> None:
    """Number 10: a lease that is settled changes the budget, and the next reservation with ``max_wait`` rehearsed all in line anew."""
    clock = ManualClock()
    limiter = Limiter(EACH[name](), clock=clock)
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(3_000)]
    await turns(3)
    limiter.delay()

    def both() -> None:
        limiter.charge(1)
        limiter.delay()

    assert cost(both) < 5_000  # a few for each of the first 32
    for task in tasks:
        task.cancel()
    await turns(3)


@pytest.mark.parametrize("name", sorted(set(EACH) - {"AllOf"}))
@pytest.mark.parametrize("leaving", [7, 700])
async def test_delay_is_exact_after_some_have_left_a_long_line(name: str, leaving: int) -> None:
    """Number 44: beside a line of 5900, of which seven were cancelled, it said 1477.0 s; 1475.25 were true."""
    clock = ManualClock()
    limiter = Limiter(EACH[name](), clock=clock)
    tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(1_500)]
    await turns(3)
    limiter.delay()
    for task in tasks[1:-1:2][:leaving]:
        task.cancel()
    await turns(3)
    said = limiter.delay()

    last = asyncio.ensure_future(limiter.acquire())
    await clock.run(said - 0.000_001)
    assert not last.done()
    await clock.run(0.000_002)
    assert last.done()
    assert not limiter.statistics().waiting


async def test_an_arrival_at_a_full_line_for_places_does_not_walk_it() -> None:
    """Number 22: with ``max_concurrency`` and ``max_waiting``, each one looked at all who waited for a place: 11 ms at 20 000."""
    clock = ManualClock()
    waiting = 5_000
    limiter = Limiter("1000/s", clock=clock, max_concurrency=1, max_waiting=waiting)
    await limiter.enter(1)
    arrivals = 0

    async def enter() -> None:
        nonlocal arrivals
        await limiter.enter(1)
        arrivals += 1
        limiter.leave()

    tasks = [asyncio.ensure_future(enter()) for _ in range(waiting)]
    await turns(3)
    calls = sum(cost(lambda: refused(limiter.enter(1))) for _ in range(100))

    assert 100 * 200 + 3 * waiting > calls  # a part of the line for each, and all of it a few times
    with pytest.raises(LineFull):
        await limiter.enter(1)
    for task in tasks[::2]:
        task.cancel()
    await turns(3)
    assert waiting // 2 == limiter.statistics().waiting
    limiter.leave()
    await clock.run(10)
    assert waiting // 2 == arrivals


async def test_max_waiting_counts_those_who_wait_for_a_place_and_for_permits() -> None:
    """Number 22: the sum of both is exact in a short line, and a task that was cancelled makes room before it has run."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("1/s", burst=2), clock=clock, max_concurrency=3, max_waiting=3)
    tasks = [asyncio.ensure_future(limiter.enter(1)) for _ in range(5)]
    await turns(3)
    assert 3 == limiter.statistics().waiting
    with pytest.raises(LineFull):
        await limiter.enter(1)
    tasks[4].cancel()
    late = asyncio.ensure_future(limiter.enter(1))
    await turns(3)
    assert 3 == limiter.statistics().waiting
    for task in (*tasks, late):
        task.cancel()
    with suppress(asyncio.CancelledError):
        await late


async def test_available_of_a_window_is_what_one_request_is_granted() -> None:
    """Number 22: ``statistics()`` of a full window of 100 000 took 16 ms, since it asked for one size after the other."""
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


async def test_large_requests_of_a_window_are_exact_once_enough_was_asked() -> None:
    """Number 44: of ten in a second, 6 at once go once a second; until the line is rehearsed anew, ten in a second count."""
    clock = ManualClock()
    limiter = Limiter(SlidingWindow("10/s"), clock=clock)
    tasks: list[asyncio.Task[float]] = []

    async def stand(count: int) -> None:
        tasks.extend([asyncio.ensure_future(limiter.acquire(6)) for _ in range(count)])
        await turns(3)

    def asked_until(exact: float) -> int:
        for questions in range(50):
            if limiter.delay(6) == exact:
                return questions
            assert exact * 0.6 < limiter.delay(6) < exact
        return 50

    for _ in range(2):
        await stand(101)
        begin = limiter.delay(6)
        assert begin % 1 == 0
        assert 100 <= begin <= 101  # the first question is answered exactly
        limiter.set_rate("10/s")
        assert 1 < asked_until(begin) <= 5
        await stand(100)
        limiter.set_rate("10/s")
        assert 1 < asked_until(begin + 100) <= 5  # those who joined meanwhile have paid for themselves
        for task in tasks:
            task.cancel()
        await turns(3)
        await clock.run(1)
