"""Budgets that share budgets, on four levels: users, teams, regions, and one for all. Each has dimensions of random strategies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiorate
from helpers.driving import SECOND
from helpers.levels import BOUNDED, LATE, WINDOWS, most_permits
from helpers.strategies import EACH

if TYPE_CHECKING:
    import random

    from aiorate.testing import ManualClock

__all__ = ["BudgetLevels", "Call"]


class Call:
    """A task that reserves, and stays in its block until `over` is set."""

    def __init__(self, levels: BudgetLevels, budget: aiorate.Budget, amounts: dict[str, int]) -> None:
        self.budget = budget
        self.lease = budget.reserve(**amounts)
        self.kept = dict(self.lease.amounts)
        """What of the amounts was not given back."""
        self.inside = False
        self.over = asyncio.Event()
        self.fails = False
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
        self.fails = True
        self.kept = dict.fromkeys(self.kept, 0)
        self.over.set()


class BudgetLevels:
    """``users`` share teams, teams share regions, and these one budget. No level has all of the names."""

    def __init__(self, clock: ManualClock, dice: random.Random) -> None:
        self.clock = clock
        self.dice = dice
        self.all: list[aiorate.Budget] = []
        self.own: dict[aiorate.Budget, dict[str, aiorate.Scheduler]] = {}
        self.late: dict[aiorate.Budget, int] = {}
        self.above: dict[aiorate.Budget, aiorate.Budget] = {}
        self.grants: dict[tuple[aiorate.Budget, str], list[tuple[int, Call]]] = {}
        self.calls: list[Call] = []
        top = self.budget(("tokens", "words"))
        regions = aiorate.KeyedBudget[str](lambda key: self.budget(("tokens",), top), shared=top)
        teams = aiorate.KeyedBudget[str](lambda key: self.budget(("words", "calls"), regions[key[:1]]), shared=lambda key: regions[key[:1]])
        users = aiorate.KeyedBudget[str](lambda key: self.budget(("calls", "tokens"), teams[key[:2]]), shared=lambda key: teams[key[:2]])
        self.users = [users[region_and_team + user] for region_and_team in ("e0", "e1", "w0") for user in "ab"]

    def budget(self, names: tuple[str, ...], above: aiorate.Budget | None = None) -> aiorate.Budget:
        own = {name: EACH[self.dice.choice(BOUNDED)]() for name in names}
        for scheduler in own.values():
            scheduler.peek(1, self.clock.now())  # the first instant that is passed starts a schedule
        late = self.dice.choice(LATE)
        budget = aiorate.Budget(**own, catch_up=late, clock=self.clock, on_error="refund")
        self.all.append(budget)
        self.own[budget], self.late[budget] = own, round(late * SECOND)
        self.grants.update({(budget, name): [] for name in names})
        if above is not None:
            self.above[budget] = above
        return budget

    def path(self, budget: aiorate.Budget) -> list[aiorate.Budget]:
        """The budget and all above it."""
        return [budget, *(self.path(self.above[budget]) if budget in self.above else [])]

    def ask(self, budget: aiorate.Budget) -> None:
        """Start a call of random amounts, some of which are 0 and some not named."""
        names = self.dice.sample(budget.dimensions, k=self.dice.randrange(len(budget.dimensions) + 1))
        try:
            self.calls.append(Call(self, budget, {name: self.dice.choice((0, 1, 1, 2, 3, 9)) for name in names}))
        except aiorate.LimiterClosed:
            assert budget._dispatcher.closed

    def note(self, call: Call) -> None:
        for budget in self.path(call.budget):
            for name in self.own[budget]:
                if call.lease.amounts[name]:
                    self.grants[budget, name].append((self.clock.now(), call))

    @property
    def inside(self) -> list[Call]:
        """The calls whose blocks go on."""
        return [call for call in self.calls if call.inside and not call.over.is_set()]

    @property
    def waiting(self) -> list[Call]:
        return [call for call in self.calls if not call.task.done() and not call.inside]

    def check_bounds(self) -> int:
        """Assert that no dimension of any level exceeds its bound in any window; returns the number of windows."""
        windows = 0
        for (budget, name), grants in self.grants.items():
            largest = max((call.lease.amounts[name] for _, call in grants), default=1)
            kept = [(instant, call.kept[name]) for instant, call in grants]
            for seconds in WINDOWS:
                window = int(seconds * SECOND)
                bound = self.own[budget][name].bound_when_late(window, largest, self.late[budget])
                most = most_permits(kept, window)
                assert bound is None or most <= bound, (budget, name, seconds, most, bound)
                windows += len(grants)
        return windows

    @property
    def at_rest(self) -> bool:
        """True if no call has left a timer, a place in line, a wake-up or a receipt."""
        return self.clock.timers == 0 and all(
            not budget._dispatcher.line
            and budget._dispatcher.waiters.resuming == budget._dispatcher.counters.returnable == 0
            and not budget._dispatcher.scheduler.receipts
            for budget in self.all
        )
