"""Strategies that pace by a ticks accumulator: TicksAccumulator, BurstCompensation, BurstRatio.

The ticks accumulator is the start of the next free slot. A request takes that slot and moves the accumulator on by its own
length, so its size delays only later requests (it pays later). Time is counted in ticks, of which a nanosecond and a permit have
whole numbers (`Rate.ticks`), so nothing is ever divided or rounded.

The three strategies treat unused time in different ways. Only the slots of the latest instant can be given back, as with
compare-and-swap. An older slot is lost, because it has delayed later requests already.

Knows nothing of clocks, loops or waiters. From the EngineBlock limiters of 2018 (average, compensated and dynamic).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._meter import ENDLESS, NO_LINE, Meter
from aiorate._rate import Rate, as_float, ceil_div, exact, ns_to_seconds, ratio_of
from aiorate._schedulers.interface import booked_from, check_ask, check_optional, check_permits, check_window
from aiorate._schedulers.metered import Metered

if TYPE_CHECKING:
    from aiorate._rate import Number

__all__ = ["BurstCompensation", "BurstRatio", "TicksAccumulator"]

_ONE = 1
_COUNTED = 1000


class _Accumulator(Metered):
    """One integer, the accumulator. The subclass defines, by `_base`, where the slot of a late request begins."""

    __slots__ = ("_cost", "_unit")
    rate: Rate
    _receipts: bool
    _unit: int
    """The ticks of a nanosecond."""
    _cost: int
    """The ticks of a permit."""

    def __init__(self, rate: Rate | str | Number, *, start: int | None = None) -> None:
        self._setup(Rate.of(rate), start)

    def _setup(self, rate: Rate, start: int | None) -> None:
        check_optional("start", start)
        self.line: Meter = Meter()
        self.rate, self._receipts = rate, True
        self._unit, self._cost = self._ticks(rate)
        self.line.numbers = self._numbers(rate)
        self.forget_takes()
        if start is not None:
            self._begin(start)

    @property
    def ticks(self) -> int | None:
        """The accumulator: the instant (ns, rounded up) of the next free slot; None before the first call."""
        return None if self.line.due is None else ceil_div(self.line.due, self._unit)

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if permits is not _ONE or type(now) is not int or (since is not None and type(since) is not int):
            check_ask("take()", permits, now, since)
        line = self.line
        slot = line.due
        if slot is None:
            slot = self._begin(now)
        at = -(-slot // self._unit)  # rounded up
        if at <= now:
            if line.last is not None:
                self.collect()
            base = self._base(slot, now if since is None or since > now else since)
            # A record: the accumulator before it, and the beginning of its slot.
            if self._latest is None or self._latest[0] != now:
                self._latest = (now, slot, base, permits)
            else:
                self.note_take((now, slot, base, permits), joins=base == slot)
            line.due = base + permits * self._cost
        return at

    metered_take = take

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now)
        slot = self._due(now)
        if ahead:
            slot += self._given_up(slot, now) + ahead * self._cost
        return ceil_div(slot, self._unit)

    def undo(self, record: tuple[int, ...], kept: int) -> None:
        _, slot, base, _ = record
        if kept:
            self.line.due = base + kept * self._cost
        else:
            self.line.due = slot
            self._regain(base - slot)

    def charge(self, permits: int, now: int) -> None:
        """Take slots for that many permits, the first of them not before now. Later requests wait for them."""
        check_permits("charge()", permits)
        slot = self._due(now)
        self.collect()
        self.forget_takes()
        self._spend(permits, slot, now)

    def set_rate(self, rate: Rate, now: int) -> None:
        """The next slot keeps its instant, the ones after it follow at the new rate."""
        rate = Rate.of(rate)
        slot = self._due(now)
        self.collect()
        self.forget_takes()
        line, numbers = self.line, self._numbers(rate)
        unit, cost = self._ticks(rate)
        due = ceil_div(slot * unit, self._unit)  # rounded up: no slot comes earlier than before
        # All in one step: a signal handler may raise after a call.
        line.numbers, line.due, self.rate, self._unit, self._cost = numbers, due, rate, unit, cost

    def restart(self, now: int) -> None:
        """Forget the backlog: no slot is due before now."""
        self.collect()
        self.forget_takes()
        self.line.due = max(self._due(now), now * self._unit)

    def reset(self, now: int) -> None:
        """Have the next slot begin now."""
        self.collect()
        self._begin(now)
        self.forget_takes()

    def lag(self, now: int) -> int:
        return 0 if self.ticks is None else max(0, now - self.ticks)

    def _numbers(self, rate: Rate) -> tuple[int, int, float, int]:
        """The line's numbers at that rate."""
        return *self._ticks(rate), ENDLESS, 0

    def _ticks(self, rate: Rate) -> tuple[int, int]:
        """The ticks of a nanosecond and of a permit."""
        return rate.ticks

    def _begin(self, now: int) -> int:
        due = self.line.due = now * self._unit
        return due

    def _due(self, now: int) -> int:
        return self._begin(now) if self.line.due is None else self.line.due

    def _spend(self, permits: int, slot: int, since: int) -> None:
        self.line.due = self._base(slot, since) + permits * self._cost

    def _base(self, slot: int, since: int) -> int:
        """The beginning of a slot for a request in line since ``since``."""
        return slot

    def _given_up(self, slot: int, since: int) -> int:
        """The ticks by which `_base` moves the slot."""
        return 0

    def _regain(self, ticks: int) -> None:
        """Undo the loss of ``ticks``, because their slot was given back."""

    def _parameters(self) -> str:
        return ""

    def __repr__(self) -> str:
        # The next slot as a clock reading in seconds, once there is one.
        next_at = "" if self.ticks is None else f", next_at={round(ns_to_seconds(self.ticks), 6)}"
        return f"{type(self).__name__}({str(self.rate)!r}{self._parameters()}{next_at})"


