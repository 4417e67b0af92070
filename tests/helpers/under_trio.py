"""Runs of trio in virtual time, and tasks in them that acquire, each in a cancel scope."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import trio
import trio.testing

import aiorate
from aiorate.testing import VirtualLoop
from helpers.driving import SECOND

settled = trio.testing.wait_all_tasks_blocked
"""Waits until every other task of the run waits."""


def run(main: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Run ``main`` under trio in virtual time that starts at 0."""
    return trio.run(main, *args, clock=trio.testing.MockClock(autojump_threshold=0))


def run_on(loop: str, main: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Run code written for anyio in virtual time: under asyncio with its drivers, or under trio."""
    options = {"clock": trio.testing.MockClock(autojump_threshold=0)} if loop == "trio" else {"loop_factory": VirtualLoop}
    return anyio.run(main, *args, backend=loop, backend_options=options)


def now() -> int:
    """The reading of this run's clock, in ns."""
    return round(anyio.current_time() * SECOND)


class Crowd:
    """Tasks that each acquire once, each in a cancel scope; ``granted`` has the instants of the grants by name."""

    def __init__(self, limiter: aiorate.Limiter, nursery: trio.Nursery | anyio.abc.TaskGroup) -> None:
        self.limiter = limiter
        self.nursery = nursery
        self.scopes: dict[Any, anyio.CancelScope] = {}
        self.granted: dict[Any, int] = {}
        self.waited: dict[Any, float] = {}
        self.failed: dict[Any, Exception] = {}

    def ask(self, name: Any, permits: int = 1, deadline: float = math.inf, **options: Any) -> None:
        """Start a task that acquires, until the deadline."""
        self.scopes[name] = anyio.CancelScope(deadline=deadline)
        self.nursery.start_soon(self._one, name, permits, options)

    async def queue(self, names: Any, permits: int = 1) -> None:
        """Have all of them stand in line in that order: trio starts tasks in any order."""
        for name in names:
            self.ask(name, permits)
            await settled()

    def cancel(self, *names: Any) -> None:
        """Cancel the tasks in one step."""
        for name in names:
            self.scopes[name].cancel()

    async def _one(self, name: Any, permits: int, options: dict[str, Any]) -> None:
        with self.scopes[name]:
            try:
                self.waited[name] = await self.limiter.acquire(permits, **options)
            except (RuntimeError, ValueError, aiorate.WaitTooLong, aiorate.LineFull) as error:
                self.failed[name] = error
            else:
                self.granted[name] = now()


def tenths(**granted: int) -> dict[str, int]:
    """Names, and when they were granted, in tenths of a second."""
    return {name: SECOND // 10 * instant for name, instant in granted.items()}
