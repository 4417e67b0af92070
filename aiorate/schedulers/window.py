"""Strategies that promise a number per window: SlidingWindow (any window) and CalendarWindow (windows of the calendar).

Neither strategy paces: it grants all the permits that the window has left at once. Both count whole permits in the period that the
rate was given with, so 100 per 60 s is not 5 per 3 s. Knows nothing of loops or waiters. CalendarWindow knows the place of its
instants on the calendar.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING

from aiorate.rate import NS_PER_SECOND, Rate, as_float
from aiorate.schedulers.interface import (
    Scheduler,
    check_ask,
    check_give_back,
    check_instant,
    check_permits,
    check_start,
    check_window,
    wrong_arguments,
)

if TYPE_CHECKING:
    from datetime import datetime, tzinfo
    from typing import Never

    from aiorate.rate import Number

__all__ = ["CalendarWindow", "SlidingWindow"]

_MANY_GONE = 3  # entries, before they are cut off
_instant, _total = itemgetter(0), itemgetter(1)


class SlidingWindow(Scheduler):
    """At most n permits in any window of one period, wherever it begins. After an idle period, n are granted at once.

    So a server's windows hold at most n as well, wherever they begin. The exact promise costs a log, with an entry for each
    instant of a grant and at most n entries.

    The period is that of the rate as it is written: ``"100/min"`` is 100 in any minute. A number that is not whole in the period
    written counts in the shortest period in which it is: 0.5 per second is 1 in any 2 s. ValueError if that is longer than 24 h, as
    for ``100 / 60``, a float of 17 digits.
    """

    __slots__ = ("_first", "_gone", "_last", "_log", "_total", "rate")
    rate: Rate
    books_since: bool = False

    def __init__(self, rate: Rate | str | Number, *misplaced: Never, start: int | None = None, **unknown: Never) -> None:
        if misplaced or unknown:
            raise wrong_arguments("SlidingWindow", rate, misplaced, unknown)
        check_start(start)
        self.rate = _whole(Rate.of(rate), "SlidingWindow")
        # Of each instant of a grant: itself, and how many permits were granted by then, in all. Those still in the window begin at
        # `_first`. An empty deque would weigh as much as all the rest.
        self._log: list[tuple[int, int]] = []
        self._first = 0
        self._total = 0  # permits granted so far
        self._gone = 0  # of these, the first so many count no more
        self._last = start  # no grant before it

    @property
    def max_permits(self) -> int | None:  # type: ignore[override]
        """As many as the window."""
        return self.rate.permits

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.rate.permits)
        at = self._earliest(permits, now)
        if at > now:
            return at
        self._forget(now)
        log, total = self._log, self._total + permits
        if log and log[-1][0] == now and self._first < len(log):
            log[-1] = (now, total)
        else:
            log += ((now, total),)
        self._total, self._last = total, now
        return max(at, now if since is None or since > now else since)

    def peek(self, permits: int, now: int) -> int:
        check_ask("peek()", permits, now, most=self.rate.permits)
        return max(self._earliest(permits, now), now)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Forget that many permits of the receipt's entry; without a receipt, of the oldest entries."""
        check_give_back(permits, now, taken)
        if taken is None:
            if self._last is not None:
                self._last = now = max(now, self._last)
            self._forget(now)
            self._drop(permits)
            return
        log, first = self._log, self._first
        place = bisect_right(log, taken, first, key=_instant) - 1
        if place >= first and log[place][0] == taken:
            credit = min(permits, log[place][1] - max(self._gone, log[place - 1][1] if place else 0))
            less = [(instant, total - credit) for instant, total in log[place:]]
            log[place:] = less
            self._total -= credit

    def charge(self, permits: int, now: int) -> None:
        """Enter permits as if they had been taken one by one, each as soon as there was room. Later requests wait for them."""
        check_permits("charge()", permits)
        now = now if self._last is None else max(now, self._last)
        self._forget(now)
        n, period, log, first, gone, total = self.rate.permits, self.rate.period_ns, self._log, self._first, self._gone, self._total
        at_once = min(permits, max(0, n - (total - gone)))
        total += at_once
        new = [(now, total)] if at_once else []
        rounds, rest = divmod(permits - at_once, n)
        if rounds or rest:
            # Each of the others comes a period after the n-th before it. So all entries move on by whole rounds, the oldest by one more.
            gone = max(gone, total - n)
            moved: list[tuple[int, int]] = []
            for instant, until in chain(islice(log, first, None), new):
                if not rest:
                    break
                count = min(max(until - gone, 0), rest)
                gone, rest, total = gone + count, rest - count, total + count
                if count:
                    moved.append((instant + period, total))
            new += moved
            first = bisect_right(log, gone, first, key=_total)
        if rounds:
            new = [(instant + rounds * period, until) for instant, until in chain(log[first:], new)]
            log, first = [], 0
        latest = new[-1][0]
        log += new
        self._log, self._first, self._gone, self._total, self._last = log, first, gone, total, latest

    def rehearse(self) -> Scheduler:
        """It reads the log here, and has one of its own for what comes after."""
        if type(self) is not SlidingWindow:
            return super().rehearse()
        return _Ahead(self.rate, self._log, self._first, self._gone, self._total, self._last)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the number of permits. The window keeps its period: 90 per second is 5400 in a window of one minute.

        Only a rate that is not whole in that period, but whole in the period that it is written with, such as ``"1000/h"`` for a
        window of one minute, changes the period too. Grants within the new period before now still count, as far as the log goes
        back. Raises ValueError for any other rate.
        """
        self.rate = _in_period(Rate.of(rate), self.rate.period_ns, "SlidingWindow")
        if self._last is None:
            self._last = now

    def reset(self, now: int) -> None:
        """Forget all grants."""
        self._log = []
        self._first = self._total = self._gone = 0
        self._last = now

    def lag(self, now: int) -> int:
        """0: a window has no schedule."""
        return 0

    def available(self, now: int) -> int:
        """What the window that ends now has left."""
        if self._last is not None and now < self._last:
            return 0
        place = bisect_right(self._log, now - self.rate.period_ns, self._first, key=_instant)
        gone = self._log[place - 1][1] if place > self._first else self._gone
        return max(0, self.rate.permits - (self._total - gone))

    def bound(self, window: int, largest: int = 1) -> int:
        """n for a period or less, and n more for each further period begun."""
        check_window(window, largest)
        return self.rate.permits * -(-window // self.rate.period_ns)

    def _forget(self, now: int) -> None:
        """Drop the entries that are no longer in the window that ends now."""
        log, first, gone, begins = self._log, self._first, self._gone, now - self.rate.period_ns
        while first < len(log) and log[first][0] <= begins:
            gone = log[first][1]
            first += 1
        self._first, self._gone = first, gone
        if first > _MANY_GONE and 2 * first >= len(log):
            self._log, self._first = log[first:], 0  # another list: a rehearsal may read that one

    def _drop(self, permits: int) -> None:
        """Take that many permits, or all if there are fewer, out of the oldest entries."""
        gone = min(self._gone + permits, self._total)
        first = bisect_right(self._log, gone, self._first, key=_total)
        self._first, self._gone = first, gone

    def _earliest(self, permits: int, now: int) -> int:
        if self._last is None:
            self._last = now
        # No grant before the latest one: where the clock went back, older entries are gone.
        last = self._total + permits - self.rate.permits  # of those granted so far, the last that must have left the window
        if last <= self._gone:
            return self._last
        return max(self._granted_at(last) + self.rate.period_ns, self._last)

    def _granted_at(self, number: int) -> int:
        """When the permit of that number was granted, counted from the first ever; one that still counts."""
        log, first = self._log, self._first
        if log[first][1] >= number:
            return log[first][0]
        return log[bisect_left(log, number, first, key=_total)][0]

    def __repr__(self) -> str:
        return f"SlidingWindow({str(self.rate)!r}, used={self._total - self._gone})"


class _Ahead(SlidingWindow):
    """A window in which permits are granted that have yet to be: the log of another up to there, and one of its own after it."""

    __slots__ = ("_before", "_begin", "_end", "_repeats", "_split")

    def __init__(self, rate: Rate, log: list[tuple[int, int]], first: int, gone: int, total: int, last: int | None) -> None:
        self.rate, self._last = rate, last
        self._log, self._first = [], 0
        self._gone = gone
        self._total = self._split = total
        self._before, self._begin, self._end = log, first, len(log)  # the other's log may grow
        self._repeats: list[tuple[int, int, int]] = []  # the numbers after which they begin and with which they end, and no sooner

    def take_ahead(self, permits: int, now: int) -> None:
        """As `charge`, in one step: the log need not hold what follows from it."""
        now = now if self._last is None else max(now, self._last)
        self._repeats.append((self._total, self._total + permits, now))
        self._last = self._granted_at(self._total + permits)
        self._total += permits
        self._log.append((self._last, self._total))

    def _granted_at(self, number: int) -> int:
        for begin, end, now in reversed(self._repeats):
            if begin < number <= end:  # a period after the n-th before it, or now
                rounds = -(-(number - begin) // self.rate.permits)
                before = number - rounds * self.rate.permits
                at = now if before <= self._gone else max(self._granted_at(before) + self.rate.period_ns, now)
                return at + (rounds - 1) * self.rate.period_ns
        if number > self._split:
            return super()._granted_at(number)
        place = bisect_left(self._before, number, self._begin, self._end, key=_total)
        return self._before[min(place, self._end - 1)][0]  # some of the last may have been given back

    def _forget(self, now: int) -> None:
        """Drop the first half of what was granted here once nobody can ask for it, however long this is kept."""
        half, asked = len(self._log) // 2, self._total - self.rate.permits
        if half > _MANY_GONE and self._log[half - 1][1] <= asked and not self._repeats:
            self._log = self._log[half:]
        if self._split <= asked and not self._repeats:
            self._before = []


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
                    f"CalendarWindow(tz={tz!r}) is not a time zone. Write CalendarWindow('9/day', 'UTC') or 'Europe/Berlin'."
                    " Where the system has no time zones, install tzdata."
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
