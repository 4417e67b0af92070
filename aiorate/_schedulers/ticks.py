"""Strategies that pace by a ticks accumulator: TicksAccumulator, BurstCompensation.

The ticks accumulator is the start of the next free slot. A request takes that slot and moves the accumulator on by its own
length, so its size delays only later requests (it pays later). Time is counted in ticks, of which a nanosecond and a permit have
whole numbers (`Rate.ticks`), so nothing is ever divided or rounded.

Only the slots of the latest instant can be given back, as with compare-and-swap. An older slot is lost, because it has delayed later
requests already.

Knows nothing of clocks, loops or waiters. From the EngineBlock limiters of 2018 (average and compensated).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._meter import ENDLESS, NO_LINE, Meter
from aiorate._rate import Rate, as_float, ceil_div, exact, ns_to_seconds
from aiorate._schedulers.interface import check_ask, check_optional, check_permits, check_window
from aiorate._schedulers.metered import Metered

if TYPE_CHECKING:
    from aiorate._rate import Number

__all__ = ["BurstCompensation", "TicksAccumulator"]

_ONE = 1
_COUNTED = 1000


class TicksAccumulator(Metered):
    """Keep to a schedule, and make up for all missed time at once.

    The k-th permit is due at ``start + k / rate``, whatever happened before. Use it for load generators that must reach a mean rate, and
    not for quotas: everything that was missed follows at once, without a bound.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_cost", "_given_up", "_unit")
    rate: Rate
    books_since: bool = False
    _unit: int  # the ticks of a nanosecond
    _cost: int  # and of a permit
    _strictness: tuple[int, int] = (0, 1)

    def __init__(self, rate: Rate | str | Number, *, start: int | None = None) -> None:
        check_optional("start", start)
        self.line: Meter = Meter()
        self._receipts = True
        self._given_up = 0  # ticks of schedule
        self.forget_takes()
        self._measure(Rate.of(rate), None)
        if start is not None:
            self._due(start)

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
            slot = self._due(now)
        at = -(-slot // self._unit)  # rounded up
        if at <= now:
            if line.last is not None:
                self.collect()
            base = slot
            if self.books_since:
                base = self._booked_from(slot, now if since is None or since > now else since)
                self._given_up += base - slot
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
            slot = (self._booked_from(slot, now) if self.books_since else slot) + ahead * self._cost
        return ceil_div(slot, self._unit)

    def undo(self, record: tuple[int, ...], kept: int) -> None:
        _, slot, base, _ = record
        if kept:
            self.line.due = base + kept * self._cost
        else:
            self.line.due = slot
            self._given_up -= base - slot

    def charge(self, permits: int, now: int) -> None:
        """Take slots for that many permits, the first of them not before now. Later requests wait for them."""
        check_permits("charge()", permits)
        slot = self._due(now)
        self.collect()
        self.forget_takes()
        base = self._booked_from(slot, now)
        self.line.due = base + permits * self._cost
        self._given_up += base - slot

    def set_rate(self, rate: Rate, now: int) -> None:
        """The next slot keeps its instant, the ones after it follow at the new rate."""
        rate = Rate.of(rate)
        slot = self._due(now)
        self.collect()
        self.forget_takes()
        unit = rate.ticks[0]
        self._given_up = self._given_up * unit // self._unit
        self._measure(rate, ceil_div(slot * unit, self._unit))  # rounded up: no slot comes earlier than before

    def restart(self, now: int) -> None:
        """Forget the backlog: no slot is due before now."""
        self.collect()
        self.forget_takes()
        self.line.due = max(self._due(now), now * self._unit)

    def reset(self, now: int) -> None:
        """Have the next slot begin now."""
        self.collect()
        self.forget_takes()
        self._given_up, self.line.due = 0, now * self._unit

    def lag(self, now: int) -> int:
        return 0 if self.ticks is None else max(0, now - self.ticks)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """None: after a pause, all the permits that it held up may go at once."""
        check_window(window, largest)
        return None

    def available(self, now: int) -> int:
        """The slots that are due by now."""
        behind = now * self._unit - self._due(now)
        return 0 if behind < 0 else behind // self._cost + 1

    def heed(self, last: int, cut: int, peak: int) -> None:
        self._given_up += cut

    def _measure(self, rate: Rate, due: int | None) -> None:
        """Count in the ticks of that rate, in which the next slot is due then."""
        (unit, cost), (num, den) = rate.ticks, self._strictness
        line = self.line
        # As in _booked_from(): a slot that is due within the instant is on time.
        numbers = (unit, cost, unit - 1 if num else ENDLESS, 0) if num in (0, den) else NO_LINE
        # All in one step: a signal handler may raise after a call.
        line.numbers, line.due, self.rate, self._unit, self._cost = numbers, due, rate, unit, cost

    def _due(self, now: int) -> int:
        due = self.line.due
        if due is None:
            due = self.line.due = now * self._unit
        return due

    def _booked_from(self, slot: int, since: int) -> int:
        """The beginning of a slot for a request in line since ``since``: later than due, if the request came late."""
        if slot > (since - 1) * self._unit:  # within the instant is on time: a fraction of it lost at every grant would be drift
            return slot
        num, den = self._strictness
        return slot - (slot - since * self._unit) * num // den  # rounded up: the schedule never gains a fraction of a tick

    def _parameters(self) -> str:
        return ""

    def __repr__(self) -> str:
        # The next slot as a clock reading in seconds, once there is one.
        next_at = "" if self.ticks is None else f", next_at={round(ns_to_seconds(self.ticks), 6)}"
        return f"{type(self).__name__}({str(self.rate)!r}{self._parameters()}{next_at})"


class BurstCompensation(TicksAccumulator):
    """Keep to a schedule, and give up a fraction of the time that was missed.

    A late request, whose slot was due before it came, moves the schedule: ``next = due + strictness x (since - due) + cost``. With
    strictness 1 no two permits are ever closer than the interval. With 0 nothing is given up.

    Unlike in the EngineBlock limiter that it is from, strictness is any number from 0 to 1, and every late request counts.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        strictness: The fraction of missed time to give up, from 0 to 1.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_strictness",)
    books_since: bool = True

    def __init__(self, rate: Rate | str | Number, strictness: Number = 1.0, *, start: int | None = None) -> None:
        num, den = self._strictness = exact(strictness, "BurstCompensation(strictness)")
        if not 0 <= num <= den:
            faster = (
                f" To catch up at {strictness} times the rate, write BurstRatio({str(rate)!r}, ratio={strictness})." if num > den else ""
            )
            raise ValueError(f"BurstCompensation(strictness={strictness!r}) must be from 0 (plain) to 1 (strict).{faster}")
        super().__init__(rate, start=start)

    @property
    def strictness(self) -> float:
        """The fraction of missed time that a late request gives up."""
        return as_float(*self._strictness)

    @property
    def spilled(self) -> int:
        """Nanoseconds of schedule given up."""
        self.collect()
        return self._given_up // self._unit

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
            gap = behind if behind >= unit else 0  # within the instant, as in _booked_from()
            behind -= -(-gap * num // den) + cost
            ready += 1
        return ready

    def _parameters(self) -> str:
        return f", strictness={self.strictness:g}"
