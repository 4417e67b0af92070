"""Limits that share limits, on four levels: users, teams, regions, and one for all."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING

import aiorate
from helpers.driving import SECOND
from helpers.strategies import EACH

if TYPE_CHECKING:
    from aiorate.testing import ManualClock

__all__ = ["Levels", "at_rest"]

# Strategies that have a bound for any history.
BOUNDED = [name for name in EACH if name not in {"TicksAccumulator", "CalendarWindow"}]
LATE = (0, 0.02, 0.3, 2)  # seconds of catch_up
WINDOWS = (0.05, 0.1, 0.5, 1, 3, 10)  # seconds


class Levels:
    """Four levels: a request of ``users[number]`` passes the limits of its team and its region, and the one for all."""

    def __init__(self, clock: ManualClock, dice: random.Random) -> None:
        self.clock = clock
        self.dice = dice
        self.all: list[aiorate.Limiter] = []
        self.above: dict[aiorate.Limiter, aiorate.Limiter] = {}
        self.grants: dict[aiorate.Limiter, list[tuple[int, int]]] = {}
        self.tasks: dict[asyncio.Task[None], aiorate.Limiter] = {}
        self.largest = 1
        everybody = self.limiter()
        regions = aiorate.KeyedLimiter[str](lambda key: self.limiter(everybody), shared=everybody)
        teams = aiorate.KeyedLimiter[str](lambda key: self.limiter(regions[key[:1]]), shared=lambda key: regions[key[:1]])
        users = aiorate.KeyedLimiter[str](lambda key: self.limiter(teams[key[:2]]), shared=lambda key: teams[key[:2]])
        self.users = [users[region_and_team + user] for region_and_team in ("e0", "e1", "w0") for user in "ab"]

    def limiter(self, above: aiorate.Limiter | None = None) -> aiorate.Limiter:
        """A limiter of a random strategy."""
        limiter = aiorate.Limiter(EACH[self.dice.choice(BOUNDED)](), catch_up=self.dice.choice(LATE), clock=self.clock)
        limiter.scheduler.peek(1, self.clock.now())  # the first instant that is passed starts a schedule
        self.all.append(limiter)
        self.grants[limiter] = []
        if above is not None:
            self.above[limiter] = above
        return limiter

    def path(self, limiter: aiorate.Limiter) -> list[aiorate.Limiter]:
        """The limiter and all above it."""
        return [limiter, *(self.path(self.above[limiter]) if limiter in self.above else [])]

    def most(self, limiter: aiorate.Limiter) -> int:
        """The largest request that all limiters of its path can grant."""
        return min([each.scheduler.max_permits or 3 for each in self.path(limiter)])

    def ask(self, limiter: aiorate.Limiter, permits: int) -> None:
        """Start a task that acquires."""
        permits = min(permits, self.most(limiter))
        self.largest = max(self.largest, permits)
        self.tasks[asyncio.ensure_future(self._one(limiter, permits))] = limiter

    async def _one(self, limiter: aiorate.Limiter, permits: int) -> None:
        await limiter.acquire(permits)
        self.note(limiter, permits)

    def try_acquire(self, limiter: aiorate.Limiter) -> None:
        with suppress(aiorate.LimiterClosed):
            if limiter.try_acquire():
                self.note(limiter, 1)

    def note(self, limiter: aiorate.Limiter, permits: int) -> None:
        for each in self.path(limiter):
            self.grants[each].append((self.clock.now(), permits))

    def refund(self, limiter: aiorate.Limiter, permits: int) -> None:
        """Give back at most what every limiter of its path has granted, which counts as that many fewer granted now."""
        permits = min(permits, *(sum(granted for _, granted in self.grants[each]) for each in self.path(limiter)))
        if permits > 0:
            limiter.refund(permits)
            self.note(limiter, -permits)

    def check_bounds(self) -> int:
        """Assert that at no level any window exceeds its bound; returns the number of windows."""
        windows = 0
        for limiter, grants in self.grants.items():
            for seconds in WINDOWS:
                bound = limiter.bound(seconds, self.largest)
                most = most_permits(grants, int(seconds * SECOND))
                assert bound is None or most <= bound, (limiter, seconds, most, bound)
                windows += len(grants)
        return windows


def most_permits(grants: list[tuple[int, int]], window: int) -> int:
    """The most permits in any window of that many ns that ends with a grant."""
    most = begin = inside = 0
    for instant, permits in grants:
        inside += permits
        while instant - grants[begin][0] >= window:
            inside -= grants[begin][1]
            begin += 1
        most = max(most, inside)
    return most


def at_rest(limiters: list[aiorate.Limiter], clock: ManualClock) -> bool:
    """True if no request has left a timer, a place in line, a wake-up or a receipt."""
    return clock.timers == 0 and all(
        not limiter._dispatcher.line and limiter._dispatcher.waiters.resuming == 0 and not limiter.scheduler.receipts
        for limiter in limiters
    )
