"""Strategies that promise a number per window: SlidingWindow (any window) and CalendarWindow (windows of the calendar).

Neither strategy paces: it grants all the permits that the window has left at once. Both count whole permits in the period that the
rate was given with, so 100 per 60 s is not 5 per 3 s. Knows nothing of loops or waiters. CalendarWindow knows the place of its
instants on the calendar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.rate import NS_PER_SECOND, Rate, as_float
from aiorate.schedulers.interface import Scheduler, check_ask, check_give_back, check_instant, check_permits, check_start, check_window

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

    from aiorate.rate import Number

__all__ = ["CalendarWindow", "SlidingWindow"]

_MANY_GONE = 3  # entries, before they are cut off


class SlidingWindow(Scheduler):
    """At most n permits in any window of one period, wherever it begins. After an idle period, n are granted at once.

    So a server's windows hold at most n as well, wherever they begin. The exact promise costs a log, with an entry for each
    instant of a grant and at most n entries.

    The period is that of the rate as it is written: ``"100/min"`` is 100 in any minute. A number that is not whole in the period
    written counts in the shortest period in which it is: 0.5 per second is 1 in any 2 s. ValueError if that is longer than 24 h, as
    for ``100 / 60``, a float of 17 digits.
    """

    __slots__ = ("_first", "_last", "_log", "_used", "max_permits", "rate")
    rate: Rate
    books_since: bool = False

    def __init__(self, rate: Rate | str | Number, *, start: int | None = None) -> None:
        check_start(start)
        self.rate = _whole(Rate.of(rate), "SlidingWindow")
        self.max_permits: int | None = self.rate.permits
        # (instant, permits) of the grants, those still in the window from `_first` on. An empty deque would weigh as much as all the rest.
        self._log: list[tuple[int, int]] = []
        self._first = 0
        self._used = 0
        self._last = start  # no grant before it

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.rate.permits)
        at = self._earliest(permits, now)
        if at > now:
            return at
        self._forget(now)
        log = self._log
        if self._first < len(log) and log[-1][0] == now:
            log[-1] = (now, log[-1][1] + permits)
        else:
            log += ((now, permits),)
        self._used += permits
        self._last = now
        return max(at, now if since is None or since > now else since)

    def peek(self, permits: int, now: int) -> int:
        check_ask("peek()", permits, now, most=self.rate.permits)
        return max(self._earliest(permits, now), now)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Forget that many permits of the receipt's entry; without a receipt, of the oldest entries."""
        check_give_back(permits, now, taken)
        log = self._log
        if taken is None:
            if self._last is not None:
                self._last = now = max(now, self._last)
            self._forget(now)
            self._drop(permits)
            return
        for place in range(len(log) - 1, self._first - 1, -1):
            instant, count = log[place]
            if instant <= taken:
                if instant == taken:
                    credit = min(permits, count)
                    log[place] = (instant, count - credit)
                    self._used -= credit
                return

    def charge(self, permits: int, now: int) -> None:
        """Enter permits as if they had been taken one by one, each as soon as there was room. Later requests wait for them."""
        check_permits("charge()", permits)
        now = now if self._last is None else max(now, self._last)
        self._forget(now)
        n, period, at_once = self.rate.permits, self.rate.period_ns, max(0, self.rate.permits - self._used)
        if permits <= at_once:
            self._log += ((now, permits),)
            self._used += permits
            self._last = now
            return
        log = self._log[self._first :]
        if at_once:
            log.append((now, at_once))
        # Each of the others comes a period after the n-th before it. So all entries move on by whole rounds, the oldest by one more.
        _, log = _split(log, self._used + at_once - n)
        rounds, rest = divmod(permits - at_once, n)
        oldest, log = _split(log, rest)
        log.extend([(instant + period, count) for instant, count in oldest])
        log = [(instant + rounds * period, count) for instant, count in log]
        self._log, self._first, self._used, self._last = log, 0, n, log[-1][0]

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the number of permits. The window keeps its period: 90 per second is 5400 in a window of one minute.

        Only a rate that is not whole in that period, but whole in the period that it is written with, such as ``"1000/h"`` for a
        window of one minute, changes the period too. Grants within the new period before now still count, as far as the log goes
        back. Raises ValueError for any other rate.
        """
        self.rate = _in_period(Rate.of(rate), self.rate.period_ns, "SlidingWindow")
        self.max_permits = self.rate.permits
        if self._last is None:
            self._last = now

    def reset(self, now: int) -> None:
        """Forget all grants."""
        self._log = []
        self._first = self._used = 0
        self._last = now

    def lag(self, now: int) -> int:
        """0: a window has no schedule."""
        return 0

    def bound(self, window: int, largest: int = 1) -> int:
        """n for a period or less, and n more for each further period begun."""
        check_window(window, largest)
        return self.rate.permits * -(-window // self.rate.period_ns)

    def _forget(self, now: int) -> None:
        """Drop the entries that are no longer in the window that ends now."""
        log, first, used, begins = self._log, self._first, self._used, now - self.rate.period_ns
        while first < len(log):
            instant, count = log[first]
            if instant > begins:
                break
            used -= count
            first += 1
        self._first, self._used = first, used
        if first > _MANY_GONE and 2 * first >= len(log):
            self._log, self._first = log[first:], 0

    def _drop(self, permits: int) -> None:
        """Take that many permits, or all if there are fewer, out of the oldest entries."""
        log, first, used = self._log, self._first, self._used
        while first < len(log) and permits > 0:
            count = log[first][1]
            if count > permits:
                break
            permits -= count
            used -= count
            first += 1
        if first < len(log) and permits > 0:
            log[first] = (log[first][0], log[first][1] - permits)
            used -= permits
        self._first, self._used = first, used

    def _earliest(self, permits: int, now: int) -> int:
        if self._last is None:
            self._last = now
        # No grant before the latest one: where the clock went back, older entries are gone.
        over = self._used + permits - self.rate.permits
        log, place, at = self._log, self._first, self._last
        while over > 0 and place < len(log):
            instant, count = log[place]
            if instant + self.rate.period_ns > at:
                at = instant + self.rate.period_ns
            over -= count
            place += 1
        return at

    def __repr__(self) -> str:
        return f"SlidingWindow({str(self.rate)!r}, used={self._used})"


def _split(log: list[tuple[int, int]], permits: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The oldest entries that hold so many permits, one of them cut in two if need be; and the others."""
    for place, (instant, count) in enumerate(log):
        if permits < count:
            whole = log[:place]
            return ([*whole, (instant, permits)] if permits > 0 else whole), [(instant, count - max(permits, 0)), *log[place + 1 :]]
        permits -= count
    return log, []


