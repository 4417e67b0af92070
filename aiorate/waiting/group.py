"""A group: limiters that are used by turns, as those of many keys are, and what they share so that each is small.

Knows nothing of rates, keys or who waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.waiting.loops import AsyncioLoop, event_loop

if TYPE_CHECKING:
    from aiorate.waiting.clock import Clock, EventLoop

__all__ = ["Group"]


class Group:
    """One view of the running loop for all, and since when that loop was not seen to turn.

    A caller that goes from one limiter to the next keeps the loop from its other tasks without any of them noticing.
    """

    __slots__ = ("_loop", "_watched", "_watched_since")

    def __init__(self) -> None:
        self._loop: AsyncioLoop | None = None
        self._watched: object = None  # the loop that is watched
        self._watched_since: int | None = None

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

    def watch(self, loop: EventLoop, reading: int) -> int:
        """Since when the loop was not seen to turn, by what the clock read then: since now, if nobody watched it."""
        if self._watched is not loop.native:  # what watched another loop may never be called
            self._watched, self._watched_since = loop.native, None
        if self._watched_since is None:
            self._watched_since = reading
            loop.call_soon(self._on_iteration)
        return self._watched_since

    def _on_iteration(self) -> None:
        self._watched_since = None
