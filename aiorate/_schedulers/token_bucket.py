"""TokenBucket: a bucket of permits that fills at the rate. A request takes its permits out or waits for them.

The state is one number, the instant at which the bucket holds one permit, its next. A level L at a later instant means that it was
``L - 1`` intervals ago. The virtual scheduling form of GCRA, ITU-T I.371, whose theoretical arrival time is that instant plus
``(burst - 1) x interval``.
It makes the same grants as golang.org/x/time/rate without the truncation there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from aiorate._meter import Meter
from aiorate._rate import Rate, ceil_div
from aiorate._schedulers.interface import check_ask, check_ns, check_permits, check_window
from aiorate._schedulers.metered import Stored

if TYPE_CHECKING:
    from aiorate._rate import Number


class TokenBucket(Stored):
    """Allow bursts of up to ``burst``, then a steady rate.

    A bucket that holds permits and refills at the rate. A request takes its permits out, or waits for them. Any window holds at most
    ``burst + rate x window``; if the bucket holds a whole period's permits, that is nearly twice the rate in the first period.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        burst: How many permits the bucket holds. A request for more can never be granted.
        initial: How many permits are in it at first. Full by default.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_initial", "_spilled", "burst", "max_permits")
    rate: Rate
    burst: int
    """Size of the bucket in permits."""
    _plan: tuple[int, int, int]
    """The ticks of a nanosecond, those of a permit, and the level at which it is cut off."""

    def __init__(self, rate: Rate | str | Number, burst: int, initial: int | None = None, *, start: int | None = None) -> None:
        check_ns("start", start, optional=True)
        check_permits("TokenBucket(burst)", burst)
        if initial is not None:
            if isinstance(initial, bool) or not isinstance(initial, int):
                raise TypeError(f"TokenBucket(initial) must be an int from 0 to {burst}, the burst, not {type(initial).__name__}.")
            if not 0 <= initial <= burst:
                raise ValueError(f"TokenBucket(initial={initial}) must be from 0 to {burst}, the burst.")
        self.line: Meter = Meter()
        self.burst = burst
        self.max_permits: int | None = burst
        self._receipts = True
        self._peaks = None
        self._spilled = 0
        self._initial = burst if initial is None else initial
        self._measure(rate if type(rate) is str else Rate.of(rate), None)
        if start is not None:
            self._begin(start)

    @property
    def spilled(self) -> int:
        """Nanoseconds of schedule that found the bucket full while a request stood in line, and are lost."""
        return self._spilled // self._plan[0]

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if type(now) is not int or type(permits) is not int or not 0 < permits <= self.burst or not (since is None or type(since) is int):
            check_ask("take()", permits, now, since, self.burst)
        line, (unit, cost, brim) = self.line, self._plan
        due = line.due
        if due is None:
            due = self._begin(now)
        last, ticks = due + (permits - 1) * cost, now * unit  # when the last of them is due
        if last > ticks:
            return -(-last // unit)  # rounded up
        at, begun = now, due
        if since is not None and since < now:
            at = max(-(-last // unit), since)
            ticks = since * unit
        found = ticks - due + cost  # the level when the request joined the line
        if found >= brim:  # the bucket was full, and the permits since then are lost
            found, begun = brim, ticks + cost + unit - brim
        if self._receipts:
            self.note_take(permits, now, found, due, self._spilled)
        if at < now:
            self._spilled += begun - due
        line.due = begun + permits * cost
        return at

    metered_take = take

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now, most=self.burst)
        due, (unit, cost, brim) = self._due(now), self._plan
        if ahead:
            if now * unit - due + cost >= brim:  # what does not fit is lost when the first of them is taken
                due = now * unit + cost + unit - brim
            due += ahead * cost
        return max(now, ceil_div(due + (permits - 1) * cost, unit))

    def restore(self, before: tuple[Any, ...]) -> None:
        self.line.due, self._spilled = before

    def credit(self, permits: int, now: int, taken: int | None) -> None:
        due, (unit, cost, brim) = self.line.due, self._plan
        if due is None:
            return
        credit = permits * cost
        if taken is not None:
            # With the credit, a later take would have found a full bucket. It may have found one already, or up to a ns more than full.
            self.line.due = due - self.credit_since(taken, credit, brim - unit)
            return
        level = now * unit - due + cost
        # The level is cut off a whole ns above full (see _plan_of), so a credit may reach that far too.
        credit = min(credit, brim - 1 - level)
        if credit > 0:
            self.line.due = due - credit
            self.note_level(now, level + credit)

    def heed(self, last: int, cut: int, peak: int) -> None:
        _, cost, brim = self._plan
        self.note_level(last, brim if cut else min(peak + cost, brim))

    def charge(self, permits: int, now: int) -> None:
        """Take any number of permits out at once. The level may fall below zero."""
        check_permits("charge()", permits)
        self.collect()
        due, (unit, cost, brim) = self._due(now), self._plan
        level = now * unit - due + cost
        if level >= brim:
            level = self.burst * cost
            due = now * unit - level + cost
        self.note_level(now, level)
        self._latest, self.line.due = None, due + permits * cost

    def available(self, now: int) -> int:
        """The permits in the bucket."""
        unit, cost, _ = self._plan
        return max(0, min((now * unit - self._due(now)) // cost + 1, self.burst))

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate. The bucket keeps its level in permits, and so does a debt."""
        rate = Rate.of(rate)
        self.collect()
        (old_unit, old_cost, _), (unit, cost) = self._plan, rate.ticks
        missing = max(0, self._due(now) + (self.burst - 1) * old_cost - now * old_unit)
        self._spilled = self._spilled * unit // old_unit
        self.scale_levels(cost, old_cost)
        # Rounded up: this gives no fraction of a permit.
        missing = ceil_div(missing * cost, old_cost)
        self._measure(rate, now * unit + missing - (self.burst - 1) * cost)

    def reset(self, now: int) -> None:
        """Hold ``initial`` permits again."""
        self.collect()
        self._spilled = 0
        self._peaks = None
        self._begin(now)

    def lag(self, now: int) -> int:
        """0: an idle bucket is not behind schedule."""
        return 0

    def bound(self, window: int, largest: int = 1) -> int:
        """``burst + rate x window``: a full bucket and the permits that flow in."""
        check_window(window, largest)
        return self.burst + self.rate.permits_in(window)

    def _measure(self, rate: Rate | str, due: int | None) -> None:
        line, plan = self.line, _plan_of(rate, self.burst)
        # All in one step: a signal handler may raise after a call.
        self._latest, (self.rate, self._plan, line.numbers), line.due = None, plan, due

    def _due(self, now: int) -> int:
        return self._begin(now) if self.line.due is None else self.line.due

    def _begin(self, start: int) -> int:
        unit, cost, _ = self._plan
        self._latest, due = None, start * unit - (self._initial - 1) * cost
        self.line.due = due
        return due

    def __repr__(self) -> str:
        return f"TokenBucket({str(self.rate)!r}, burst={self.burst})"


@lru_cache(256)
def _plan_of(rate: Rate | str, burst: int) -> tuple[Rate, tuple[int, int, int], tuple[int, int, float, int]]:
    """The rate, what follows from it, and the numbers of the meter: once for all buckets with these parameters."""
    rate = Rate.of(rate)
    unit, cost = rate.ticks
    kept = (burst - 1) * cost
    # The level is cut off a whole nanosecond above full. Less lies within the instant, and cutting it off would be drift.
    return rate, (unit, cost, kept + cost + unit), (unit, cost, kept + unit - 1, kept)
