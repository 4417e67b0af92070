"""Four levels of limiters through random histories: whatever comes back, no bound is exceeded at any level."""

from __future__ import annotations

import random

import pytest
from helpers.driving import SECOND, one_loop
from helpers.levels import Levels, at_rest
from helpers.samples import histories, sampled

import aiorate
from aiorate.testing import ManualClock

OFTEN = ("ask",) * 8 + ("try",) * 3 + ("late", "late", "cancel", "cancel", "cancel granted")
SELDOM = ("pause", "resume", "refund", "refund", "charge") * 4


@one_loop
@sampled
@pytest.mark.parametrize("seed", range(histories(250)))
async def test_four_levels_keep_all_bounds_and_grant_everybody(seed: int) -> None:
    """Whatever is asked, cancelled, given back, charged, paused and closed, and however late the loop is."""
    dice = random.Random(seed)
    clock = ManualClock(SECOND)
    levels = Levels(clock, dice)

    for _ in range(150):
        await clock.run(dice.choice((0, 0, 0.01, 0.1, 0.7)))
        what = dice.choice(OFTEN * 4 + SELDOM) if dice.random() < 0.99 else "close"
        if what == "ask":
            for _ in range(dice.randrange(1, 6)):
                levels.ask(dice.choice(levels.users if dice.random() < 0.9 else levels.all), dice.choice((1, 1, 2, 3)))
        elif what == "try":
            levels.try_acquire(dice.choice(levels.users))
        elif what == "late":  # timers fire all at once, after they were due
            clock.set(clock.now() + dice.randrange(1, 2 * SECOND))
        elif what == "pause":
            dice.choice(levels.all).pause(dice.random())
        elif what == "resume":
            dice.choice(levels.all).resume()
        elif what == "refund":
            levels.refund(dice.choice(levels.all), dice.randrange(1, 4))
        elif what == "charge":
            dice.choice(levels.all).charge(dice.randrange(1, 4))
        elif what == "close":
            await dice.choice(levels.all[3:]).aclose()  # not the one for all, nor a region
        else:
            if what == "cancel granted":
                clock.set(clock.now() + dice.randrange(1, SECOND // 2))
            for task in dice.sample(list(levels.tasks), k=min(3, len(levels.tasks))):
                task.cancel()
    await clock.run(600)

    assert all(task.done() for task in levels.tasks)
    for task, limiter in levels.tasks.items():
        if not task.cancelled() and task.exception() is not None:
            assert isinstance(task.exception(), aiorate.LimiterClosed)
            assert any(each._dispatcher.closed for each in levels.path(limiter))
    assert at_rest(levels.all, clock)
    for limiter in levels.all:
        statistics = limiter.statistics()
        assert statistics.granted == sum(permits for _, permits in levels.grants[limiter])
    assert levels.check_bounds() > 1_000
