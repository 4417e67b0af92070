"""Budgets through random histories: settling is exact, and no dimension of any of four levels exceeds its bound."""

from __future__ import annotations

import asyncio
import random
from copy import deepcopy

import pytest
from helpers.budget_levels import BudgetLevels
from helpers.driving import SECOND, one_loop, turns
from helpers.strategies import EACH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aiorate
from aiorate import Budget
from aiorate.testing import ManualClock


@settings(max_examples=50, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(["TokenBucket", "TokenBucket-paced", "TokenPool", "SlidingWindow", "CalendarWindow"]),
    steps=st.lists(
        st.tuples(st.sampled_from(["ask", "ask", "settle"]), st.integers(0, 9), st.sampled_from([0, 1, SECOND // 9, SECOND])), max_size=30
    ),
)
def test_settling_equals_having_reserved_the_amount_used(name: str, steps: list[tuple[str, int, int]]) -> None:
    """No permit is lost or created: a scheduler that was asked for the amounts used has the same level at the end."""

    async def main() -> None:
        clock, scheduler = ManualClock(), EACH[name]()
        knew = deepcopy(scheduler)
        knew.peek(1, 0)  # its schedule begins with the other's
        budget = Budget(work=scheduler, clock=clock)
        assert budget.delay() == 0.0
        taken: list[tuple[int, aiorate.Lease, int]] = []
        most = scheduler.max_permits or 2
        for does, number, gap in [*steps, *[("settle", 3, 0)] * 30]:
            clock.advance(gap / SECOND)
            if does == "ask" and budget.delay(work=1 + number % most) == 0.0:
                lease = await budget.reserve(work=1 + number % most).__aenter__()
                taken.append((clock.now(), lease, -1))
            elif does == "settle":
                still = [place for place, (_, _, used) in enumerate(taken) if used < 0]
                if still:
                    place = still[number % len(still)]
                    at, lease, _ = taken[place]
                    used = number % (lease.amounts["work"] + 1)
                    lease.settle(work=used)
                    taken[place] = at, lease, used
        for at, _, used in taken:
            if used:
                assert knew.take(used, at) <= at
        clock.advance(0.2)

        assert knew.available(clock.now()) == scheduler.available(clock.now())
        assert knew.peek(1, clock.now()) == scheduler.peek(1, clock.now())
        assert not scheduler.receipts

    asyncio.run(main())


OFTEN = ("ask",) * 6 + ("settle",) * 3 + ("end", "late", "cancel", "cancel granted", "refund", "error")
SELDOM = ("pause", "resume", "rest")


@one_loop
@pytest.mark.parametrize("seed", range(5))
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
            levels.closed.add(dice.choice(levels.all[3:]))  # not the one for all, nor a region
            await asyncio.gather(*(budget.aclose() for budget in levels.closed))
        elif what.startswith("cancel"):
            if what == "cancel granted":
                clock.set(clock.now() + dice.randrange(1, SECOND // 2))
            waiting = levels.going_on(inside=False)
            for call in dice.sample(waiting, k=min(3, len(waiting))):
                call.task.cancel()
        elif levels.going_on(inside=True):
            call = dice.choice(levels.going_on(inside=True))
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
        for call in levels.going_on(inside=True):
            call.over.set()
    await turns(5)

    assert all(call.task.done() for call in levels.calls)
    for call in levels.calls:
        error = None if call.task.cancelled() else call.task.exception()
        closed = not levels.closed.isdisjoint(levels.paths[call.budget])
        assert error is None or (closed and isinstance(error, aiorate.LimiterClosed)) or (call.fails and isinstance(error, OSError))
    assert 0 == clock.timers
    for budget in levels.all:
        assert (0, [False] * len(levels.own[budget])) == (budget.waiting, [each.receipts for each in levels.own[budget].values()])
    assert levels.check_bounds() > 1_000
