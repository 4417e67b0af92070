"""Calls under a budget: tasks that reserve, stay inside until they are told to end, and note when they were granted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from helpers.driving import turns

if TYPE_CHECKING:
    import aiorate
    from aiorate.testing import ManualClock


class Calls:
    """Tasks by name: ``granted`` has the instant of each grant, ``leases`` what each reserved."""

    def __init__(self, budget: aiorate.Budget, clock: ManualClock) -> None:
        self.budget = budget
        self.clock = clock
        self.tasks: dict[Any, asyncio.Task[None]] = {}
        self.granted: dict[Any, int] = {}
        self.leases: dict[Any, aiorate.Lease] = {}
        self.error: dict[Any, Exception] = {}
        self._over: dict[Any, asyncio.Event] = {}

    def ask(self, name: Any, **amounts: Any) -> asyncio.Task[None]:
        """Start a task that reserves."""
        self._over[name] = asyncio.Event()
        self.tasks[name] = task = asyncio.ensure_future(self._one(name, amounts))
        return task

    async def queue(self, names: Any, **amounts: Any) -> None:
        """Start a task for each name, in that order; all reserve the same."""
        for name in names:
            self.ask(name, **amounts)
        await turns(3)

    async def end(self, *names: Any, error: Exception | None = None, **used: int) -> None:
        """Settle ``used`` if given, and leave the block, by raising ``error`` if given."""
        for name in names:
            if used:
                self.leases[name].settle(**used)
            if error is not None:
                self.error[name] = error
            self._over[name].set()
        await turns(12)

    async def _one(self, name: Any, amounts: Any) -> None:
        async with self.budget.reserve(**amounts) as self.leases[name]:
            self.granted[name] = self.clock.now()
            await self._over[name].wait()
            if name in self.error:
                raise self.error[name]


def left(budget: aiorate.Budget) -> dict[str, int]:
    """How much of each dimension is available."""
    return {name: budget.available(name) for name in budget.dimensions}
