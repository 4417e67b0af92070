"""Loops for tests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

__all__ = ["FACTORIES", "LeapingLoop", "eager_loop", "needs_eager"]

FACTORIES: dict[str, Callable[[], Any]] = {"asyncio": asyncio.SelectorEventLoop}
"""Each event loop of asyncio's kind that is on this machine: there is no uvloop on Windows."""
if find_spec("uvloop") is not None:
    import uvloop

    FACTORIES["uvloop"] = uvloop.new_event_loop

needs_eager = pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")


def eager_loop(factory: Callable[[], asyncio.AbstractEventLoop]) -> asyncio.AbstractEventLoop:
    """A loop that starts its tasks at once, inside the task that makes them."""
    loop = factory()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]  # of Python 3.12
    return loop


class LeapingLoop(asyncio.SelectorEventLoop):
    """A loop whose time can leap ahead, so that a wait outlasts every timeout however slow the machine is, and takes no time."""

    leapt = 0.0

    def time(self) -> float:
        return super().time() + self.leapt

    async def leap(self, seconds: float) -> None:
        """Let that much time pass, and everything run that was due by then."""
        self.leapt += seconds
        for _ in range(20):
            await asyncio.sleep(0)
