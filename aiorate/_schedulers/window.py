"""A number of permits per window: SlidingWindow, and what it shares with CalendarWindow.

Neither strategy paces: it grants all the permits that the window has left at once. Both count whole permits in the period that the
rate was given with, so 100 per 60 s is not 5 per 3 s. Knows nothing of clocks, loops or waiters.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND, Rate, as_float
from aiorate._schedulers.interface import Scheduler, check_ask, check_ns, check_permits, check_window

if TYPE_CHECKING:
    from aiorate._rate import Number


LONG_AGO = -(1 << 198)
"""Before all other instants."""
_DAY_NS = 86_400 * NS_PER_SECOND
_FLOATS = 10**14  # a product of floats is exact to one part in this
_MANY_GONE = 3  # entries, before they are cut off
_MANY_AFTER = 4096  # entries, each of which would have to be written again: it takes 0.3 ms
_instant, _total = itemgetter(0), itemgetter(1)


class Window(Scheduler):
    """A number of permits per window. Requests are not paced, so a late one is not booked earlier."""

    __slots__ = ("_last", "rate")
    rate: Rate
    _last: int  # no grant before it
    books_since: bool = False

    @property
    def max_permits(self) -> int | None:  # type: ignore[override]
        """The permits of a whole window."""
        return self.rate.permits

    @abstractmethod
    def _earliest(self, permits: int, now: int, ahead: int = 0) -> int:
        """The first instant that has room for that many permits, after those ``ahead`` of them."""

    @abstractmethod
    def _enter(self, permits: int, now: int) -> None:
        """Count permits that are granted at ``now``."""

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.rate.permits)
        at = self._earliest(permits, now)
        if at > now:
            return at
        self._enter(permits, now)
        return max(at, now if since is None or since > now else since)

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now, most=self.rate.permits)
        return max(self._earliest(permits, now, ahead), now)


class SlidingWindow(Window):
    """Allow n permits in any window of the period, wherever it begins.

    After a quiet spell, all n go at once. The window counts the rate as you write it: ``"100/min"`` is 100 in any minute. A rate that is
    not whole in its period counts in the shortest period in which it is: 0.5 per second is 1 in any 2 s. The price of the exact promise
    is a log of up to n instants.

    Args:
        rate: Whole permits in a period, such as ``"100/min"``.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_first", "_gone", "_log", "_total")
    rate: Rate
    # An entry for each instant of grants: the instant, and the number of permits granted up to then, the first ever included.
    # Those still in the window begin at `_first`. A list, because an empty deque would weigh as much as all the rest.
    _log: list[tuple[int, int]]
    _first: int
    _total: int  # permits granted, the first ever included
    _gone: int  # the number of these that no longer count

    def __init__(self, rate: Rate | str | Number, *, start: int | None = None) -> None:
        if start is not None:
            check_ns("start", start)
        self.rate = whole_rate(Rate.of(rate), "SlidingWindow")
        self.reset(LONG_AGO if start is None else start)

    def _enter(self, permits: int, now: int) -> None:
        self._forget(now)
        log, total = self._log, self._total + permits
        if log and log[-1][0] == now and self._first < len(log):
            log[-1] = (now, total)
        else:
            log += ((now, total),)
        self._total, self._last = total, now

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Forget that many permits of the receipt's entry; of the oldest entries without a receipt, and if thousands came after it."""
        check_ask("give_back()", permits, now, taken)
        log, first = self._log, self._first
        if taken is not None:
            place = bisect_right(log, taken, first, key=_instant) - 1
            if place < first or log[place][0] != taken:
                return
            permits = min(permits, log[place][1] - max(self._gone, log[place - 1][1] if place else 0))
            if len(log) - place < _MANY_AFTER:
                less = [(instant, total - permits) for instant, total in log[place:]]
                log[place:] = less
                self._total -= permits
                return
        self._last = now = max(now, self._last)
        self._forget(now)
        gone = min(self._gone + permits, self._total)
        first = bisect_right(self._log, gone, self._first, key=_total)
        self._first, self._gone = first, gone

    def charge(self, permits: int, now: int) -> None:
        """Enter permits as if they had been taken one by one, each as soon as there was room. Later requests wait for them."""
        check_permits("charge()", permits)
        now, n = max(now, self._last), self.rate.permits
        if at_once := min(permits, self.available(now)):
            self._enter(at_once, now)
        # Each of the others comes a period after the n-th before it. So all entries move on by whole rounds.
        rounds, permits = divmod(permits - at_once, n)
        if rounds:
            self._log = [(instant + rounds * self.rate.period_ns, until) for instant, until in self._log[self._first :]]
            self._first, self._last = 0, self._log[-1][0]
        gone, new = self._total - n, list[tuple[int, int]]()  # the permits that do not count when the next of them comes
        for instant, until in self._log[self._first :] if permits else ():
            if (portion := min(until - gone, permits)) > 0:
                gone, permits = gone + portion, permits - portion
                new.append((instant + self.rate.period_ns, gone + n))
        if new:
            self._log += new  # without a call in between: a signal handler may raise there
            self._last, self._total = new[-1]

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the number of permits. The window keeps its period: 90 per second is 5400 in a window of one minute.

        Only a rate that is not whole in that period, but whole in the period that it is written with, such as ``"1000/h"`` for a
        window of one minute, changes the period too. Grants within the new period before now still count, as far as the log goes
        back. Raises ValueError for any other rate.
        """
        self.rate = in_period(Rate.of(rate), self.rate, "SlidingWindow")

    def reset(self, now: int) -> None:
        """Forget all grants."""
        self._log = []
        self._first = self._total = self._gone = 0
        self._last = now

    def available(self, now: int) -> int:
        """What the window that ends now has left."""
        if now < self._last:
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
            del log[:first]
            self._first = 0

    def _earliest(self, permits: int, now: int, ahead: int = 0) -> int:
        # No grant before the latest one: where the clock went back, older entries are gone.
        n, period, earliest = self.rate.permits, self.rate.period_ns, max(now, self._last)
        last = self._total + ahead + permits - n  # the number of the last permit that must have left the window
        if last <= self._gone:
            return self._last
        if last <= self._total:
            return max(self._granted_at(last) + period, self._last)
        # It is one of those ahead, each of which comes a period after the n-th before it.
        rounds = -(-(last - self._total) // n)
        last -= rounds * n
        return (earliest if last <= self._gone else max(self._granted_at(last) + period, earliest)) + rounds * period

    def _granted_at(self, number: int) -> int:
        """When the permit of that number was granted. It must still count."""
        log, first = self._log, self._first
        if log[first][1] >= number:
            return log[first][0]
        return log[bisect_left(log, number, first, key=_total)][0]

    def __repr__(self) -> str:
        return f"SlidingWindow({str(self.rate)!r}, used={self._total - self._gone})"


def whole_rate(rate: Rate, what: str) -> Rate:
    """The rate, if it was given as whole permits in a period or has a period of 24 h at most. ValueError if not."""
    if rate._is_whole or rate.period_ns <= _DAY_NS:
        return rate
    raise ValueError(
        f"{what}(): {rate.per_second:g} per second is not whole permits in the period written, nor in any of 24 h or less."
        " Write whole permits and their period, such as '100/min'."
    )


def in_period(rate: Rate, before: Rate, what: str) -> Rate:
    """The rate as whole permits in the period of the one before, or as written if only that is whole. ValueError if neither is."""
    permits, rest = divmod(rate.permits * before.period_ns, rate.period_ns)
    if rest and not rate._is_whole:  # a float may miss a whole number by its own error
        if 2 * rest > rate.period_ns:
            permits, rest = permits + 1, rest - rate.period_ns
        if abs(rest) * _FLOATS <= rate.permits * before.period_ns:
            rest = 0
    if not rest:
        return before._with_permits(permits)
    if rate._is_whole:
        return rate
    many = as_float(rate.permits * before.period_ns, rate.period_ns)
    raise ValueError(
        f"set_rate(): the {what} keeps its period, and {many:g} permits in it are not whole."
        f" Write whole permits and their period, such as '{before}'."
    )
