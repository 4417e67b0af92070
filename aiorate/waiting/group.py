"""A group: limiters that are used by turns, as those of many keys are, and the view of the loop that they share, so that each is small.

Knows nothing of rates, keys or who waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.waiting.asyncio.view import AsyncioLoop
from aiorate.waiting.loops import event_loop

if TYPE_CHECKING:
    from aiorate.waiting.clock import Clock, EventLoop

__all__ = ["Group"]


class Group:
    """One view of the running loop for all."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop: AsyncioLoop | None = None

    def loop(self, native: object, clock: Clock | None, precise: bool) -> EventLoop:
        """The running loop, as a limiter with that clock sees it: one object for all that do with the loop's own clock and timers."""
        if clock is not None or precise:
            return event_loop(native, clock, precise)
        loop = self._loop
        if loop is None or loop.native is not native or loop.forked:
            made = event_loop(native, None, False)
            if not isinstance(made, AsyncioLoop):
                return made  # trio's has a timer of its own for each limiter
            self._loop = loop = made
        return loop
