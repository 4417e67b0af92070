"""Where windows of the calendar begin and end, in whole seconds of Unix time. Knows nothing of permits.

A day begins when its date is reached for the first time, and so do weeks, months and years. Clocks that go back to the evening before
do not end it again, and where midnight is left out it begins at the change of the clocks.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import tzinfo

__all__ = ["DAY", "edge_after", "month_after"]

DAY = 86_400
_HOUR = 3_600
_ONE = timedelta(1)


def edge_after(second: int, tz: tzinfo, period: int, months: int = 0) -> int:
    """The first edge after ``second`` of windows of ``period`` seconds or, if that is not 0, of ``months`` months.

    Raises OverflowError, OSError or ValueError after the year 9999.
    """
    local = datetime.fromtimestamp(second, tz)
    if months:
        return _first_after(second, tz, _months_on(local, 0, months), months)
    if period >= DAY:
        days = period // DAY
        return _first_after(second, tz, local.date() + (days - (local.toordinal() - 1) % days) * _ONE, 0, days * _ONE)
    return _wall_edge(local, period) if period > _HOUR else _elapsed_edge(second, local, period)


def month_after(second: int, tz: tzinfo, months: int) -> int:
    """The beginning of the month that is ``months`` after that of ``second``. Raises the errors of `edge_after`."""
    local = datetime.fromtimestamp(second, tz)
    return _beginning(_months_on(local, months - 1, 1), tz)


def _months_on(day: date, months: int, each: int) -> date:
    """The first of the month that begins the next window of ``each`` months, ``months`` later."""
    index = ((day.year * 12 + day.month - 1 + months) // each + 1) * each
    return date(index // 12, index % 12 + 1, 1)


def _first_after(second: int, tz: tzinfo, day: date, months: int, step: timedelta = _ONE) -> int:
    """The beginning of that day, or of the first one after it by months or steps, that is after ``second``."""
    while (edge := _beginning(day, tz)) <= second:  # the clocks went back over midnight, and the window has begun before
        day = _months_on(day, 0, months) if months else day + step
    return edge


def _beginning(day: date, tz: tzinfo) -> int:
    """The first second of that day, or of a later one if the zone left the day out."""
    wall = datetime(day.year, day.month, day.day)
    edge = int(wall.replace(tzinfo=tz).timestamp())
    if datetime.fromtimestamp(edge, tz).replace(tzinfo=None) == wall:
        return edge
    # Midnight is left out. The offset after the change names an instant before it.
    before = int(wall.replace(tzinfo=tz, fold=1).timestamp())
    while edge - before > 1:
        middle = (before + edge) // 2
        if datetime.fromtimestamp(middle, tz).replace(tzinfo=None) < wall:
            before = middle
        else:
            edge = middle
    return edge


def _wall_edge(local: datetime, period: int) -> int:
    """By the wall clock: windows of several hours are as long as the zone makes them."""
    midnight = datetime(local.year, local.month, local.day)
    passed = local.hour * 3_600 + local.minute * 60 + local.second
    wall = midnight + timedelta(seconds=passed - passed % period + period)
    edge = int(wall.replace(tzinfo=local.tzinfo).timestamp())
    if edge <= int(local.timestamp()):  # the repeated hour, after the clocks went back
        edge = int(wall.replace(tzinfo=local.tzinfo, fold=1).timestamp())
    return edge


def _elapsed_edge(second: int, local: datetime, period: int) -> int:
    """By elapsed time, so that no window is an hour longer when the clocks go back."""
    starts = second - (local.hour * 3_600 + local.minute * 60 + local.second) % period
    if datetime.fromtimestamp(starts, local.tzinfo).utcoffset() != local.utcoffset():
        starts += period  # a change by half an hour cut an hour in two: the rest counts with the next hour
    return starts + period
