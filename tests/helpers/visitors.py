"""Tasks that enter a limiter with `max_concurrency` and stay inside until they are told to leave."""

from __future__ import annotations

import asyncio
from typing import Any

from aiorate import Limiter
from aiorate.testing import ManualClock
from helpers.driving import turns


class Visitors:
    """Tasks that enter and stay until they are told to go; ``began`` has the instant at which each got in."""

    def __init__(self, limiter: Limiter, clock: ManualClock) -> None:
        self.limiter = limiter
        self.clock = clock
        self.tasks: dict[Any, asyncio.Task[float]] = {}
        self.began: dict[Any, int] = {}
        self.inside: list[Any] = []
        self.most = 0
        self.over: dict[Any, asyncio.Event] = {}

    def come(self, name: Any, permits: int = 1) -> None:
        """Start a task that enters."""
        self.over[name] = asyncio.Event()
        self.tasks[name] = asyncio.ensure_future(self._one(name, permits))

    async def queue(self, names: Any, permits: int = 1) -> None:
        """Start a task for each name, in that order."""
        for name in names:
            self.come(name, permits)
        await turns(5)

    async def go(self, *names: Any) -> None:
        """Let these tasks leave."""
        for name in names:
            self.over[name].set()
        await turns(12)

    async def _one(self, name: Any, permits: int) -> float:
        async with self.limiter.of(permits) as waited:
            self.began[name] = self.clock.now()
            self.inside.append(name)
            self.most = max(self.most, len(self.inside))
            try:
                await self.over[name].wait()
            finally:
                self.inside.remove(name)
            return waited
