"""Forecasts: when would a request be granted that joined the line now?

A copy of the scheduler is taken through everything that comes first, the debt and the line, at the instants at which they fall due.
It is kept while it stays true, so that in a line of n a request with ``max_wait`` costs the same as in a short one.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate.clock import Timeline
    from aiorate.desk import Desk
    from aiorate.schedulers.interface import Scheduler

__all__ = ["Forecast", "ahead", "estimate", "pay"]


def estimate(desk: Desk, permits: int, now: int) -> int | None:
    """Nanoseconds until a request made now would be granted, the line included; None: nobody can say."""
    timeline = desk._timeline
    scheduler = ahead(desk._scheduler, timeline)
    if not desk._line and not desk._debt:
        instant = max(scheduler.peek(permits, now), now)
    else:
        if desk._forecast is None:
            desk._forecast = Forecast(scheduler, now, desk._catch_up)
            desk._forecast.owe(desk._debt, desk._debt_since)
            for _, permits_before, since in desk._line:
                desk._forecast.add(permits_before, since)
        instant = desk._forecast.instant(permits, now)
    if instant == now and not timeline.held:
        return 0
    reading = timeline.clock_at(instant)
    return None if reading is None else max(0, reading - timeline.read())


def ahead(scheduler: Scheduler, timeline: Timeline) -> Scheduler:
    """The scheduler as it will be when the present pause is over: only those that follow the calendar care."""
    if not timeline.held or not timeline.hold or getattr(scheduler, "shift", None) is None:
        return scheduler
    copy = deepcopy(scheduler)
    copy.shift(timeline.hold)  # type: ignore[attr-defined]
    return copy


class Forecast:
    """A scheduler as it will be, and the instant at which it will have come so far."""

    __slots__ = ("_catch_up", "_last", "_scheduler")

    def __init__(self, scheduler: Scheduler, now: int, catch_up: int) -> None:
        self._scheduler = deepcopy(scheduler)
        self._last = now
        self._catch_up = catch_up

    def owe(self, debt: int, since: int) -> None:
        """The debt comes first."""
        self._last = max(self._last, pay(self._scheduler, debt, since, None)[1])

    def add(self, permits: int, since: int) -> None:
        """So many permits, asked for since then, are next."""
        most = self._scheduler.max_permits
        if most is None or permits <= most:
            self._last = at = max(self._scheduler.peek(permits, self._last), self._last)
            self._scheduler.take(permits, at, max(since, at - self._catch_up))

    def instant(self, permits: int, now: int) -> int:
        """When a request for so many would be granted after all that."""
        last = max(self._last, now)
        return max(self._scheduler.peek(permits, last), last)


def pay(scheduler: Scheduler, debt: int, since: int, now: int | None) -> tuple[int, int, int | None]:
    """Take a debt at the instants at which a first in line would have got it, up to now (None: all of it).

    Returns what is left of it, when the last of it was taken, and for when the next is scheduled (None: all is paid).
    """
    while debt:
        chunk = debt if scheduler.max_permits is None else min(debt, scheduler.max_permits)
        at = max(scheduler.peek(chunk, since), since)
        if now is not None and at > now:
            return debt, since, at
        scheduler.take(chunk, at, at)
        since = at
        debt -= chunk
    return 0, since, None
