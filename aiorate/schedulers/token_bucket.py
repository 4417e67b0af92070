"""TokenBucket: a bucket of permits that fills at the rate; a request takes its permits out or waits for them.

State is one number, the theoretical arrival time. The virtual scheduling form of GCRA, ITU-T I.371, in which the level is
``burst - (tat - now) / interval``; same grants as golang.org/x/time/rate without its truncation.
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

    __slots__ = ("_initial", "_spilled", "_tat", "burst", "rate")
    refundable = True

    def __init__(self, rate: Rate | str | Number, burst: int, initial: int | None = None, *, start: int | None = None) -> None:
        check_start(start)
        check_permits("TokenBucket(burst)", burst)
        if initial is not None and initial != 0:
            check_permits("TokenBucket(initial)", initial, burst)
        elif initial is not None and type(initial) is not int:
            raise TypeError(f"TokenBucket(initial) must be an int from 0 to {burst}, not {type(initial).__name__}.")
        self.rate = Rate.of(rate)
        self.burst = burst
        """Size of the bucket in permits."""
        self._spilled = 0
        self._initial = burst if initial is None else initial
        # In ticks, of which a nanosecond has rate.permits and a permit lasts rate.period_ns: never divided.
        self._tat: int | None = None
        if start is not None:
            self._begin(start)

    @property
    def max_permits(self) -> int:
        """The size of the bucket: larger requests are refused."""
        return self.burst

    @property
    def spilled(self) -> int:
        """Nanoseconds of schedule that found the bucket full and are gone."""
        return self._spilled // self.rate.permits

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if type(permits) is not int or not 0 < permits <= self.burst or type(now) is not int or not (since is None or type(since) is int):
            check_ask("take()", permits, now, since, self.burst)
        tat = self._tat
        if tat is None:
            tat = self._begin(now)
        rate = self.rate
        at = ceil_div(tat - (self.burst - permits) * rate.period_ns, rate.permits)
        if at > now:
            return at
        if since is None or since > now:
            since = now
        if tat <= (since - 1) * rate.permits:  # as booked_from(): the bucket is full, and idle since then
            self._spilled += since * rate.permits - tat
            tat = since * rate.permits
        self._tat = tat + permits * rate.period_ns
        return at if at > since else since

    def peek(self, permits: int, now: int) -> int:
        check_ask("peek()", permits, now, most=self.burst)
        tat = self._begin(now) if self._tat is None else self._tat
        return max(now, ceil_div(tat - (self.burst - permits) * self.rate.period_ns, self.rate.permits))

    def give_back(self, permits: int, now: int) -> None:
        """Put permits back, up to the size of the bucket."""
        check_ask("give_back()", permits, now)
        if self._tat is not None:
            self._tat -= permits * self.rate.period_ns

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate; the bucket keeps its level in permits, and so does a debt."""
        tat = self._begin(now) if self._tat is None else self._tat
        missing = max(0, tat - now * self.rate.permits)
        rate = Rate.of(rate)
        self._spilled = self._spilled * rate.permits // self.rate.permits
        # Rounded up: no fraction of a permit is given.
        self._tat = now * rate.permits + ceil_div(missing * rate.period_ns, self.rate.period_ns)
        self.rate = rate

    def lag(self, now: int) -> int:
        """0: a bucket is not late because it was idle."""
        return 0

    def bound(self, window: int, largest: int = 1) -> int:
        """``burst + rate x window``."""
        check_window(window, largest)
        return self.burst + self.rate.permits_in(window)

    def _begin(self, start: int) -> int:
        self._tat = start * self.rate.permits + (self.burst - self._initial) * self.rate.period_ns
        return self._tat

    def __repr__(self) -> str:
        return f"TokenBucket({str(self.rate)!r}, burst={self.burst})"
