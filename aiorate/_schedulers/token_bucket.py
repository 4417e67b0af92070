"""TokenBucket: a bucket of permits that fills at the rate. A request takes its permits out or waits for them.

The state is one number, the instant at which the bucket holds one permit, its next. A level L at a later instant means that it was
``L - 1`` intervals ago. The virtual scheduling form of GCRA, ITU-T I.371, whose theoretical arrival time is that instant plus
``(burst - 1) x interval``.
It makes the same grants as golang.org/x/time/rate without the truncation there.
Knows nothing of clocks, loops or waiters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._meter import Meter
from aiorate._rate import Rate, ceil_div
from aiorate._schedulers.interface import check_ask, check_give_back, check_optional, check_permits, check_window
from aiorate._schedulers.metered import Metered
from aiorate._schedulers.peaks import NO_PEAKS

if TYPE_CHECKING:
    from aiorate._rate import Number

__all__ = ["TokenBucket"]


class TokenBucket(Metered):
    """Allow bursts of up to ``burst``, then a steady rate.

    A bucket that holds permits and refills at the rate. A request takes its permits out, or waits for them. Any window holds at most
    ``burst + rate x window``; if the bucket holds a whole period's permits, that is nearly twice the rate in the first period.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        burst: How many permits the bucket holds. A request for more can never be granted.
        initial: How many permits are in it at first. Full by default.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_brim", "_cost", "_initial", "_peaks", "_spilled", "_unit", "burst", "max_permits")
    rate: Rate
    burst: int
    """Size of the bucket in permits."""
    _brim: int

    def __init__(self, rate: Rate | str | Number, burst: int, initial: int | None = None, *, start: int | None = None) -> None:
        check_optional("start", start)
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
        self._peaks = NO_PEAKS
        self._spilled = 0
        self._initial = burst if initial is None else initial
        self._measure(Rate.of(rate), None)
        if start is not None:
            self._begin(start)

    @property
    def spilled(self) -> int:
        """Nanoseconds of schedule that found the bucket full while a request stood in line, and are lost."""
        return self._spilled // self._unit

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if type(now) is not int or type(permits) is not int or not 0 < permits <= self.burst or not (since is None or type(since) is int):
            check_ask("take()", permits, now, since, self.burst)
        line, unit, cost = self.line, self._unit, self._cost
        due = line.due
        if due is None:
            due = self._begin(now)
        last = due if permits == 1 else due + (permits - 1) * cost  # when the last of them is due
        ticks = now * unit
        if last > ticks:
            return -(-last // unit)  # rounded up
        if since is None and not self._receipts and line.last is None and ticks - due + cost < self._brim:  # not full, and no records
            line.due = last + cost
            return now
        if line.last is not None:
            self.collect()
        if since is None or since >= now:
            at = now
        else:
            at = -(-last // unit)
            if at < since:
                at = since
            ticks = since * unit
        found = ticks - due + cost  # the level when the request joined the line
        begun, spilled = due, self._spilled
        if found >= self._brim:  # the bucket was full, and the permits since then are lost
            gone = found - self._brim + unit
            found = self._brim
            begun += gone
            if ticks != now * unit:
                self._spilled += gone
        line.due = begun + permits * cost
        if self._receipts:
            peaks = self._peaks
            if now != peaks.at or found > peaks.level:
                self._peaks = peaks.note(now, found)
            latest = self._latest
            # A record: the next permit and the loss before the take, and the first that was taken.
            if latest is None or latest[0] != now:
                self._latest = (now, due, begun, spilled, permits)
            elif begun == due == latest[2] + latest[4] * cost:
                self._latest = (now, latest[1], latest[2], latest[3], latest[4] + permits)  # in a third of the time of a slice
            else:
                self.note_take((now, due, begun, spilled, permits), joins=False)
        return at

    metered_take = take

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now, most=self.burst)
        due = self._due(now)
        if ahead:
            found = now * self._unit - due + self._cost
            if found >= self._brim:  # what does not fit is lost when the first of them is taken
                due += found - self._brim + self._unit
            due += ahead * self._cost
        return max(now, ceil_div(due + (permits - 1) * self._cost, self._unit))

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Put permits back as far as there is room; by receipt, as far as there was room for them at every take since."""
        check_give_back(permits, now, taken)
        line = self.line
        if line.due is None:
            return
        if taken is None:
            self.collect()
            level = now * self._unit - line.due + self._cost
            # The level is cut off a whole ns above full (see _measure), so a credit may reach that far too.
            credit = min(permits * self._cost, self._brim - 1 - level)
            if credit > 0:
                line.due -= credit
                self._peaks = self._peaks.note(now, level + credit)
            return
        permits = self.undo_takes(permits, taken)
        if permits:
            credit = permits * self._cost
            peak = self._peaks.since(taken)
            if peak is not None and peak + credit >= self._brim:
                # With the credit, that take would have found a full bucket. It may have found one already, or up to a ns more than full.
                credit = 0 if peak >= self._brim else self._brim - self._unit - peak
            line.due -= credit
            self._peaks.raise_since(taken, credit)

    def heed(self, last: int, cut: int, peak: int) -> None:
        if self._receipts:
            self._peaks = self._peaks.note(last, self._brim if cut else min(peak + self._cost, self._brim))

    def stands(self, record: tuple[int, ...]) -> bool:
        return self.line.due == record[2] + record[4] * self._cost

    def undo(self, record: tuple[int, ...], kept: int) -> None:
        _, due, begun, spilled, _ = record
        if kept:
            self.line.due = begun + kept * self._cost
        else:
            self.line.due, self._spilled = due, spilled

    def charge(self, permits: int, now: int) -> None:
        """Take any number of permits out at once. The level may fall below zero."""
        check_permits("charge()", permits)
        self.collect()
        due = self._due(now)
        level = now * self._unit - due + self._cost
        if level >= self._brim:
            level = self.burst * self._cost
            due = now * self._unit - level + self._cost
        self._peaks = self._peaks.note(now, level)
        self.line.due = due + permits * self._cost

    def available(self, now: int) -> int:
        """The permits in the bucket."""
        return max(0, min((now * self._unit - self._due(now)) // self._cost + 1, self.burst))

    def _standings(self, now: int) -> list[tuple[int, int]]:
        due = self.line.due
        if due is None:
            return super()._standings(now)
        ticks, unit, cost = now * self._unit, self._unit, self._cost
        if due > ticks:
            return [(0, -(-due // unit))]
        left = (ticks - due) // cost + 1
        return [(self.burst, now) if left >= self.burst else (left, -(-(due + left * cost) // unit))]

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate. The bucket keeps its level in permits, and so does a debt."""
        rate = Rate.of(rate)
        self.collect()
        missing = max(0, self._due(now) + (self.burst - 1) * self._cost - now * self._unit)
        unit, cost = rate.ticks
        self._spilled = self._spilled * unit // self._unit
        self._peaks.scale(cost, self._cost)
        # Rounded up: this gives no fraction of a permit.
        missing = ceil_div(missing * cost, self._cost)
        self._measure(rate, now * unit + missing - (self.burst - 1) * cost)

    def reset(self, now: int) -> None:
        """Hold ``initial`` permits again."""
        self.collect()
        self._spilled = 0
        self._peaks = NO_PEAKS
        self._begin(now)

    def lag(self, now: int) -> int:
        """0: an idle bucket is not behind schedule."""
        return 0

    def bound(self, window: int, largest: int = 1) -> int:
        """``burst + rate x window``: a full bucket and the permits that flow in."""
        check_window(window, largest)
        return self.burst + self.rate.permits_in(window)

    def _measure(self, rate: Rate, due: int | None) -> None:
        self.forget_takes()
        plan, (unit, cost) = rate._plans.get(self.burst), rate.ticks
        if plan is None:
            kept = (self.burst - 1) * cost
            # The level is cut off a whole nanosecond above full. Less lies within the instant, and cutting it off would be drift.
            plan = rate._keep_plan(self.burst, (kept + cost + unit, (unit, cost, kept + unit - 1, kept)))
        line = self.line  # all in one step: a signal handler may raise after a call
        self.rate, self._unit, self._cost, (self._brim, line.numbers), line.due = rate, unit, cost, plan, due

    def _due(self, now: int) -> int:
        return self._begin(now) if self.line.due is None else self.line.due

    def _begin(self, start: int) -> int:
        self.forget_takes()
        due = self.line.due = start * self._unit - (self._initial - 1) * self._cost
        return due

    def __repr__(self) -> str:
        return f"TokenBucket({str(self.rate)!r}, burst={self.burst})"
