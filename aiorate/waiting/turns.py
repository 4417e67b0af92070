"""Whether the event loop of this thread runs its other tasks, for callers who may be granted again and again without a wait.

One answer for all limiters: a caller that goes from one to the next keeps its loop from turning as well. Knows nothing of rates.
"""

from __future__ import annotations

import threading
from time import monotonic_ns
from typing import TYPE_CHECKING

from aiorate.waiting.loops import LOOP_CHECK_NS, event_loop, running_loop

if TYPE_CHECKING:
    from aiorate.waiting.clock import EventLoop

__all__ = ["Turns", "turns_here"]


class Turns:
    """Since when one loop was not seen to turn. By the monotonic clock: how long others are kept waiting is no matter of virtual time."""

    __slots__ = ("_check_after", "_loop", "_since", "native")

    def __init__(self, loop: EventLoop) -> None:
        self.native: object = loop.native
        """The loop itself."""
        self._loop = loop
        self._since: int | None = None
        self._check_after = 0

    def starved(self) -> bool:
        """Whether it has not run its other tasks for 5 to 10 ms, so that a caller must yield to it before it goes on."""
        now = monotonic_ns()
        if now < self._check_after:
            return False
        if self._since is None:
            self._since = now
            self._loop.call_soon(self._on_iteration)
        self._check_after = self._since + LOOP_CHECK_NS
        return now >= self._check_after

    async def let_turn(self) -> None:
        """Have it run its other tasks."""
        await self._loop.yield_once()
        while self.starved():  # of many that yielded, the first may keep the loop again
            await self._loop.yield_once()

    def _on_iteration(self) -> None:
        self._since = None


class _Here(threading.local):
    turns: Turns | None = None


_here = _Here()


def turns_here() -> Turns | None:
    """Those of the loop that runs in this thread; None: none does."""
    native = running_loop()
    turns = _here.turns
    if turns is None or turns.native is not native:
        turns = _here.turns = None if native is None else Turns(event_loop(native, None, precise=False))
    return turns
