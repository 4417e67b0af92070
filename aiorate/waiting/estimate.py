"""The estimate: when would a request be granted that joined the line now?

Everybody in line is served on a copy of the scheduler, each at the instant at which that is due. The copy is kept while it stays
true, and a newcomer is added to it, so that in a long line a request with ``max_wait`` costs the same as in a short one.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate.schedulers.interface import Scheduler
    from aiorate.waiting.line import Line
    from aiorate.waiting.timeline import Timeline

__all__ = ["Estimate"]

_AT_ONCE = 32  # requests rehearsed for each question, and for each request that left


class Estimate:
    """A rehearsal of the line, if one was asked for.

    Once somebody has left the line, it says no less than is true. It is repeated then, but no more than 32 requests are rehearsed for
    each question and each departure: in a line of thousands from which many leave, an answer may still count some of them.
    """

    __slots__ = ("_allowed", "_last", "_scheduler", "_stale", "kept")

    def __init__(self) -> None:
        self.kept: bool = False
        """Whether there is a rehearsal to which newcomers are added."""
        self._scheduler: Scheduler | None = None
        self._last = 0  # the instant at which the last in line is granted
        self._stale = False  # whether somebody has left since
        self._allowed = 0

    def forget(self) -> None:
        """Something changed for everybody in line."""
        self._scheduler = None
        self.kept = False

    def departed(self) -> None:
        """A request left the line, or gave its permits back."""
        self._stale = True
        self._allowed += _AT_ONCE

    def joined(self, permits: int, since: int, catch_up: int) -> None:
        """A request joined the line."""
        if self._scheduler is not None:
            self._add(self._scheduler, permits, since, catch_up)

    def instant(self, scheduler: Scheduler, timeline: Timeline, line: Line, permits: int, now: int, catch_up: int) -> int:
        """When a request made now would be granted."""
        if not line:
            return max(ahead(scheduler, timeline).peek(permits, now), now)
        self._allowed += _AT_ONCE
        if self._scheduler is None or (self._stale and len(line) <= self._allowed):
            self._scheduler = rehearsal = deepcopy(ahead(scheduler, timeline))
            self._last, self._stale, self._allowed, self.kept = now, False, 0, True
            for _, before, since in line:
                self._add(rehearsal, before, since, catch_up)
        last = max(self._last, now)
        return max(self._scheduler.peek(permits, last), last)

    def _add(self, rehearsal: Scheduler, permits: int, since: int, catch_up: int) -> None:
        if rehearsal.max_permits is None or permits <= rehearsal.max_permits:
            self._last = at = max(rehearsal.peek(permits, self._last), self._last)
            rehearsal.take(permits, at, max(since, at - catch_up))


def ahead(scheduler: Scheduler, timeline: Timeline) -> Scheduler:
    """The scheduler as it will be when the present pause is over: only those that follow the calendar care."""
    if not timeline.pause_length:
        return scheduler
    copy = deepcopy(scheduler)
    copy.shift(timeline.pause_length)
    return copy
