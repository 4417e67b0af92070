"""Budgets through random histories: settling is exact, and no dimension of any of four levels exceeds its bound."""

from __future__ import annotations

import asyncio
import random
from copy import deepcopy

import pytest
from helpers.driving import SECOND, one_loop, turns
from helpers.strategies import EACH
from hypothesis import given, settings
from hypothesis import strategies as st

import aiorate
from aiorate import Budget
from aiorate.testing import ManualClock


@settings(max_examples=50)
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
    assert not any(budget.waiting for budget in levels.all)
    assert levels.check_bounds() > 1_000


# Levels.


BOUNDED = [name for name in EACH if name not in {"TicksAccumulator", "CalendarWindow"}]  # strategies that have a bound for any history
LATE = (0, 0.02, 0.3, 2)  # seconds of catch_up
WINDOWS = (0.05, 0.1, 0.5, 1, 3, 10)  # seconds


class Call:
    """A task that reserves, and stays in its block until `over` is set."""

    def __init__(self, levels: BudgetLevels, budget: aiorate.Budget, amounts: dict[str, int]) -> None:
        self.budget, self.lease = budget, budget.reserve(**amounts)
        self.kept = dict(self.lease.amounts)  # what of the amounts was not given back
        self.inside = self.fails = False
        self.over = asyncio.Event()
        self.task = asyncio.ensure_future(self._run(levels))

    async def _run(self, levels: BudgetLevels) -> None:
        async with self.lease:
            self.inside = True
            levels.note(self)
            await self.over.wait()
            if self.fails:
                raise OSError("broken")

    def settle(self, used: dict[str, int]) -> None:
        """Report the use; what is above the estimate is a debt, and none of its permits were granted."""
        self.lease.settle(**used)
        self.kept.update({name: min(amount, self.kept[name]) for name, amount in used.items()})
        self.over.set()

    def fail(self) -> None:
        """End the block by an exception, for which the budget gives everything back."""
        self.fails, self.kept = True, dict.fromkeys(self.kept, 0)
        self.over.set()


class BudgetLevels:
    """``users`` share teams, teams share regions, and these one budget. No level has all of the names."""

    def __init__(self, clock: ManualClock, dice: random.Random) -> None:
        self.clock, self.dice = clock, dice
        self.all: list[aiorate.Budget] = []
        self.own: dict[aiorate.Budget, dict[str, aiorate.Scheduler]] = {}
        self.late: dict[aiorate.Budget, int] = {}
        self.paths: dict[aiorate.Budget, list[aiorate.Budget]] = {}  # each budget and all above it
        self.grants: dict[tuple[aiorate.Budget, str], list[tuple[int, Call]]] = {}
        self.calls: list[Call] = []
        self.closed: set[aiorate.Budget] = set()
        top = self.budget(("tokens", "words"))
        regions = {region: self.budget(("tokens",), top) for region in "ew"}
        teams = {team: self.budget(("words", "calls"), regions[team[0]]) for team in ("e0", "e1", "w0")}
        self.users = [self.budget(("calls", "tokens"), team) for team in teams.values() for _ in range(2)]

    def budget(self, names: tuple[str, ...], above: aiorate.Budget | None = None) -> aiorate.Budget:
        own = {name: EACH[self.dice.choice(BOUNDED)]() for name in names}
        for scheduler in own.values():
            scheduler.peek(1, self.clock.now())  # the first instant that is passed starts a schedule
        late = self.dice.choice(LATE)
        budget = aiorate.Budget(**own, catch_up=late, clock=self.clock, on_error="refund", shared=above)
        self.all.append(budget)
        self.own[budget], self.late[budget] = own, round(late * SECOND)
        self.paths[budget] = [budget, *(self.paths[above] if above is not None else [])]
        self.grants.update({(budget, name): [] for name in names})
        return budget

    def ask(self, budget: aiorate.Budget) -> None:
        """Start a call of random amounts, some of which are 0 and some not named."""
        names = self.dice.sample(budget.dimensions, k=self.dice.randrange(len(budget.dimensions) + 1))
        self.calls.append(Call(self, budget, {name: self.dice.choice((0, 1, 1, 2, 3, 9)) for name in names}))

    def note(self, call: Call) -> None:
        for budget in self.paths[call.budget]:
            for name in self.own[budget]:
                self.grants[budget, name].append((self.clock.now(), call))

    def going_on(self, inside: bool) -> list[Call]:
        """The calls whose blocks go on, or those that wait."""
        return [call for call in self.calls if not call.task.done() and call.inside is inside and not call.over.is_set()]

    def check_bounds(self) -> int:
        """Assert that no dimension of any level exceeds its bound in any window; returns the number of windows."""
        windows = 0
        for (budget, name), grants in self.grants.items():
            largest = max((call.lease.amounts[name] for _, call in grants), default=1)
            for seconds in WINDOWS:
                window = int(seconds * SECOND)
                bound = self.own[budget][name]._bound_when_late(window, largest, self.late[budget])
                most = begin = inside = 0
                for instant, call in grants:
                    inside += call.kept[name]
                    while instant - grants[begin][0] >= window:
                        inside -= grants[begin][1].kept[name]
                        begin += 1
                    most = max(most, inside)
                assert bound is None or most <= bound, (budget, name, seconds, most, bound)
                windows += len(grants)
        return windows
