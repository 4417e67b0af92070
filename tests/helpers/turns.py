"""Keys that share a limit and always wait there: how far their shares are from their weights."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from typing import TYPE_CHECKING

import aiorate
from helpers.driving import SteppedClock, turns

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

Grants = list[tuple["Hashable", int]]  # the key and the permits, in order
DIRECT = "callers that ask the shared limit directly"


def furthest(grants: Sequence[tuple[Hashable, int]], weights: Mapping[Hashable, int], window: int = 100) -> Fraction:
    """The most permits by which a key is ahead of its share, or behind it, in any ``window`` grants in a row."""
    total = sum(weights.values())
    worst = Fraction(0)
    for begin in range(len(grants) - window + 1):
        got = dict.fromkeys(weights, 0)
        for key, permits in grants[begin : begin + window]:
            got[key] += permits
        permits = sum(got.values())
        worst = max(worst, *(abs(got[key] - Fraction(permits * weight, total)) for key, weight in weights.items()))
    return worst


class Lines:
    """Requests of many keys and of direct callers, on a clock that stands still; ``grants`` are in the order in which tasks ran."""

    def __init__(self, shared: aiorate.Scheduler, weights: Mapping[Hashable, int], own: aiorate.Rate | str = "1000000/s") -> None:
        self.clock = SteppedClock()
        self.shared = aiorate.Limiter(shared, clock=self.clock)
        self.keyed = aiorate.KeyedLimiter["Hashable"](
            lambda key: aiorate.Limiter(aiorate.TokenBucket(own, burst=10**6), clock=self.clock),
            shared=self.shared,
            weight=weights.__getitem__,
        )
        self.grants: Grants = []
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, key: Hashable, permits: int = 1) -> asyncio.Task[None]:
        """Start a task that asks for the permits."""
        task = asyncio.ensure_future(self._one(key, permits))
        self.tasks.append(task)
        return task

    async def fill(self, requests: Iterable[tuple[Hashable, int]]) -> None:
        """Start a task for each request, and let them join the lines in that order."""
        for key, permits in requests:
            self.ask(key, permits)
        await turns(3)

    async def run(self, grants: int) -> Grants:
        """Let time pass until there are that many grants; returns the first of them."""
        while len(self.grants) < grants and self.clock.fire():
            await turns(4)
        return self.grants[:grants]

    async def end(self) -> None:
        """Cancel what still waits. Nothing is left behind."""
        for task in self.tasks:
            task.cancel()
        await turns(4)
        assert 0 == self.shared.statistics().waiting
        assert self.clock.next_timer is None

    async def _one(self, key: Hashable, permits: int) -> None:
        if key is DIRECT:
            await self.shared.acquire(permits)
        else:
            await self.keyed.acquire(key, permits)
        self.grants.append((key, permits))
