"""Window: what SlidingWindow and CalendarWindow share.

Neither strategy paces: it grants all the permits that the window has left at once. Both count whole permits in the period that the
rate was given with, so 100 per 60 s is not 5 per 3 s. Knows nothing of clocks, loops or waiters.
"""

from __future__ import annotations

from abc import abstractmethod

from aiorate._rate import NS_PER_SECOND, Rate, as_float
from aiorate._schedulers.interface import Scheduler, check_ask

__all__ = ["Window", "in_period", "rate_per", "whole_rate"]

_DAY_NS = 86_400 * NS_PER_SECOND
_FLOATS = 10**14  # a product of floats is exact to one part in this


class Window(Scheduler):
    """A number of permits per window. Requests are not paced, so a late one is not booked earlier."""

    __slots__ = ("_last", "rate")
    rate: Rate
    _last: int | None  # no grant before it
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

    def lag(self, now: int) -> int:
        """0: a window has no schedule."""
        return 0


def whole_rate(rate: Rate, what: str) -> Rate:
    """The rate, if it was given as whole permits in a period or has a period of 24 h at most. ValueError if not."""
    if rate.is_whole or rate.period_ns <= _DAY_NS:
        return rate
    raise ValueError(
        f"{what}(): {rate.per_second:g} per second is not whole permits in the period written, nor in any of 24 h or less."
        " Write whole permits and their period, such as '100/min'."
    )


def in_period(rate: Rate, before: Rate, what: str) -> Rate:
    """The rate as whole permits in the period of the one before, or as written if only that is whole. ValueError if neither is."""
    period = before.period_ns
    kept = rate_per(rate, period)
    if kept:
        return before.with_permits(kept.permits)
    if rate.is_whole:
        return rate
    permits = rate.permits * period
    written = [repr(str(before.with_permits(n))) for n in (permits // rate.period_ns, permits // rate.period_ns + 1) if n]
    raise ValueError(
        f"set_rate(): the {what} keeps its period, and {as_float(permits, rate.period_ns):g} permits in it are not whole."
        f" Write {' or '.join(written)}."
    )


def rate_per(rate: Rate, period: int) -> Rate | None:
    """The rate with another period, if its permits are whole in it; None if not. A float may miss a whole number by its own error."""
    permits, rest = divmod(rate.permits * period, rate.period_ns)
    if rest and not rate.is_whole:
        if 2 * rest > rate.period_ns:
            permits, rest = permits + 1, rest - rate.period_ns
        if abs(rest) * _FLOATS <= rate.permits * period:
            rest = 0
    return None if rest else Rate.exactly(permits, period)
