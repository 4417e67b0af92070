"""Defects that others had, as tests of ours: several limits in one, several callers at once."""

from __future__ import annotations

import asyncio
import random
from itertools import permutations

import pytest
from helpers.driving import SECOND, Crowd, one_loop, turns
from helpers.strategies import EACH

import aiorate
from aiorate.testing import ManualClock, simulate

pytestmark = one_loop


@pytest.mark.parametrize("name", ["TokenBucket", "SlidingWindow", "CalendarWindow", "AllOf"])
async def test_a_hundred_at_once_are_charged_before_they_go(name: str) -> None:
    """M3, BerriAI/litellm#18730: all of them passed, since each was charged when it was done."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    most = crowd.limiter.scheduler.max_permits

    await crowd.queue(range(100))

    assert len(crowd.granted) == most


@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket", "CalendarWindow"])
async def test_a_permit_that_comes_back_serves_one(name: str) -> None:
    """M4, temporalio/temporal#7590: a recycled token let two waiters through."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    while crowd.limiter.try_acquire():
        pass
    await crowd.queue(range(5))

    crowd.limiter.refund(1)
    await turns(12)

    assert list(crowd.granted) == [0]


async def test_the_place_of_a_limit_among_others_changes_nothing() -> None:
    """M5, envoyproxy/envoy#46390: one that was met first kept another from being looked at."""
    orders = permutations(("TokenBucket", "SlidingWindow", "AllOf"))

    schedules = [simulate(aiorate.AllOf(*(EACH[name]() for name in order)), [0] * 50) for order in orders]

    assert all(schedule == schedules[0] for schedule in schedules)


@pytest.mark.parametrize("turned", [False, True])
async def test_limits_that_contradict_each_other_are_all_kept(turned: bool) -> None:
    """M6, vutran1710/PyrateLimiter 4.3 (#239): lists of rates in the wrong order were enforced wrongly, and silently."""
    members = [aiorate.SlidingWindow("10/s"), aiorate.SlidingWindow("5/min")]
    both = aiorate.AllOf(*(reversed(members) if turned else members))

    instants = simulate(both, [0] * 12)

    assert instants == [0] * 5 + [60 * SECOND] * 5 + [120 * SECOND] * 2
    assert (both.bound(SECOND), both.bound(60 * SECOND), both.rate) == (5, 5, aiorate.Rate(5, per=60))


@pytest.mark.parametrize("name", EACH)
async def test_callers_side_by_side_get_the_rate_together_and_not_each(name: str) -> None:
    """M7, golang/go#43858, golang/go#45245: what parallel callers got added up to more than the rate."""
    clock = ManualClock()
    limiter = aiorate.Limiter(EACH[name](), clock=clock)
    granted: list[int] = []

    async def worker() -> None:
        while True:
            await limiter.acquire()
            granted.append(clock.now())

    workers = [asyncio.ensure_future(worker()) for _ in range(20)]
    await clock.run(10)
    for task in workers:
        task.cancel()
    await turns(3)

    assert granted == simulate(EACH[name](), [0] * len(granted))
    assert simulate(EACH[name](), [0] * (len(granted) + 1))[-1] > 10 * SECOND


async def test_a_pause_of_one_limiter_is_no_pause_of_another() -> None:
    """F7, alexei-led/ccgram#171, python-telegram-bot/python-telegram-bot#3765: one flooded chat froze all the others."""
    clock = ManualClock()
    flooded, free = (aiorate.Limiter("10/s", clock=clock) for _ in range(2))
    flooded.pause(60)

    assert (flooded.delay(), free.delay()) == (60.0, 0.0)
    assert free.try_acquire()


@pytest.mark.parametrize("name", EACH)
async def test_one_who_was_granted_may_cancel_all_the_others_from_its_own_step(name: str) -> None:
    """C5, dotnet/runtime#85523: a cancellation from inside a grant waited for the lock that the grant held."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    while crowd.limiter.try_acquire():
        pass

    async def first() -> None:
        await crowd.limiter.acquire()
        for who in "ABC":
            crowd.tasks[who].cancel()
        crowd.ask("again")

    task = asyncio.ensure_future(first())
    await turns(2)
    await crowd.queue("ABC")
    await clock.run(5)

    assert task.done()
    assert list(crowd.granted) == ["again"]
    assert crowd.limiter.statistics().cancelled == 3


@pytest.mark.parametrize("name", EACH)
async def test_everybody_who_left_is_as_if_never_come(name: str) -> None:
    """C1, python/asyncio#270; C4, thrasher-corp/gocryptotrader#2363, mvanhorn/cli-printing-press#4441: tokens of theirs were gone."""
    dice, clock, quiet = random.Random(4), ManualClock(), ManualClock()
    limiter, twin = aiorate.Limiter(EACH[name](), clock=clock), aiorate.Limiter(EACH[name](), clock=quiet)
    while limiter.try_acquire():
        assert twin.try_acquire()
    crowd = Crowd(limiter, clock)

    await crowd.queue(range(30))
    for who in sorted(crowd.tasks, key=lambda _: dice.random()):
        crowd.tasks[who].cancel()
        await turns(dice.randrange(2))
    await turns(5)

    for instant in (0, SECOND // 20, 2 * SECOND):
        clock.set(instant)
        quiet.set(instant)
        assert limiter.delay() == twin.delay()


async def test_a_clock_that_steps_back_and_forth_grants_no_more_than_the_bound() -> None:
    """T1, golang/go#65508, golang/go#23145, golang/go#56287: each step back was paid for as time that passed."""
    for name in (name for name in EACH if name != "TicksAccumulator" and "half" not in name):
        dice, clock = random.Random(name), ManualClock()
        limiter = aiorate.Limiter(EACH[name](), clock=clock)
        granted = 0
        for _ in range(2_000):
            clock.set(dice.randrange(SECOND))
            granted += limiter.try_acquire()

        assert granted <= (limiter.bound(1) or 0)