class CalendarWindow(Scheduler):
    """At most n permits per window of the calendar in the time zone ``tz``: per hour, per day from midnight, per week.

    The period is whole seconds that divide a day, a day or a week, which begins on Monday. ``tz`` is a name such as
    ``"Europe/Berlin"`` or a tzinfo. A day with a change of the clocks is an hour shorter or longer. ``origin`` is the Unix time in
    ns of the instant 0; None reads the wall clock once, at construction, for instants of ``time.monotonic_ns``. After the n permits
    of one window, n more may follow at once in the next.
    """

    __slots__ = ("_began", "_ends", "_last", "_opens", "_origin", "_tz", "_used", "max_permits", "rate")
    rate: Rate
    books_since: bool = False

    def __init__(self, rate: Rate | str | Number, tz: str | tzinfo, origin: int | None = None, *, start: int | None = None) -> None:
        from datetime import tzinfo as tzinfo_type  # imported here, so that ``import aiorate`` stays fast

        check_start(start)
        if isinstance(tz, str):
            from zoneinfo import ZoneInfo

            try:
                tz = ZoneInfo(tz)
            except (KeyError, ValueError, OSError) as error:
                raise ValueError(
                    f"CalendarWindow(tz={tz!r}) is not a known time zone. Write a name such as 'UTC' or 'Europe/Berlin';"
                    " where the system has no time zones, install tzdata."
                ) from error
        if not isinstance(tz, tzinfo_type):
            raise TypeError(f"CalendarWindow(tz) must be the name of a time zone or a tzinfo, not {type(tz).__name__}.")
        if origin is None:
            import time

            origin = time.time_ns() - time.monotonic_ns()
        check_instant("CalendarWindow(origin)", origin)
        self.rate = _checked(Rate.of(rate))
        self.max_permits: int | None = self.rate.permits
        self._tz = tz
        self._origin = origin
        self._last = start  # no grant before it
        # The window of the used permits: its first grant, its end, and its beginning if all windows before it are used up.
        self._began = self._ends = start
        self._opens: int | None = None
        self._used = 0

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.rate.permits)
        at, used = self._plan(permits, now)
        if at > now:
            return at
        if self._ends is None or now >= self._ends:
            self._began, self._ends = now, self._edge_after(now)
        elif self._opens is not None:
            self._began = now
        self._used, self._last, self._opens = used + permits, now, None
        return max(at, now if since is None or since > now else since)

    def peek(self, permits: int, now: int) -> int:
        check_ask("peek()", permits, now, most=self.rate.permits)
        return max(self._plan(permits, now)[0], now)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Credit permits that are, or may be, this window's. The permits of an earlier window are gone."""
        check_give_back(permits, now, taken)
        if self._ends is not None and now < self._ends and (taken is None or self._began is None or taken >= self._began):
            self._used = max(0, self._used - permits)

    def charge(self, permits: int, now: int) -> None:
        """Count permits in this window as far as they fit, and the rest in the next ones."""
        check_permits("charge()", permits)
        at, used = self._plan(1, now)
        if self._ends is None or at >= self._ends:
            self._began, self._ends = at, self._edge_after(at)
        n, period = self.rate.permits, self.rate.period_ns
        over = min(used + permits - n, permits)
        if over <= 0:
            self._used = used + permits
        else:
            windows = -(-over // n)
            self._used = over - (windows - 1) * n
            # From the middle of the window before the last, which is inside that window whatever the clocks were changed by.
            at = self._ends if windows == 1 else self._edge_after(self._ends + (windows - 2) * period + period // 2)
            self._began, self._ends = at, self._edge_after(at)
        self._opens = at if at > now else None

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the number of permits. The window keeps its period, as in `SlidingWindow.set_rate`.

        Grants in the current window still count.
        """
        rate = _checked(_in_period(Rate.of(rate), self.rate.period_ns, "CalendarWindow"))
        ends = self._edge_after(now if self._last is None else max(now, self._last), rate)
        if self._ends is not None and now < self._ends:
            # Still the old window. It counts until the later of both ends.
            ends = max(ends, self._ends)
        else:
            self._began = now
            self._used = 0
        self.rate, self._ends = rate, ends
        self.max_permits = rate.permits

    def reset(self, now: int) -> None:
        """Forget all grants."""
        self._began = self._ends = self._last = now
        self._opens = None
        self._used = 0

    def shift(self, ns: int) -> None:
        """Move the calendar of later instants on by ``ns``, because time went on during a pause."""
        self._origin += ns
        if self._ends is not None:
            self._ends -= ns
        if self._opens is not None:
            self._opens -= ns

    def lag(self, now: int) -> int:
        """0: a window has no schedule."""
        return 0

    def bound(self, window: int, largest: int = 1) -> int:
        """n for each window of the calendar that a window of this length may touch: 2 n over an edge."""
        check_window(window, largest)
        shortest = self.rate.period_ns
        if shortest > _HOUR and self._tz.utcoffset(None) is None:
            shortest = max(shortest - 2 * _HOUR, _HOUR)  # the least that a change of the clocks leaves
        return self.rate.permits * (1 + -(-window // shortest))

    def _plan(self, permits: int, now: int) -> tuple[int, int]:
        if self._last is None:
            self._last = now
        at = max(self._last, now, now if self._opens is None else self._opens)
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
        try:
            local = datetime.fromtimestamp(second, self._tz)
        except (OverflowError, OSError, ValueError):
            return instant + period * NS_PER_SECOND  # the calendar ends with the year 9999
        if period > 3_600:
            return _wall_edge(local, period) * NS_PER_SECOND - self._origin
        # By elapsed time, so that no window is an hour longer when the clocks go back.
        starts = second - (local.hour * 3_600 + local.minute * 60 + local.second) % period
        if datetime.fromtimestamp(starts, self._tz).utcoffset() != local.utcoffset():
            starts += period  # a change by half an hour cut an hour in two: the rest counts with the next hour
        return (starts + period) * NS_PER_SECOND - self._origin

    def __repr__(self) -> str:
        return f"CalendarWindow({str(self.rate)!r}, tz={str(self._tz)!r}, used={self._used})"


_HOUR = 3_600 * NS_PER_SECOND
_DAY = 86_400
_MANY = 1_000_000
_FLOATS = 10**14  # a product of floats is that exact


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
    if edge <= int(local.timestamp()):  # the repeated hour, after the clocks went back
        edge = int(wall.replace(tzinfo=local.tzinfo, fold=1).timestamp())
    return edge


def _checked(rate: Rate) -> Rate:
    """The rate, if its period is a window of the calendar."""
    _whole(rate, "CalendarWindow")
    seconds, rest = divmod(rate.period_ns, NS_PER_SECOND)
    if rest or not seconds or (seconds not in (_DAY, 7 * _DAY) and _DAY % seconds):
        written = [repr(str(each)) for each in (_per(rate, days * _DAY * NS_PER_SECOND) for days in (1, 7)) if each]
        raise ValueError(
            f"CalendarWindow({str(rate)!r}): the period must be whole seconds that divide a day, a day or a week."
            f" Write {' or '.join(written) or repr('10000/day')}, or SlidingWindow({str(rate)!r}) for windows that begin anywhere."
        )
    return rate


def _whole(rate: Rate, what: str) -> Rate:
    """The rate, if it was given as whole permits in a period, or is that in 24 h at most."""
    if rate.is_whole or rate.period_ns <= _DAY * NS_PER_SECOND:
        return rate
    seconds = [_per(rate, each * NS_PER_SECOND) for each in range(1, 60)]
    written = [str(each) for each in (next(filter(None, seconds), None), _per(rate, 60 * NS_PER_SECOND)) if each]
    if not written and rate.permits <= _MANY and rate.period_ns <= _MANY * _DAY * NS_PER_SECOND:
        written = [str(rate)]
    raise ValueError(
        f"{what}(): {rate.per_second:g} per second is not whole permits in the period written, nor in any of 24 h or less."
        f" Write whole permits and their period: {' or '.join(map(repr, written or ['100/min']))}."
    )


def _in_period(rate: Rate, period: int, what: str) -> Rate:
    """The rate as whole permits in that period; or as it is written, if only that is whole."""
    kept = _per(rate, period)
    if kept:
        return kept
    if rate.is_whole:
        return rate
    permits = rate.permits * period
    written = [repr(str(Rate.exactly(n, period))) for n in (permits // rate.period_ns, permits // rate.period_ns + 1) if n]
    raise ValueError(
        f"set_rate(): the {what} keeps its period, and {as_float(permits, rate.period_ns):g} permits in it are not whole."
        f" Write {' or '.join(written)}."
    )


def _per(rate: Rate, period: int) -> Rate | None:
    """The rate with another period, if its permits are whole then; None if not. A float is whole but for what it cannot hold."""
    permits, rest = divmod(rate.permits * period, rate.period_ns)
    if rest and not rate.is_whole:
        if 2 * rest > rate.period_ns:
            permits, rest = permits + 1, rest - rate.period_ns
        if abs(rest) * _FLOATS <= rate.permits * period:
            rest = 0
    return None if rest else Rate.exactly(permits, period)
