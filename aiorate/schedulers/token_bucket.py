"""TokenBucket: a bucket of permits that fills at the rate; a request takes its permits out or waits for them.

State is one number, the instant at which the bucket is empty; its level at a later one is ``(instant - empty) / interval``. The virtual
scheduling form of GCRA, ITU-T I.371, whose theoretical arrival time is that instant plus ``burst x interval``.
Same grants as golang.org/x/time/rate without its truncation.
Knows nothing of clocks, loops or who waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.rate import Rate, ceil_div
from aiorate.schedulers.interface import check_ask, check_permits, check_start, check_window

if TYPE_CHECKING:
    from aiorate.rate import Number

__all__ = ["TokenBucket"]


class TokenBucket:
    """Pay now: up to ``burst`` permits at once, then one per interval. Starts with ``initial`` (default: full).

    ``burst`` and ``initial`` are permits, whole numbers. In any window there are at most ``burst + rate x window``: a
    full bucket and what flows in, so nearly twice the rate in the first period if ``burst`` is a period's worth.
    A request for more than ``burst`` can never be granted.
    """

    __slots__ = ("_brim", "_cost", "_empty", "_initial", "_spilled", "_unit", "burst", "rate")
    refundable = True

    def __init__(self, rate: Rate | str | Number, burst: int, initial: int | None = None, *, start: int | None = None) -> None:
        check_start(start)
        check_permits("TokenBucket(burst)", burst)
        if initial is not None and initial != 0:
            check_permits("TokenBucket(initial)", initial, burst)
        elif initial is not None and type(initial) is not int:
            raise TypeError(f"TokenBucket(initial) must be an int from 0 to {burst}, not {type(initial).__name__}.")
        self.burst = burst
        """Size of the bucket in permits."""
        self._spilled = 0
        self._initial = burst if initial is None else initial
        self._measure(Rate.of(rate))
        self._empty: int | None = None
        if start is not None:
            self._begin(start)

    @property
    def max_permits(self) -> int:
        """The size of the bucket: larger requests are refused."""
        return self.burst

    @property
    def batch(self) -> int:
        """How many permits may be handed out without asking for each: 200 us worth, half the bucket, or 256."""
        return min(self.rate.permits_in(200_000), self.burst // 2, 256)

    @property
    def spilled(self) -> int:
        """Nanoseconds of schedule that found the bucket full while somebody stood in line, and are gone."""
        return self._spilled // self.rate.permits

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if type(permits) is not int or not 0 < permits <= self.burst or type(now) is not int or not (since is None or type(since) is int):
            check_ask("take()", permits, now, since, self.burst)
        return self.book(permits, now, since)

    def book(self, permits: int, now: int, since: int | None = None) -> int:
        """`take`, for a caller that has checked the arguments."""
        empty = self._empty
        if empty is None:
            empty = self._begin(now)
        unit = self._unit
        ticks = now * unit
        after = empty + permits * self._cost
        if after > ticks:
            return -(-after // unit)  # rounded up
        if since is None or since >= now:
            if ticks - empty >= self._brim:  # the bucket is full, and what came since then is gone
                after += ticks - empty - self._brim + unit
            self._empty = after
            return now
        at = -(-after // unit)
        level = ticks - empty
        if level >= self._brim:
            level -= (now - since) * unit
            if level >= self._brim:
                after += level - self._brim + unit
                self._spilled += level - self._brim + unit
        self._empty = after
        return at if at > since else since

    def peek(self, permits: int, now: int) -> int:
        check_ask("peek()", permits, now, most=self.burst)
        empty = self._begin(now) if self._empty is None else self._empty
        return max(now, ceil_div(empty + permits * self._cost, self._unit))

    def give_back(self, permits: int, now: int) -> None:
        """Put permits back, up to the size of the bucket."""
        check_ask("give_back()", permits, now)
        if self._empty is not None:
            self._empty -= permits * self._cost

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate; the bucket keeps its level in permits, and so does a debt."""
        rate = Rate.of(rate)
        empty = self._begin(now) if self._empty is None else self._empty
        missing = max(0, empty + self.burst * self._cost - now * self._unit)
        self._spilled = self._spilled * rate.permits // self._unit
        # Rounded up: no fraction of a permit is given.
        missing = ceil_div(missing * rate.period_ns, self._cost)
        self._measure(rate)
        self._empty = now * self._unit + missing - self.burst * self._cost

    def lag(self, now: int) -> int:
        """0: a bucket is not late because it was idle."""
        return 0

    def bound(self, window: int, largest: int = 1) -> int:
        """``burst + rate x window``."""
        check_window(window, largest)
        return self.burst + self.rate.permits_in(window)

    def _measure(self, rate: Rate) -> None:
        # In ticks, of which a nanosecond has rate.permits and a permit lasts rate.period_ns: never divided.
        self.rate = rate
        self._unit = rate.permits
        self._cost = rate.period_ns
        # Idle for a whole nanosecond beyond full: less is within the instant, and would be drift if it were cut off.
        self._brim = self.burst * rate.period_ns + rate.permits

    def _begin(self, start: int) -> int:
        self._empty = start * self._unit - self._initial * self._cost
        return self._empty

    def __repr__(self) -> str:
        return f"TokenBucket({str(self.rate)!r}, burst={self.burst})"
