"""Rates per month, and where windows of the calendar begin and end, in Unix time.

A month has no fixed length, so a `CalendarRate` is not to pace by: `aiorate.CalendarWindow` counts by it.

A day begins when its date is reached for the first time, and so do weeks, months and years. Clocks that go back to the evening before
do not end it again, and where midnight is left out it begins at the change of the clocks.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from aiorate._rate import MONTHS, NS_PER_SECOND, RATE_TEXT, Rate, written

if TYPE_CHECKING:
    from datetime import tzinfo

    from aiorate._rate import Number


DAY = 86_400
_HOUR = 3_600
_DAYS = {1: (28, 31), 2: (59, 62), 3: (90, 92), 4: (120, 123), 6: (181, 184), 12: (365, 366)}  # months: the fewest days, and the most
_ONE_BY_ONE = 32  # edges of windows found one after the other: one on a day on which the clocks change may be near
_NO_CALENDAR = OverflowError, OSError, ValueError  # it ends with the year 9999


class CalendarRate(Rate):
    """Permits per calendar months, 1, 2, 3, 4, 6 or 12 of them. Where a length is needed, it is that of the longest such months."""

    __slots__ = ("_months",)

    def __init__(self, permits: int, months: int) -> None:
        super().__init__(permits, _DAYS[months][1] * DAY)
        object.__setattr__(self, "_months", months)

    @classmethod
    def of(cls, value: Rate | str | Number) -> Rate:
        """As `Rate.of`, of a text such as ``"10000/month"``, ``"10000/3 months"`` or ``"10000/year"`` too."""
        return _parsed(value) if isinstance(value, str) else Rate.of(value)

    @property
    def shortest_ns(self) -> int:
        """The length of the shortest window, without a change of the clocks in it."""
        return _DAYS[self._months][0] * DAY * NS_PER_SECOND

    def with_permits(self, permits: int) -> CalendarRate:
        """Another number of permits in as many months."""
        return CalendarRate(permits, self._months)

    def __reduce__(self) -> tuple[object, tuple[int, int]]:  # type: ignore[override]
        return CalendarRate, (self.permits, self._months)

    def __str__(self) -> str:
        return f"{self.permits}/{ {1: 'month', 12: 'year'}.get(self._months, f'{self._months}months') }"

    def __repr__(self) -> str:
        return f"CalendarRate({self.permits}, {self._months})"


@lru_cache(maxsize=256)
def _parsed(value: str) -> Rate:
    """Once for each text, because the limits of all keys have the same few rates."""
    match = re.fullmatch(RATE_TEXT, value.strip(), re.ASCII | re.IGNORECASE)
    unit = MONTHS.get((match[3] or "").lower().removesuffix("s")) if match else None
    if match is None or unit is None:
        return Rate.of(value)
    permits, den = written(match[1], "CalendarWindow()")
    count, count_den = written(match[2] or "1", "CalendarWindow()")
    months, rest = divmod(count * unit, count_den)
    if permits < 1 or permits % den:
        raise ValueError(
            f"CalendarWindow({value!r}): the permits of a {'month' if unit == 1 else 'year'} must be a whole number of 1 or more."
        )
    if rest or months not in _DAYS:
        raise ValueError(
            f"CalendarWindow({value!r}): a window is 1, 2, 3, 4, 6 or 12 months, so that windows begin with the year."
            f" Write '{match[1]}/month', '{match[1]}/3months' or '{match[1]}/year'."
        )
    return CalendarRate(permits // den, months)


def edge_after(unix: int, tz: tzinfo, rate: Rate) -> int:
    """The first edge of the rate's windows after that Unix time; both in ns."""
    second, period = unix // NS_PER_SECOND, rate.period_ns // NS_PER_SECOND
    try:
        local = datetime.fromtimestamp(second, tz)
        if period < DAY:
            edge = _edge_in_day(second, local, period)
        else:
            day = local.date()
            edge = second
            while edge <= second:  # more than once where the clocks went back over midnight, and that window has begun before
                day = _next_window(day, rate)
                edge = _beginning(day, tz)
    except _NO_CALENDAR:
        return unix + rate.period_ns
    return edge * NS_PER_SECOND


def edge_later(edge: int, tz: tzinfo, rate: Rate, windows: int) -> int:
    """The edge of the rate's windows that comes that many windows after that one; both in ns of Unix time."""
    period = rate.period_ns
    if not rate._months:
        near = min(windows, _ONE_BY_ONE)
        for _ in range(near):
            edge = edge_after(edge, tz, rate)
        # Of windows far ahead, from the middle of the one before, which is inside it whatever the clocks were changed by.
        return edge if near == windows else edge_after(edge + (windows - near - 1) * period + period // 2, tz, rate)
    try:
        month = datetime.fromtimestamp(edge // NS_PER_SECOND, tz)
        return _beginning(_month(month, windows * rate._months), tz) * NS_PER_SECOND
    except _NO_CALENDAR:
        return edge + windows * period


def _next_window(day: date, rate: Rate) -> date:
    """The first day of the window after the one to which that day belongs."""
    if rate._months:
        return _month(day, rate._months - (day.month - 1) % rate._months)
    days = rate.period_ns // (DAY * NS_PER_SECOND)
    return day + timedelta(days - (day.toordinal() - 1) % days)


def _month(day: date, later: int) -> date:
    """The first of a month, that many after the one of that day."""
    years, month = divmod(day.month - 1 + later, 12)
    return date(day.year + years, month + 1, 1)


def _beginning(day: date, tz: tzinfo) -> int:
    """The first second of that day. Where the zone leaves out midnight or the day, the offset before it names the instant of the change."""
    return int(datetime(day.year, day.month, day.day, tzinfo=tz).timestamp())


def _edge_in_day(second: int, local: datetime, period: int) -> int:
    """The first edge after ``second`` of windows shorter than a day. Those of several hours are as long as the wall clock makes them."""
    into = (local.hour * _HOUR + local.minute * 60 + local.second) % period
    if period <= _HOUR:  # by elapsed time, so that no window is an hour longer when the clocks go back
        starts = second - into
        if datetime.fromtimestamp(starts, local.tzinfo).utcoffset() != local.utcoffset():
            starts += period  # a change by half an hour cut an hour in two: the rest counts with the next hour
        return starts + period
    wall = local + timedelta(seconds=period - into)
    edge = int(wall.timestamp())
    return edge if edge > second else int(wall.replace(fold=1).timestamp())  # in the repeated hour, after the clocks went back
