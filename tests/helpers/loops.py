"""Event loops for tests."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

FACTORIES: dict[str, Callable[[], Any]] = {"asyncio": getattr(asyncio, "ProactorEventLoop", asyncio.SelectorEventLoop)}
"""The loop that asyncio takes by default, which is another on Windows, and uvloop where it is installed."""
if find_spec("uvloop") is not None:
    import uvloop

    FACTORIES["uvloop"] = uvloop.new_event_loop

needs_eager = pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks need Python 3.12")


def eager_loop(factory: Callable[[], asyncio.AbstractEventLoop]) -> asyncio.AbstractEventLoop:
    """A loop that starts its tasks eagerly, inside create_task()."""

    def start(loop: Any, coroutine: Any, **options: Any) -> Any:
        if sys.version_info < (3, 13, 3):
            options.pop("eager_start", None)  # of uvloop's
        return asyncio.eager_task_factory(loop, coroutine, **options)  # type: ignore[attr-defined]  # of Python 3.12

    loop = factory()
    loop.set_task_factory(start)
    return loop


class LeapingLoop(asyncio.SelectorEventLoop):
    """A loop whose time can leap ahead, so that a long wait takes no real time."""

    leapt = 0.0

    def time(self) -> float:
        return super().time() + self.leapt

    async def leap(self, seconds: float) -> None:
        """Let that much time pass, and everything run that is due by then."""
        self.leapt += seconds
        for _ in range(20):
            await asyncio.sleep(0)
