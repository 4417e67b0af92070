"""A process-wide limiter, a task inside it, and tasks of closed loops."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import aiorate
from aiorate.testing import ManualClock
from helpers.driving import LONG
from helpers.threads import KINDS, LoopThread

EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def made(clock: ManualClock | None = None, rate: str = "10/s", **options: Any) -> aiorate.Limiter:
    """A process-wide limiter whose first permit is taken."""
    limiter = aiorate.Limiter(aiorate.TokenBucket(rate, burst=1), scope="process", clock=clock, **options)
    assert limiter.try_acquire()
    return limiter


class Inside:
    """A task in the loop of that thread that has a place until it is told to leave."""

    def __init__(self, thread: LoopThread, limiter: aiorate.Limiter) -> None:
        self._thread = thread
        self._gate = asyncio.Event()

        async def hold() -> None:
            async with limiter:
                await self._gate.wait()

        self._held = thread.start(hold)

    def leave(self) -> None:
        """Leave, and return once that is done."""
        self._thread.call(self._gate.set)
        self._held.result(LONG)


def forget(tasks: list[Any]) -> None:
    """Let tasks of a closed loop be collected, without asyncio's log record."""
    for task in tasks:
        task._log_destroy_pending = False  # the flag that asyncio itself uses
    tasks.clear()
    gc.collect()
