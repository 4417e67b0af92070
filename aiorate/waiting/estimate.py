"""The estimate: when would a request that joins the line now be granted?

Everybody in line is served in a rehearsal of the scheduler, each at the instant at which that is due. The rehearsal is kept while it
stays true, and a newcomer is added to it, so that in a long line a request with ``max_wait`` costs the same as in a short one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate.schedulers.interface import Scheduler
    from aiorate.waiting.line import Line
    from aiorate.waiting.timeline import Timeline

__all__ = ["ONE_BY_ONE", "Estimate", "ahead"]

ONE_BY_ONE = 32
"""Requests that any question may rehearse. Requests behind them may count only by the sum of their permits."""
_PAID = 16  # requests that may be rehearsed once more for each question, and for each request that left
_FIRST = 1 << 30  # and the first question after the line was empty: those who joined it have paid for that


class Estimate:
    """A rehearsal of the line, if one was asked for.

    It is true until something changes for those in line, and then it is repeated. A line of more than 32 is not rehearsed for every
    question: a question and a request that leaves pay for 16 requests, one that joins pays for itself. Until that is paid, the first
    32 are rehearsed, and those behind them as if they took their permits together, which makes no difference where each asks for one.
    """

    __slots__ = ("_allowed", "_last", "_scheduler", "_stale", "kept")

    def __init__(self) -> None:
        self.kept: bool = False
        """Whether there is a rehearsal to which newcomers are added."""
        self._scheduler: Scheduler | None = None
        self._last = 0  # the instant at which the last in line is granted
        self._stale = False  # whether a request has left since
        self._allowed = _FIRST  # requests that may be rehearsed

    def forget(self) -> None:
        """Something changed for all requests in line."""
        self._scheduler = None
        self.kept = False

    def emptied(self) -> None:
        """The line is empty."""
        self.forget()
        self._allowed = _FIRST

    def departed(self) -> None:
        """A request left the line, or gave its permits back."""
        self._stale = True
        self._allowed += _PAID

    def joined(self, permits: int, since: int, catch_up: int) -> None:
        """A request joined the line."""
        if self._scheduler is not None:
            self._allowed += 1
            self._last = _add(self._scheduler, permits, self._last, since, catch_up)

    def instant(self, scheduler: Scheduler, timeline: Timeline, line: Line, permits: int, now: int, catch_up: int) -> int:
        """When a request made now would be granted."""
        if not line:
            return max((scheduler if not timeline.pause_length else ahead(scheduler, timeline)).peek(permits, now), now)
        self._allowed += _PAID
        rehearsal, last = self._scheduler, self._last
        if rehearsal is None or self._stale:
            rehearsal, last = ahead(scheduler, timeline), now
            if len(line) <= max(self._allowed, ONE_BY_ONE):
                for _, before, since in line:
                    last = _add(rehearsal, before, last, since, catch_up)
                self._scheduler, self._last, self._stale, self._allowed, self.kept = rehearsal, last, False, 0, True
            else:
                head = line.head(ONE_BY_ONE)
                for _, before, since in head:
                    last = _add(rehearsal, before, last, since, catch_up)
                rest = line.rest(head)
                if rest:
                    rehearsal.take_ahead(rest, last)
        last = max(last, now)
        return max(rehearsal.peek(permits, last), last)


def _add(rehearsal: Scheduler, permits: int, last: int, since: int, catch_up: int) -> int:
    """Grant one more request, after the instant ``last``; returns when."""
    most = rehearsal.max_permits
    if most is not None and permits > most:
        return last
    at = max(rehearsal.peek(permits, last), last)
    rehearsal.take(permits, at, max(since, at - catch_up))
    return at


def ahead(scheduler: Scheduler, timeline: Timeline) -> Scheduler:
    """The scheduler as it will be when the present pause is over, which matters to one that follows the calendar."""
    rehearsal = scheduler.rehearse()
    if timeline.pause_length:
        rehearsal.shift(timeline.pause_length)
    return rehearsal
