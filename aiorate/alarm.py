"""The Alarm: wakes those in line by futures and one timer, which stands for the first. No task, no lock.

Every decision is one synchronous step, so there is nothing to lock. Knows nothing of rates or HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiorate.clock import Handle, Timeline
    from aiorate.line import Outcome

__all__ = ["Alarm"]


class Alarm:
    """A timer is a hint, the clock is the judge: each wake-up asks ``decide`` what is due, and is set anew by it."""

    __slots__ = ("_decide", "_due", "_early", "_handle", "_loop", "_woke", "ticket", "timeline")

    def __init__(self, decide: Callable[[], None], timeline: Timeline, loop: asyncio.AbstractEventLoop) -> None:
        self._decide = decide
        self.timeline = timeline
        self._loop = loop
        self._handle: Handle | None = None
        self._due: int | None = None
        self._early = 0  # how often a timer has rung for it before its time
        self._woke: int | None = None
        self.ticket: Callable[[], asyncio.Future[Outcome]] = loop.create_future
        """A ticket that its owner awaits: no object more than the future that all waiting takes."""

    def wait(self, ticket: asyncio.Future[Outcome]) -> asyncio.Future[Outcome]:
        """What to await until it is decided."""
        return ticket

    def leave(self, ticket: asyncio.Future[Outcome]) -> None:
        """Its owner goes undecided."""

    def arm(self, due: int | None) -> None:
        """Decide again when the clock reads so much; None: nobody waits, or nobody can say until when."""
        if due == self._due and self._handle is not None:
            return
        # Rung too early twice, the third timer may be as early, and is given more time.
        self._early = self._early + 1 if due == self._due else 0
        self.retire()
        if due is not None:
            self._due = due
            if self._woke is not None:
                due = max(due, self._woke + max(1, self._early) * self.timeline.least_gap)
            self._handle = self.timeline.call_at(self._loop, due, self._ring)

    def retire(self) -> None:
        """No timer stays."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._due = None

    async def aclose(self) -> None:
        """Nothing stays; everybody was woken."""
        self.retire()

    def _ring(self) -> None:
        self._handle = None
        self._woke = woke_at(self.timeline)
        self._decide()


def woke_at(timeline: Timeline) -> int | None:
    """The clock's reading; None: it is broken, which whoever decides next finds out too, and tells those who wait."""
    try:
        return timeline.read()
    except Exception:
        return None
