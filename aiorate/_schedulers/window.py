"""A number of permits per window: SlidingWindow, and what it shares with CalendarWindow.

Both grant all the permits that the window has left at once. They count whole permits in the period that the rate was given with, so
100 per 60 s is not 5 per 3 s.
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


LONG_AGO = -(1 << 198)  # before all other instants
_DAY_NS = 86_400 * NS_PER_SECOND
_MANY_AFTER = 4096  # entries, which take 0.3 ms to write again
_instant, _total = itemgetter(0), itemgetter(1)


class Window(Scheduler):
    """A number of permits per window. Nothing is paced, so a late request is not booked earlier."""

    __slots__ = ("rate",)
    books_since: bool = False

    @property
    def max_permits(self) -> int | None:  # type: ignore[override]
        return self.rate.permits

    @abstractmethod
    def _earliest(self, permits: int, now: int, ahead: int = 0) -> int:
        """The first instant with room for the permits, after those ``ahead``."""

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

    __slots__ = ("_first", "_log")
    # An entry for each instant of grants: the instant, and the number of permits ever granted up to then. Those still in the window begin
    # at `_first`, and the one before tells how many have left it. A list, because an empty deque would weigh as much as all the rest.
    _log: list[tuple[int, int]]
    _first: int

    def __init__(self, rate: Rate | str | Number, *, start: int | None = None) -> None:
        check_ns("start", 0 if start is None else start)
        self.rate: Rate = whole_rate(Rate.of(rate), "SlidingWindow")
        self.reset(LONG_AGO if start is None else start)

    def _enter(self, permits: int, now: int) -> None:
        log, first, begins = self._log, self._first, now - self.rate.period_ns
        while first < len(log) and log[first][0] <= begins:
            first += 1
        if first > 3 and 2 * first > len(log):  # more than half are gone
            del log[: first - 1]
            first = 1
        self._first, entry = first, (now, log[-1][1] + permits)
        if log[-1][0] == now and first < len(log):
            log[-1] = entry
        else:
            log.append(entry)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Forget permits of the receipt's entry; of the oldest entries without a receipt, or if thousands came after it."""
        check_ask("give_back()", permits, now, taken)
        log, first = self._log, self._first
        if taken is not None:
            place = bisect_right(log, taken, first, key=_instant) - 1
            if place < first or log[place][0] != taken:
                return
            permits = min(permits, log[place][1] - log[place - 1][1])
            if len(log) - place < _MANY_AFTER:
                log[place:] = [(instant, total - permits) for instant, total in log[place:]]
                return
        first = bisect_right(log, max(now, log[-1][0]) - self.rate.period_ns, first, key=_instant)
        gone = log[first - 1][1] + permits  # if those are more than all, they are all
        self._first = first = bisect_right(log, gone, first, key=_total)
        log[first - 1] = log[first - 1][0], gone

    def charge(self, permits: int, now: int) -> None:
        """Enter permits as if they had been taken one by one, each as soon as there was room. Later requests wait for them."""
        check_permits("charge()", permits)
        now, n, period = max(now, self._log[-1][0]), self.rate.permits, self.rate.period_ns
        if at_once := min(permits, self.available(now)):
            self._enter(at_once, now)
        # Each of the others comes a period after the n-th before it, so all entries move on by whole rounds.
        rounds, permits = divmod(permits - at_once, n)
        if rounds:
            moved = [(instant + rounds * period, total) for instant, total in self._log[self._first :]]
            self._log, self._first = [(LONG_AGO, self._log[self._first - 1][1]), *moved], 1
        gone, new = self._log[-1][1] - n, list[tuple[int, int]]()  # permits that have left when the next of these comes
        for instant, total in self._log[self._first :] if permits else ():
            if (portion := min(total - gone, permits)) > 0:
                gone, permits = gone + portion, permits - portion
                new.append((instant + period, gone + n))
        self._log += new

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the number of permits. The window keeps its period: 90 per second is 5400 in a window of one minute.

        Only a rate that is not whole in that period, but whole in the period that it is written with, such as ``"1000/h"`` for a
        window of one minute, changes the period too. Grants within the new period before now still count, as far as the log goes
        back. Raises ValueError for any other rate.
        """
        self.rate = in_period(Rate.of(rate), self.rate, "SlidingWindow")

    def reset(self, now: int) -> None:
        self._log, self._first = [(now, 0)], 1

    def bound(self, window: int, largest: int = 1) -> int:
        """n for a period or less, and n more for each further period begun."""
        check_window(window, largest)
        return self.rate.permits * -(-window // self.rate.period_ns)

    def _earliest(self, permits: int, now: int, ahead: int = 0) -> int:
        # No grant before the latest one: where the clock went back, older entries are gone.
        rate, log, first = self.rate, self._log, self._first
        (at, total), n, rounds = log[-1], rate.permits, 0
        number = total + ahead + permits - n  # of the last permit that must have left the window
        if number > total:
            # It is one of those ahead, each of which comes a period after the n-th before it.
            at, rounds = max(at, now), -(-(number - total) // n)
            number -= rounds * n
        if number > log[first - 1][1]:
            place = first if log[first][1] >= number else bisect_left(log, number, first, key=_total)
            at = max(at, log[place][0] + rate.period_ns)
        return at + rounds * rate.period_ns if rounds else at


def whole_rate(rate: Rate, what: str) -> Rate:
    """The rate, if it was given as whole permits in a period, or has a period of 24 h at most; else ValueError."""
    if rate._is_whole or rate.period_ns <= _DAY_NS:
        return rate
    raise ValueError(
        f"{what}(): {rate.per_second:g} per second is not whole permits in the period written, nor in any of 24 h or less."
        " Write whole permits and their period, such as '100/min'."
    )


def in_period(rate: Rate, before: Rate, what: str) -> Rate:
    """The rate as whole permits in the period of the one before, or as written if only that is whole; else ValueError."""
    num, den = rate.permits * before.period_ns, rate.period_ns
    permits = (2 * num + den) // (2 * den)
    off = abs(num - permits * den)
    # A float may miss a whole number by its own error, and a product of floats is exact to one part in 10**14.
    if not off or (off * 10**14 <= num and not rate._is_whole):
        return Rate._exactly(permits, before.period_ns, months=before._months)
    if rate._is_whole:
        return rate
    raise ValueError(
        f"set_rate(): the {what} keeps its period, and {as_float(num, den):g} permits in it are not whole."
        f" Write whole permits and their period, such as '{before}'."
    )
