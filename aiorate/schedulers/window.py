"""Strategies that promise a number per window: SlidingWindow (any window) and CalendarWindow (windows of the calendar).

Neither paces: as many permits as the window has left are granted at once. Both count by the rate as it was given, so
100 per 60 s is not 5 per 3 s. Knows nothing of loops or who waits; CalendarWindow knows where on the calendar it began.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from aiorate.rate import NS_PER_SECOND, Rate
from aiorate.schedulers.interface import check_ask, check_start, check_window

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

    from aiorate.rate import Number

__all__ = ["CalendarWindow", "SlidingWindow"]


class SlidingWindow:
    """At most n permits in any window of one period, wherever it begins; n at once after an idle period.

    The exact promise costs a log: an entry per instant at which something was granted, n at the most. The server's windows
    need not begin with ours. Permits given back are credited if they are the latest that were taken, else lost.
    """

    __slots__ = ("_last", "_log", "_undo", "_used", "rate")
    books_since = False

    def __init__(self, rate: Rate | str | Number, *, start: int | None = None) -> None:
        check_start(start)
        self.rate = Rate.of(rate)
        self._log: deque[tuple[int, int]] = deque()  # (instant, permits) of what is still in the window
        self._used = 0
        self._last = start  # nothing is granted before it
        self._undo = 0

    @property
    def max_permits(self) -> int:
        """The rate's permits per period."""
        return self.rate.permits

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.rate.permits)
        at = self._earliest(permits, now)
        if at > now:
            return at
        while self._log and self._log[0][0] <= now - self.rate.period_ns:
            self._used -= self._log.popleft()[1]
        if self._log and self._log[-1][0] == now:
            self._log[-1] = (now, self._log[-1][1] + permits)
        else:
            self._log.append((now, permits))
        self._used += permits
        self._last, self._undo = now, permits
        return max(at, now if since is None or since > now else since)

    def peek(self, permits: int, now: int) -> int:
        check_ask("peek()", permits, now, most=self.rate.permits)
        return max(self._earliest(permits, now), now)

    def give_back(self, permits: int, now: int) -> None:
        """Credit the latest take, or part of it. Earlier permits are lost: which entry was theirs is not known."""
        check_ask("give_back()", permits, now)
        credit = min(permits, self._undo)
        if credit:
            instant, count = self._log.pop()
            if count > credit:
                self._log.append((instant, count - credit))
            self._used -= credit
            self._undo -= credit

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate; what was granted within the new period before now counts as far as it is still known."""
        self.rate = Rate.of(rate)
        self._undo = 0
        if self._last is None:
            self._last = now

    def lag(self, now: int) -> int:
        """0: a window has no schedule to be behind."""
        return 0

    def bound(self, window: int, largest: int = 1) -> int:
        """n for a period or less, n more for each further period begun."""
        check_window(window, largest)
        return self.rate.permits * -(-window // self.rate.period_ns)

    def _earliest(self, permits: int, now: int) -> int:
        if self._last is None:
            self._last = now
        # Before the latest grant nothing is granted: the clock went back, and older entries are gone.
        over = self._used + permits - self.rate.permits
        at = self._last
        for instant, count in self._log:
            if over <= 0:
                break
            over -= count
            at = max(at, instant + self.rate.period_ns)
        return at

    def __repr__(self) -> str:
        return f"SlidingWindow({str(self.rate)!r}, used={self._used})"


class CalendarWindow:
    """At most n permits per window of the calendar in the time zone ``tz``: per hour, per day from midnight, per week.

    The period is whole seconds and divides a day, or is whole days (seven begin on Monday). ``tz`` is a name such as
    ``"Europe/Berlin"`` or a tzinfo; days with a change of the clocks are as long as they are. ``origin`` is the Unix time in
    ns of the instant 0; None reads the wall clock once, here, for instants of ``time.monotonic_ns``. n more may follow just
    after the edge of a window.
    """

    __slots__ = ("_ends", "_last", "_origin", "_tz", "_used", "rate")
    books_since = False
    refundable = True

    def __init__(self, rate: Rate | str | Number, tz: str | tzinfo, origin: int | None = None, *, start: int | None = None) -> None:
        from datetime import tzinfo as tzinfo_type  # needed here only: import aiorate stays fast

        check_start(start)
        if isinstance(tz, str):
            from zoneinfo import ZoneInfo

            try:
                tz = ZoneInfo(tz)
            except (KeyError, ValueError, OSError) as error:
                raise ValueError(f"CalendarWindow(tz={tz!r}) is not a known time zone; write 'UTC' or 'Europe/Berlin'.") from error
        if not isinstance(tz, tzinfo_type):
            raise TypeError(f"CalendarWindow(tz=...) must be the name of a time zone or a tzinfo, not {type(tz).__name__}.")
        if origin is None:
            import time

            origin = time.time_ns() - time.monotonic_ns()
        check_start(origin)
        self.rate = _checked(Rate.of(rate))
        self._tz = tz
        self._origin = origin
        self._last = start  # nothing is granted before it
        self._ends = start  # where the window of what is used ends
        self._used = 0

    @property
    def max_permits(self) -> int:
        """The rate's permits per window."""
        return self.rate.permits

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.rate.permits)
        at, used = self._plan(permits, now)
        if at > now:
            return at
        if self._ends is None or now >= self._ends:
            self._ends = self._edge_after(now)
        self._used, self._last = used + permits, now
        return max(at, now if since is None or since > now else since)

    def peek(self, permits: int, now: int) -> int:
        check_ask("peek()", permits, now, most=self.rate.permits)
        return max(self._plan(permits, now)[0], now)

    def give_back(self, permits: int, now: int) -> None:
        """Credit permits to the window if they may be its own; those of an earlier window are gone."""
        check_ask("give_back()", permits, now)
        if self._ends is not None and now < self._ends:
            self._used = max(0, self._used - permits)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate; what was granted in the window that now lies in still counts."""
        rate = _checked(Rate.of(rate))
        ends = self._edge_after(now if self._last is None else max(now, self._last), rate)
        if self._ends is not None and now < self._ends:
            # Still the old window: it counts until the later of both ends.
            ends = max(ends, self._ends)
        else:
            self._used = 0
        self.rate, self._ends = rate, ends

    def shift(self, ns: int) -> None:
        """The instants from here on are so many ns later on the calendar, because they stood still."""
        self._origin += ns
        if self._ends is not None:
            self._ends -= ns

    def lag(self, now: int) -> int:
        """0: a window has no schedule to be behind."""
        return 0

    def bound(self, window: int, largest: int = 1) -> int:
        """n for each window of the calendar that a window of this length may touch: 2 n over an edge."""
        check_window(window, largest)
        shortest = self.rate.period_ns
        if shortest > _HOUR and self._tz.utcoffset(None) is None:
            shortest = max(shortest - 2 * _HOUR, _HOUR)  # what a change of the clocks may leave of it
        return self.rate.permits * (1 + -(-window // shortest))

    def _plan(self, permits: int, now: int) -> tuple[int, int]:
        if self._last is None:
            self._last = now
        at = max(self._last, now)
        if self._ends is None or at >= self._ends:
            return at, 0
        if self._used + permits <= self.rate.permits:
            return at, self._used
        return self._ends, 0

    def _edge_after(self, instant: int, rate: Rate | None = None) -> int:
        """The first edge of a window after the instant."""
        from datetime import datetime

        period = (rate or self.rate).period_ns // NS_PER_SECOND
        second = (self._origin + instant) // NS_PER_SECOND
        local = datetime.fromtimestamp(second, self._tz)
        if period > 3_600:
            return _wall_edge(local, period) * NS_PER_SECOND - self._origin
        # By elapsed time, so that no window is stretched by an hour when the clocks go back.
        starts = second - (local.hour * 3_600 + local.minute * 60 + local.second) % period
        if datetime.fromtimestamp(starts, self._tz).utcoffset() != local.utcoffset():
            starts += period  # half an hour of change cut an hour in two: the rest counts with the next one
        return (starts + period) * NS_PER_SECOND - self._origin

    def __repr__(self) -> str:
        return f"CalendarWindow({str(self.rate)!r}, tz={str(self._tz)!r}, used={self._used})"


_HOUR = 3_600 * NS_PER_SECOND
_DAY = 86_400


def _wall_edge(local: datetime, period: int) -> int:
    """Unix time of the next edge by the wall clock: days are as long as the zone makes them."""
    from datetime import datetime, timedelta

    midnight = datetime(local.year, local.month, local.day)
    if period < _DAY:
        passed = local.hour * 3_600 + local.minute * 60 + local.second
        wall = midnight + timedelta(seconds=passed - passed % period + period)
    else:
        days = period // _DAY
        wall = midnight + timedelta(days=days - (local.toordinal() - 1) % days)
    edge = int(wall.replace(tzinfo=local.tzinfo).timestamp())
    if edge <= int(local.timestamp()):  # the hour that the clocks went back over comes twice: its second pass
        edge = int(wall.replace(tzinfo=local.tzinfo, fold=1).timestamp())
    return edge


def _checked(rate: Rate) -> Rate:
    seconds, rest = divmod(rate.period_ns, NS_PER_SECOND)
    if rest or not seconds or (seconds % _DAY and _DAY % seconds):
        raise ValueError(
            f"CalendarWindow({str(rate)!r}): the period must divide a day or be whole days, as second, minute, hour, day, week do."
        )
    return rate
