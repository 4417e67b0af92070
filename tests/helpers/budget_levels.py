"""Budgets that share budgets, on four levels: users, teams, regions, and one for all. Each has dimensions of random strategies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiorate
from helpers.driving import SECOND
from helpers.strategies import EACH

if TYPE_CHECKING:
    import random

    from aiorate.testing import ManualClock

__all__ = ["BudgetLevels"]

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
                bound = self.own[budget][name].bound_when_late(window, largest, self.late[budget])
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
