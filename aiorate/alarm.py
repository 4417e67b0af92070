"""The Alarm: wakes those in line by futures and one timer, which stands for the first. No task, no lock.

Every decision is one synchronous step, so there is nothing to lock. Knows nothing of rates or HTTP.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiorate.line import FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.clock import Handle, Timeline

__all__ = ["Alarm"]


class AlarmTicket(asyncio.Future[None]):
    """A ticket that is itself what its owner awaits: one object less for each of those who wait."""

    __slots__ = FIELDS

    permits: int
    since: int
    asked: int
    state: int
    error: BaseException
    at: int
    granted_at: int
    waited: int
    mark: int

    def wait(self) -> asyncio.Future[None]:
        """What to await until it is decided."""
        return self

    def wake(self) -> None:
        """It is decided: let the one who waits run."""
        if not self.done():
            self.set_result(None)


class Alarm:
    """A timer is a hint, the clock is the judge: each wake-up asks ``decide`` what is due, and is set anew by it."""

    __slots__ = ("_decide", "_due", "_early", "_handle", "_timeline", "_woke")

    def __init__(self, decide: Callable[[], None], timeline: Timeline) -> None:
        self._decide = decide
        self._timeline = timeline
        self._handle: Handle | None = None
        self._due: int | None = None
        self._early = 0  # how often a timer has rung for it before its time
        self._woke: int | None = None

    def ticket(self, loop: asyncio.AbstractEventLoop) -> AlarmTicket:
        """A ticket to be filled in."""
        return AlarmTicket(loop=loop)

    def arm(self, due: int | None) -> None:
        """Decide again when the clock reads so much; None: nobody waits, or nobody can say until when."""
        if due == self._due and self._handle is not None:
            return
        # Rung too early twice, the third timer may be as early, and is given more time.
        self._early = self._early + 1 if due == self._due else 0
        self.disarm()
        if due is not None:
            self._due = due
            if self._woke is not None:
                due = max(due, self._woke + max(1, self._early) * self._timeline.least_gap)
            self._handle = self._timeline.call_at(due, self._ring)

    def disarm(self) -> None:
        """No timer stays."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._due = None

    def successor(self) -> Alarm:
        """The driver for another loop; no timer stays on the old one."""
        self.disarm()
        return Alarm(self._decide, self._timeline)

    async def aclose(self) -> None:
        """Nothing stays; everybody was woken."""
        self.disarm()

    def _ring(self) -> None:
        self._handle = None
        self._woke = woke_at(self._timeline)
        self._decide()


def woke_at(timeline: Timeline) -> int | None:
    """The clock's reading; None: it is broken, which whoever decides next finds out too, and tells those who wait."""
    try:
        return timeline.read()
    except Exception:
        return None
