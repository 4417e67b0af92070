"""TokenBucket: a bucket of permits that fills at the rate. A request takes its permits out or waits for them.

The state is one number, the instant at which the bucket is empty. The level at a later instant is ``(instant - empty) / interval``.
The virtual scheduling form of GCRA, ITU-T I.371, whose theoretical arrival time is that instant plus ``burst x interval``.
It makes the same grants as golang.org/x/time/rate without the truncation there.
Knows nothing of clocks, loops or waiters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.rate import Rate, ceil_div
from aiorate.schedulers.interface import check_ask, check_give_back, check_optional, check_permits, check_window, wrong_arguments
from aiorate.schedulers.peaks import Peaks
from aiorate.schedulers.undo import Undoing

if TYPE_CHECKING:
    from typing import Never

    from aiorate.rate import Number

__all__ = ["TokenBucket"]

_ONE = 1
_NEVER = 1 << 200


class TokenBucket(Undoing):
    """Pay now: up to ``burst`` permits at once, then one per interval.

    ``burst`` and ``initial`` are whole numbers of permits. The bucket starts with ``initial``, by default full. Any window holds at
    most ``burst + rate x window``: a full bucket and the permits that flow in. If ``burst`` is a period's worth of permits, that is
    nearly twice the rate in the first period. A request for more than ``burst`` can never be granted.
    """

    __slots__ = ("_brim", "_calm_until", "_cost", "_empty", "_initial", "_peaks", "_spilled", "_unit", "burst", "max_permits")
    burst: int
    """Size of the bucket in permits."""
    _brim: int
    _calm_until: int

    def __init__(
        self, rate: Rate | str | Number, burst: int, initial: int | None = None, *, start: int | None = None, **unknown: Never
    ) -> None:
        if unknown:
            raise wrong_arguments("TokenBucket", rate, (), unknown)
        check_optional("start", start)
        check_permits("TokenBucket(burst)", burst)
        if initial is not None:
            if isinstance(initial, bool) or not isinstance(initial, int):
                raise TypeError(f"TokenBucket(initial) must be an int from 0 to {burst}, the burst, not {type(initial).__name__}.")
            if not 0 <= initial <= burst:
                raise ValueError(f"TokenBucket(initial={initial}) must be from 0 to {burst}, the burst.")
        self.burst = burst
        self.max_permits: int | None = burst
        self.receipts = True
        self._peaks = Peaks()
        self._spilled = 0
        self._initial = burst if initial is None else initial
        self._measure(Rate.of(rate))
        self._empty: int | None = None
        if start is not None:
            self._begin(start)

    @property
    def spilled(self) -> int:
        """Nanoseconds of schedule that found the bucket full while a request stood in line, and are lost."""
        return self._spilled // self.rate.permits

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if permits is _ONE and since is None and type(now) is int and now < self._calm_until and not self.receipts:
            # Not full yet, and no record to keep: one addition, in half the time of the code below.
            after = self._empty + self._cost  # type: ignore[operator]  # only once it has begun
            if after <= now * self._unit:
                self._empty = after
                return now
        if type(now) is not int or type(permits) is not int or not 0 < permits <= self.burst or not (since is None or type(since) is int):
            check_ask("take()", permits, now, since, self.burst)
        empty = self._empty
        if empty is None:
            empty = self._begin(now)
        unit = self._unit
        after = empty + permits * self._cost
        ticks = now * unit
        if after > ticks:
            return -(-after // unit)  # rounded up
        if since is None or since >= now:
            at = now
        else:
            at = -(-after // unit)
            if at < since:
                at = since
            ticks = since * unit
        found = ticks - empty  # the level when the request joined the line
        begun, spilled = empty, self._spilled
        if found >= self._brim:  # the bucket was full, and the permits since then are lost
            gone = found - self._brim + unit
            found = self._brim
            begun += gone
            after += gone
            if ticks != now * unit:
                self._spilled += gone
        self._empty = after
        if self.receipts:
            peaks = self._peaks
            if now != peaks.at or found > peaks.level:
                peaks.note(now, found)
            latest = self._latest
            # A record: the instant of emptiness and the loss before the take, and that instant without its permits.
            if latest is None or latest[0] != now:
                self._latest = (now, empty, spilled, begun, permits)
            elif begun == empty == latest[3] + latest[4] * self._cost:
                self._latest = (now, latest[1], latest[2], latest[3], latest[4] + permits)  # in a third of the time of a slice
            else:
                self.note_take((now, empty, spilled, begun, permits), joins=False)
        else:
            self._calm_until = (after + self._brim) // unit
        return at

    def peek(self, permits: int, now: int) -> int:
        check_ask("peek()", permits, now, most=self.burst)
        empty = self._begin(now) if self._empty is None else self._empty
        return max(now, ceil_div(empty + permits * self._cost, self._unit))

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Put permits back as far as there is room; by receipt, as far as there was room for them at every take since."""
        check_give_back(permits, now, taken)
        if self._empty is None:
            return
        self._calm_until = -_NEVER
        if taken is None:
            level = now * self._unit - self._empty
            # The level is cut off a whole ns above full (see _measure), so a credit may reach that far too.
            credit = min(permits * self._cost, self._brim - 1 - level)
            if credit > 0:
                self._empty -= credit
                self._peaks.note(now, level + credit)
            return
        permits = self.undo_takes(permits, taken)
        if permits:
            credit = permits * self._cost
            peak = self._peaks.since(taken)
            if peak is not None and peak + credit >= self._brim:
                # With the credit, that take would have found a full bucket. It may have found one already, or up to a ns more than full.
                credit = 0 if peak >= self._brim else self._brim - self._unit - peak
            self._empty -= credit
            self._peaks.raise_since(taken, credit)

    def stands(self, record: tuple[int, ...]) -> bool:
        return self._empty == record[3] + record[4] * self._cost

    def undo(self, record: tuple[int, ...], kept: int) -> None:
        _, empty, spilled, begun, _ = record
        if kept:
            self._empty = begun + kept * self._cost
        else:
            self._empty, self._spilled = empty, spilled

    def charge(self, permits: int, now: int) -> None:
        """Take any number of permits out at once. The level may fall below zero."""
        check_permits("charge()", permits)
        empty = self._begin(now) if self._empty is None else self._empty
        level = now * self._unit - empty
        if level >= self._brim:
            level = self.burst * self._cost
            empty = now * self._unit - level
        self._peaks.note(now, level)
        self._empty = empty + permits * self._cost

    def stock(self, now: int) -> int:
        """The permits in the bucket."""
        return 0 if self._empty is None else max(0, min((now * self._unit - self._empty) // self._cost, self.burst))

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate. The bucket keeps its level in permits, and so does a debt."""
        rate = Rate.of(rate)
        empty = self._begin(now) if self._empty is None else self._empty
        missing = max(0, empty + self.burst * self._cost - now * self._unit)
        self._spilled = self._spilled * rate.permits // self._unit
        self._peaks.scale(rate.period_ns, self._cost)
        # Rounded up: this gives no fraction of a permit.
        missing = ceil_div(missing * rate.period_ns, self._cost)
        self._measure(rate)
        self._empty = now * self._unit + missing - self.burst * self._cost

    def reset(self, now: int) -> None:
        """Hold ``initial`` permits again."""
        self._spilled = 0
        self._peaks.clear()
        self._begin(now)

    def lag(self, now: int) -> int:
        """0: an idle bucket is not behind schedule."""
        return 0

    def bound(self, window: int, largest: int = 1) -> int:
        """``burst + rate x window``: a full bucket and the permits that flow in."""
        check_window(window, largest)
        return self.burst + self.rate.permits_in(window)

    def _measure(self, rate: Rate) -> None:
        # In ticks: a nanosecond has rate.permits of them and a permit lasts rate.period_ns, so nothing is ever divided.
        self.rate = rate
        self._unit = rate.permits
        self._cost = rate.period_ns
        self.forget_takes()
        self._calm_until = -_NEVER  # an instant before which the bucket is not full
        # The level is cut off a whole nanosecond above full. Less lies within the instant, and cutting it off would be drift.
        self._brim = self.burst * rate.period_ns + rate.permits

    def _begin(self, start: int) -> int:
        self._calm_until = -_NEVER
        self.forget_takes()
        self._empty = start * self._unit - self._initial * self._cost
        return self._empty

    def __repr__(self) -> str:
        return f"TokenBucket({str(self.rate)!r}, burst={self.burst})"
