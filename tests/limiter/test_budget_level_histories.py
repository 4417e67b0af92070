"""Four levels of budgets through random histories: whatever comes back, no bound is exceeded at any level."""

from __future__ import annotations

import random

import pytest
from helpers.budget_levels import BudgetLevels
from helpers.driving import SECOND, one_loop, turns
from helpers.samples import histories, sampled

import aiorate
from aiorate.testing import ManualClock

pytestmark = one_loop

OFTEN = ("ask",) * 6 + ("settle",) * 3 + ("end", "late", "cancel", "cancel granted", "refund", "error")
SELDOM = ("pause", "resume", "rest")


@sampled
@pytest.mark.parametrize("seed", range(histories(200)))
async def test_four_levels_of_budgets_keep_all_bounds(seed: int) -> None:
    """With settlements below and above the estimate, refunds, errors, cancellations, pauses, stalls and closes."""
    dice = random.Random(seed)
    clock = ManualClock(SECOND)
    levels = BudgetLevels(clock, dice)

    for _ in range(200):
        await clock.run(dice.choice((0, 0, 0.01, 0.1, 0.7)))
        what = dice.choice(OFTEN * 4 + SELDOM) if dice.random() < 0.99 else "close"
        if what == "ask":
            for _ in range(dice.randrange(1, 5)):
                levels.ask(dice.choice(levels.users if dice.random() < 0.9 else levels.all))
        elif what == "late":  # timers fire all at once, after they were due
            clock.set(clock.now() + dice.randrange(1, 2 * SECOND))
        elif what == "pause":
            dice.choice(levels.all).pause(dice.random())
        elif what == "resume":
            dice.choice(levels.all).resume()
        elif what == "close":
            await dice.choice(levels.all[3:]).aclose()  # not the one for all, nor a region
        elif what.startswith("cancel"):
            if what == "cancel granted":
                clock.set(clock.now() + dice.randrange(1, SECOND // 2))
            for call in dice.sample(levels.waiting, k=min(3, len(levels.waiting))):
                call.task.cancel()
        elif levels.inside:
            call = dice.choice(levels.inside)
            names = dice.sample(call.budget.dimensions, k=dice.randrange(len(call.budget.dimensions) + 1))
            if what == "settle":
                call.settle({name: dice.choice((0, 0, 1, 2, 5)) for name in names})
            elif what == "refund":
                call.settle(dict.fromkeys(call.budget.dimensions, 0))
            elif what == "error":
                call.fail()
            elif what == "end":
                call.over.set()
    for _ in range(200):
        await clock.run(10)
        for call in levels.inside:
            call.over.set()
    await turns(5)

    assert all(call.task.done() for call in levels.calls)
    for call in levels.calls:
        error = None if call.task.cancelled() else call.task.exception()
        closed = any(budget._dispatcher.closed for budget in levels.path(call.budget))
        assert error is None or (closed and isinstance(error, aiorate.LimiterClosed)) or (call.fails and isinstance(error, OSError))
    assert levels.at_rest
    assert levels.check_bounds() > 1_000
