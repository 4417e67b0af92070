"""SlidingWindow: a number of permits in any window of one period, wherever it begins. Knows nothing of clocks, loops or waiters."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING

from aiorate._rate import Rate
from aiorate._schedulers.interface import check_give_back, check_optional, check_permits, check_window
from aiorate._schedulers.window import Window, in_period, whole_rate

if TYPE_CHECKING:
    from aiorate._rate import Number

__all__ = ["SlidingWindow"]

_MANY_GONE = 3  # entries, before they are cut off
_instant, _total = itemgetter(0), itemgetter(1)


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

    def __init__(self, rate: Rate | str | Number, *, start: int | None = None) -> None:
        check_optional("start", start)
        self.rate = whole_rate(Rate.of(rate), "SlidingWindow")
        # An entry for each instant of grants: the instant, and the number of permits granted up to then, the first ever included.
        # Those still in the window begin at `_first`. A list, because an empty deque would weigh as much as all the rest.
        self._log: list[tuple[int, int]] = []
        self._first = 0
        self._total = 0  # permits granted, the first ever included
        self._gone = 0  # the number of these that no longer count
        self._last = start

    def _enter(self, permits: int, now: int) -> None:
        self._forget(now)
        log, total = self._log, self._total + permits
        if log and log[-1][0] == now and self._first < len(log):
            log[-1] = (now, total)
        else:
            log += ((now, total),)
        self._total, self._last = total, now

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Forget that many permits of the receipt's entry; without a receipt, of the oldest entries."""
        check_give_back(permits, now, taken)
        if taken is None:
            if self._last is not None:
                self._last = now = max(now, self._last)
            self._forget(now)
            gone = min(self._gone + permits, self._total)
            first = bisect_right(self._log, gone, self._first, key=_total)
            self._first, self._gone = first, gone
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

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the number of permits. The window keeps its period: 90 per second is 5400 in a window of one minute.

        Only a rate that is not whole in that period, but whole in the period that it is written with, such as ``"1000/h"`` for a
        window of one minute, changes the period too. Grants within the new period before now still count, as far as the log goes
        back. Raises ValueError for any other rate.
        """
        self.rate = in_period(Rate.of(rate), self.rate, "SlidingWindow")
        if self._last is None:
            self._last = now

    def reset(self, now: int) -> None:
        """Forget all grants."""
        self._log = []
        self._first = self._total = self._gone = 0
        self._last = now

    def available(self, now: int) -> int:
        """What the window that ends now has left."""
        if self._last is not None and now < self._last:
            return 0
        place = bisect_right(self._log, now - self.rate.period_ns, self._first, key=_instant)
        gone = self._log[place - 1][1] if place > self._first else self._gone
        return max(0, self.rate.permits - (self._total - gone))

    def _standings(self, now: int) -> list[tuple[int, int]]:
        n, last = self.rate.permits, self._last
        left = self.available(now)
        if left >= n or (last is not None and now < last):
            return super()._standings(now) if left < n else [(n, now)]
        return [(left, self._granted_at(self._total + left + 1 - n) + self.rate.period_ns)]

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
        if self._last is None:
            self._last = now
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
