"""Driving limiters by hand: tasks that note when they were granted, and loops turned one step at a time."""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiorate
    from aiorate.testing import ManualClock

SECOND = 1_000_000_000


async def turns(count: int) -> None:
    """Let everything that is ready run, so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


class Crowd:
    """Tasks that each acquire once; ``granted`` says who was granted at which instant, in the order of running."""

    def __init__(self, limiter: aiorate.Limiter, clock: ManualClock) -> None:
        self.limiter = limiter
        self.clock = clock
        self.tasks: dict[Any, asyncio.Task[float]] = {}
        self.granted: dict[Any, int] = {}

    def ask(self, name: Any, permits: int = 1, **options: Any) -> asyncio.Task[float]:
        """Start a task that acquires."""
        self.tasks[name] = task = asyncio.ensure_future(self._one(name, permits, options))
        return task

    async def queue(self, names: Any, permits: int = 1) -> None:
        """Have them all stand in line, in that order."""
        for name in names:
            self.ask(name, permits)
        await turns(3)

    @property
    def pending(self) -> list[Any]:
        """Who has neither run nor been cancelled, in order of arrival."""
        return [name for name, task in self.tasks.items() if not task.done() and not task.cancelling()]

    async def _one(self, name: Any, permits: int, options: dict[str, Any]) -> float:
        waited = await self.limiter.acquire(permits, **options)
        self.granted[name] = self.clock.now()
        return waited

    async def fire(self) -> bool:
        """Fire the next timer, at its instant, without letting any task run; False: none is set."""
        instant = self.clock._next()
        if instant is None:
            return False
        self.clock.set(max(instant, self.clock.now()))
        return True


def others() -> set[asyncio.Task[Any]]:
    """Tasks alive besides the one that asks."""
    return asyncio.all_tasks() - {asyncio.current_task()}


def descriptors() -> int:
    """How many kernel timers are open."""
    gc.collect()
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that listed them
            count += "timerfd" in os.readlink(f"/proc/self/fd/{fd}")
    return count
