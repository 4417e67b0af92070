"""CalendarWindow: a number of permits per window of the calendar, such as a day. It reads the wall clock only when it is made.

A day begins when its date is reached for the first time, and so do weeks, months and years. Clocks that go back to the evening before
do not end it again, and where midnight is left out it begins at the change of the clocks.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from aiorate._rate import DAYS, NS_PER_SECOND, Rate
from aiorate._schedulers.interface import check_ask, check_ns, check_permits, check_window
from aiorate._schedulers.window import LONG_AGO, Window, in_period, whole_rate

if TYPE_CHECKING:
    from aiorate._rate import Number


_HOUR, _DAY = 3_600, 86_400  # seconds


class CalendarWindow(Window):
    """Allow n permits per hour, day, week, month or year of a time zone.

    The count returns to 0 when the next window begins, so up to 2 n can go around that instant. Weeks begin on Monday, months and years
    on the first at midnight. A day on which the clocks change is an hour shorter or longer.

    Args:
        rate: Whole permits in a period of the calendar: ``"1000/day"``, ``"100000/month"``, ``"5000/3 months"``.
        tz: The time zone: a name such as ``"Europe/Berlin"``, or a tzinfo.
        origin: The Unix time of the instant 0, in ns. By default the wall clock is read once.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_began", "_ends", "_last", "_origin", "_tz", "_used")
    _shown: tuple[str, ...] = ("_tz",)
    # The window of the used permits: its first grant, and its end.
    _began: int
    _ends: int
    _used: int
    _last: int  # no grant before it

    def __init__(self, rate: Rate | str | Number, tz: str | tzinfo, origin: int | None = None, *, start: int | None = None) -> None:
        check_ns("start", 0 if start is None else start)
        if isinstance(tz, str):
            tz = _zone(tz)
        if not isinstance(tz, tzinfo):
            raise TypeError(f"CalendarWindow(tz) must be the name of a time zone or a tzinfo, not {type(tz).__name__}.")
        if origin is None:
            import time

            origin = time.time_ns() - time.monotonic_ns()
        check_ns("CalendarWindow(origin)", origin)
        self.rate = _checked(Rate._of(rate))
        self._tz = tz
        self._origin: int = origin  # the Unix time, in ns, of the instant 0
        self.reset(LONG_AGO if start is None else start)

    def _edges(self, unix: int, count: int) -> list[int]:
        """The first ``count`` edges of windows after that Unix time; all in ns."""
        return [unix := _edge_after(unix, self._tz, self.rate) for _ in range(count)]

    def _enter(self, permits: int, now: int) -> None:
        if now >= self._ends:
            self._began, self._ends, self._used = now, self._edge_after(now), 0
        elif now < self._began:  # a charge has opened it, and a pause has passed since
            self._began = now
        self._used, self._last = self._used + permits, now

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Credit permits that are, or may be, this window's. The permits of an earlier window are gone."""
        check_ask("give_back()", permits, now, taken)
        if now < self._ends and (taken is None or taken >= self._began):
            self._used = max(0, self._used - permits)

    def charge(self, permits: int, now: int) -> None:
        """Count permits in this window as far as they fit, and the rest in the next ones."""
        check_permits("charge()", permits)
        used = (0 if max(self._last, now) >= self._ends else self._used) + permits - 1  # that the last of them finds
        at = self._earliest(1, now, permits - 1)
        if at >= self._ends:
            self._began, self._ends = at, self._edge_after(at)
        self._used, self._last = used % self.rate.permits + 1, at

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the number of permits. The window keeps its period, as in `SlidingWindow.set_rate`.

        For a window of months, a rate per second or per day counts for the longest such months. Grants in the current window still count.
        """
        rate = Rate._of(rate)
        if not rate._months:
            rate = in_period(rate, self.rate, "CalendarWindow")
        elif not rate.permits * self.rate._months % rate._months and self.rate._months:
            rate = self.rate._with_permits(rate.permits * self.rate._months // rate._months)
        _checked(rate)
        ends = self._edge_after(max(now, self._last), rate)
        if now < self._ends:
            ends = max(ends, self._ends)  # still the old window
        else:
            self._began, self._used = now, 0
        self.rate, self._ends = rate, ends

    def reset(self, now: int) -> None:
        self._began = self._ends = self._last = now
        self._used = 0

    def _shift(self, ns: int) -> None:
        """Move the calendar on by ``ns``, because its time went on during a pause."""
        self._origin += ns
        self._ends -= ns
        self._last -= ns

    def bound(self, window: int, largest: int = 1) -> int:
        """n for each window of the calendar that a window of this length may touch: 2 n over an edge."""
        check_window(window, largest)
        hour, day, rate = _HOUR * NS_PER_SECOND, _DAY * NS_PER_SECOND, self.rate
        shortest = DAYS[rate._months][0] * day if rate._months else rate.period_ns
        if shortest > hour and self._tz.utcoffset(None) is None:
            change = 2 * hour if shortest <= day else 26 * hour  # an island that crosses the date line leaves out a day
            shortest = max(shortest - change, hour)  # the least that a change of the clocks leaves
        return rate.permits * (1 + -(-window // shortest))

    def _earliest(self, permits: int, now: int, ahead: int = 0) -> int:
        at = max(self._last, now)
        over = at >= self._ends
        windows = ((0 if over else self._used) + ahead + permits - 1) // self.rate.permits  # that are used up before
        if windows < 1:
            return at
        ends = self._edge_after(at) if over else self._ends
        return ends if windows == 1 else _edge_after(self._origin + ends, self._tz, self.rate, windows - 1) - self._origin

    def _edge_after(self, instant: int, rate: Rate | None = None) -> int:
        """The first edge of a window after the instant."""
        return _edge_after(self._origin + instant, self._tz, rate or self.rate) - self._origin


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        if name == "UTC":
            return UTC
        raise ValueError(
            f"CalendarWindow(tz={name!r}): there is no such time zone here. Write 'UTC' or 'Europe/Berlin'. Where the system has no time"
            " zones, as on Windows: pip install tzdata."
        ) from error


def _checked(rate: Rate) -> Rate:
    """The rate, if its period is a window of the calendar."""
    if not rate._months:
        whole_rate(rate, "CalendarWindow")
        seconds, rest = divmod(rate.period_ns, NS_PER_SECOND)
        if rest or not seconds or (seconds not in (_DAY, 7 * _DAY) and _DAY % seconds):
            raise ValueError(
                f"CalendarWindow({str(rate)!r}): the period must be whole seconds that divide a day, months, a day or a week."
                f" Write '10000/day', or SlidingWindow({str(rate)!r}) for windows that begin anywhere."
            )
    return rate


# Where windows of the calendar begin and end, in Unix time.


def _edge_after(unix: int, tz: tzinfo, rate: Rate, windows: int = 1) -> int:
    """The first edge of the rate's windows after that Unix time, or the one that many windows after an edge; in ns."""
    period, from_second = rate.period_ns, unix // NS_PER_SECOND
    try:
        if period < _DAY * NS_PER_SECOND:
            if windows > 1:  # from the middle of the window before, which no change of the clocks moves out of it
                from_second = (unix + (windows - 1) * period + (period - 1) // 2) // NS_PER_SECOND
            edge = _edge_in_day(from_second, datetime.fromtimestamp(from_second, tz), period // NS_PER_SECOND)
        else:
            day, edge = datetime.fromtimestamp(from_second, tz).date(), from_second
            while edge <= from_second:  # again where the clocks went back over midnight, and that window has begun before
                day = _first_day(day, rate, windows)
                edge = _beginning(day, tz)
    except (OverflowError, OSError, ValueError):  # the calendar ends with the year 9999
        return unix + windows * period
    return edge * NS_PER_SECOND


def _first_day(day: date, rate: Rate, windows: int) -> date:
    """The first day of the window that comes that many after the day's own."""
    if rate._months:
        years, month = divmod(day.month - 1 - (day.month - 1) % rate._months + windows * rate._months, 12)
        return date(day.year + years, month + 1, 1)
    days = rate.period_ns // (_DAY * NS_PER_SECOND)
    return day + timedelta(windows * days - (day.toordinal() - 1) % days)


def _beginning(day: date, tz: tzinfo) -> int:
    """The first second of that day. Where the zone leaves out midnight or the day, the offset before it names the instant of the change."""
    return int(datetime(day.year, day.month, day.day, tzinfo=tz).timestamp())


def _edge_in_day(second: int, local: datetime, period: int) -> int:
    """The first edge after ``second`` of windows shorter than a day. Those of several hours follow the wall clock."""
    into = (local.hour * _HOUR + local.minute * 60 + local.second) % period
    edge = second + period - into  # by elapsed time, so that no hour is longer when the clocks go back
    if period > _HOUR:
        wall = int((local + timedelta(seconds=period - into)).timestamp())
        edge = wall if wall > second else edge  # it lies in the repeated hour, after the clocks went back
    elif datetime.fromtimestamp(second - into, local.tzinfo).utcoffset() != local.utcoffset():
        edge += period  # a change by half an hour cut an hour in two: the rest counts with the next hour
    return edge