class TicksAccumulator(_Accumulator):
    """Keep to a schedule, and make up for all missed time at once.

    The k-th permit is due at ``start + k / rate``, whatever happened before. Use it for load generators that must reach a mean rate, and
    not for quotas: everything that was missed follows at once, without a bound.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ()
    books_since: bool = False

    def bound(self, window: int, largest: int = 1) -> int | None:
        """None: after a pause, all the permits that it held up may go at once."""
        check_window(window, largest)
        return None

    def available(self, now: int) -> int:
        """The slots that are due by now."""
        behind = now * self._unit - self._due(now)
        return 0 if behind < 0 else behind // self._cost + 1


class BurstCompensation(_Accumulator):
    """Keep to a schedule, and give up a fraction of the time that was missed.

    A late request, whose slot was due before it came, moves the schedule: ``next = due + strictness x (since - due) + cost``. With
    strictness 1 no two permits are ever closer than the interval. With 0 nothing is given up.

    Unlike in the EngineBlock limiter that it is from, strictness is any number from 0 to 1, and every late request counts.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        strictness: The fraction of missed time to give up, from 0 to 1.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_spilled", "_strictness")

    def __init__(self, rate: Rate | str | Number, strictness: Number = 1.0, *, start: int | None = None) -> None:
        num, den = self._strictness = exact(strictness, "BurstCompensation(strictness)")
        if not 0 <= num <= den:
            faster = (
                f" To catch up at {strictness} times the rate, write BurstRatio({str(rate)!r}, ratio={strictness})." if num > den else ""
            )
            raise ValueError(f"BurstCompensation(strictness={strictness!r}) must be from 0 (plain) to 1 (strict).{faster}")
        self._spilled = 0
        super().__init__(rate, start=start)

    @property
    def strictness(self) -> float:
        """The fraction of missed time that a late request gives up."""
        return as_float(*self._strictness)

    @property
    def spilled(self) -> int:
        """Nanoseconds of schedule given up."""
        self.collect()
        return self._spilled // self._unit

    def bound(self, window: int, largest: int = 1) -> int | None:
        """With strictness 1 ``largest + rate x window``. Otherwise None: a burst of any size may follow a long pause."""
        check_window(window, largest)
        num, den = self._strictness
        return largest + self.rate.permits_in(window) if num == den else None

    def available(self, now: int) -> int:
        """The slots that are due by now, at most 1000. Each gives up its part of the gap that is left."""
        num, den = self._strictness
        unit, cost = self._unit, self._cost
        behind, ready = 0 if self.line.due is None else now * unit - self.line.due, 0
        while behind >= 0 and ready < _COUNTED:
            gap = behind if behind >= unit else 0  # within the instant, as in booked_from()
            behind -= -(-gap * num // den) + cost
            ready += 1
        return ready

    def set_rate(self, rate: Rate, now: int) -> None:
        """The next slot keeps its instant, the ones after it follow at the new rate."""
        self.collect()
        self._spilled = self._spilled * Rate.of(rate).ticks[0] // self._unit
        super().set_rate(rate, now)

    def reset(self, now: int) -> None:
        """Have the next slot begin now."""
        super().reset(now)
        self._spilled = 0

    def heed(self, last: int, cut: int, peak: int) -> None:
        self._spilled += cut

    def _numbers(self, rate: Rate) -> tuple[int, int, float, int]:
        num, den = self._strictness
        # As booked_from(): a slot that is due within the instant is on time.
        unit, cost = rate.ticks
        return (unit, cost, unit - 1 if num else ENDLESS, 0) if num in (0, den) else NO_LINE

    def _base(self, slot: int, since: int) -> int:
        closed = self._given_up(slot, since)
        self._spilled += closed
        return slot + closed

    def _given_up(self, slot: int, since: int) -> int:
        num, den = self._strictness
        # Rounded up: the schedule never gains a fraction of a tick.
        return -(-(booked_from(slot, since, self._unit) - slot) * num // den)

    def _regain(self, ticks: int) -> None:
        self._spilled -= ticks

    def _parameters(self) -> str:
        return f", strictness={self.strictness:g}"


class BurstRatio(_Accumulator):
    """Keep to a schedule, and catch up at ``ratio`` times the rate after a delay.

    There are two schedules: the ideal one, at the plain rate, and the paced one, which keeps permits ``1 / (ratio x rate)`` apart. A
    request starts at the later of the two, so never ahead of the ideal one. A delay of G is made up for within ``G / (ratio - 1)``. This
    is the dynamic limiter of EngineBlock, without its grace operations, which let requests start early.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        ratio: How many times the rate to catch up at, 1 or more.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_paced", "_ratio")
    rate: Rate

    def __init__(self, rate: Rate | str | Number, ratio: Number = 1.1, *, start: int | None = None) -> None:
        self._ratio = ratio_of(ratio, "BurstRatio(ratio")
        rate = Rate.of(rate)
        self._paced: int = 0
        self._setup(rate, start)  # the line is the ideal schedule

    @property
    def ratio(self) -> float:
        """The rate of catching up, as a multiple of the plain rate."""
        return as_float(*self._ratio)

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if permits is not _ONE or type(now) is not int or (since is not None and type(since) is not int):
            check_ask("take()", permits, now, since)
        ideal = self._due(now)
        start = max(ideal, self._paced)
        at = -(-start // self._unit)  # rounded up
        if at > now:
            return at
        base = booked_from(start, now if since is None else min(since, now), self._unit)
        # A record: both schedules before it, and the beginning of its slot.
        if self._latest is None or self._latest[0] != now:
            self._latest = (now, ideal, self._paced, base, permits)
        else:
            self.note_take((now, ideal, self._paced, base, permits), joins=base == self._paced)
        self._move(ideal, base, permits)
        return -(-ideal // self._unit)

    def _ticks(self, rate: Rate) -> tuple[int, int]:
        # Both schedules count in ticks. A ns has the ratio's numerator times as many, so both intervals are whole.
        unit, cost = rate.ticks
        return unit * self._ratio[0], cost

    def _numbers(self, rate: Rate) -> tuple[int, int, float, int]:
        return NO_LINE

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now)
        ideal, paced = self._due(now), self._paced
        if ahead:
            num, den = self._ratio
            paced = booked_from(max(ideal, paced), now, self._unit) + ahead * self._cost * den
            ideal += ahead * self._cost * num
        at = ceil_div(max(ideal, paced), self._unit)
        return at if at > now else ceil_div(ideal, self._unit)

    def undo(self, record: tuple[int, ...], kept: int) -> None:
        _, ideal, paced, base, _ = record
        self.line.due, self._paced = ideal, paced
        if kept:
            self._move(ideal, base, kept)

    def set_rate(self, rate: Rate, now: int) -> None:
        """The next slot of each schedule keeps its instant, the ones after it follow at the new rate."""
        self._change(Rate.of(rate), self._ratio, now)

    def apply(self, rate: Rate | str | Number, burst_ratio: Number, now: int | None = None) -> None:
        """Change rate and ratio. The next slot of each schedule keeps its instant."""
        self._change(Rate.of(rate), ratio_of(burst_ratio, "BurstRatio(ratio"), now)

    def bound(self, window: int, largest: int = 1) -> int | None:
        check_window(window, largest)
        num, den = self._ratio
        return largest + window * self.rate.permits * num // (self.rate.period_ns * den)

    def _begin(self, now: int) -> int:
        self.line.due = self._paced = now * self._unit
        return self._paced

    def _spend(self, permits: int, slot: int, since: int) -> None:
        self._move(slot, booked_from(max(slot, self._paced), since, self._unit), permits)

    def _move(self, ideal: int, base: int, permits: int) -> None:
        num, den = self._ratio
        self.line.due = ideal + permits * self._cost * num
        self._paced = base + permits * self._cost * den

    def _change(self, rate: Rate, ratio: tuple[int, int], now: int | None) -> None:
        if now is not None:
            self._due(now)
        (unit, cost), ideal, paced = rate.ticks, self.line.due, self._paced
        unit *= ratio[0]
        if ideal is not None:
            ideal, paced = ceil_div(ideal * unit, self._unit), ceil_div(paced * unit, self._unit)
        self.forget_takes()
        line = self.line  # all in one step: a signal handler may raise after a call
        line.due, self._paced, self.rate, self._ratio, self._unit, self._cost = ideal, paced, rate, ratio, unit, cost  # pyright: ignore[reportIncompatibleMethodOverride]

    def _parameters(self) -> str:
        return f", ratio={self.ratio:g}"
