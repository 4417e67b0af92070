"""Strategies that keep to a schedule: TicksAccumulator, BurstCompensation, BurstRatio.

They differ in what becomes of time that was missed: it is made up for at once, given up in part, or made up for at a limited rate.
From the EngineBlock limiters of 2018 (average, compensated and dynamic).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._meter import ENDLESS, NO_LINE
from aiorate._rate import Rate, as_float, ceil_div, exact, ns_to_seconds, ratio_of
from aiorate._schedulers.interface import check_window
from aiorate._schedulers.pacing import Pacing

if TYPE_CHECKING:
    from aiorate._rate import Number
    from aiorate._schedulers.pacing import Numbers


class TicksAccumulator(Pacing):
    """Keep to a schedule, and make up for all missed time at once.

    The k-th permit is due at ``start + k / rate``, whatever happened before. Use it for load generators that must reach a mean rate, and
    not for quotas: everything that was missed follows at once, without a bound.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ()
    rate: Rate
    books_since: bool = False
    _makes_up: bool = True
    _strictness: tuple[int, int] = (0, 1)

    def __init__(self, rate: Rate | str | Number, *, start: int | None = None) -> None:
        self._setup(rate, start)

    @property
    def ticks(self) -> int | None:
        """The start of the next slot of the schedule (ns, rounded up); None before the first call."""
        return None if self._line.due is None else ceil_div(self._line.due - self._stored, self._unit)

    def restart(self, now: int) -> None:
        """Forget the backlog: no slot is due before now."""
        self._collect()
        due = max(self._due(now), now * self._unit)
        self._latest, self._line.due, self._stored = None, due, min(self._stored, due - now * self._unit)

    def lag(self, now: int) -> int:
        return 0 if self.ticks is None else max(0, now - self.ticks)

    def _parameters(self) -> str:
        return ""

    def __repr__(self) -> str:
        # The next slot as a clock reading in seconds, once there is one.
        next_at = "" if self.ticks is None else f", next_at={round(ns_to_seconds(self.ticks), 6)}"
        return f"{type(self).__name__}({str(self.rate)!r}{self._parameters()}{next_at})"

    def bound(self, window: int, largest: int = 1) -> int | None:
        """None: after a pause, all the permits that it held up may go at once."""
        check_window(window, largest)
        return None

    def _numbers(self, rate: Rate) -> Numbers:
        (unit, cost), (num, den) = rate._ticks, self._strictness
        # As in _after(): a slot that is due within the instant is on time.
        return unit, cost, 0, None, (unit, cost, unit - 1 if num else ENDLESS, 0) if num in (0, den) else NO_LINE

    def _after(self, permits: int, due: int, stored: int, spilled: int, since: int) -> tuple[int, int, int]:
        unit, given_up = self._unit, 0
        if due <= (since - 1) * unit:  # within the instant is on time: a fraction of it lost at every grant would be drift
            num, den = self._strictness
            given_up = -((due - since * unit) * num // den)  # rounded up: the schedule never gains a fraction of a tick
        return due + given_up + permits * self._cost, 0, spilled + given_up


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
    rate: Rate
    books_since: bool = True

    def __init__(self, rate: Rate | str | Number, strictness: Number = 1.0, *, start: int | None = None) -> None:
        num, den = self._strictness = exact(strictness, "BurstCompensation(strictness)")
        if not 0 <= num <= den:
            raise ValueError(
                f"BurstCompensation(strictness={strictness!r}) must be from 0 (plain) to 1 (strict). For more, use BurstRatio."
            )
        super().__init__(rate, start=start)

    @property
    def strictness(self) -> float:
        """The fraction of missed time that a late request gives up."""
        return as_float(*self._strictness)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """With strictness 1 ``largest + rate x window``. Otherwise None: a burst of any size may follow a long pause."""
        check_window(window, largest)
        num, den = self._strictness
        return largest + self.rate._permits_in(window) if num == den else None

    def _parameters(self) -> str:
        return f", strictness={self.strictness:g}"


class BurstRatio(TicksAccumulator):
    """Keep to a schedule, and catch up at ``ratio`` times the rate after a delay.

    The schedule is at the plain rate, and no request starts ahead of it. A delay is stored, and a stored permit costs ``1 / ratio`` of an
    interval, so permits are never closer than ``1 / (ratio x rate)``. A delay of G is made up for within ``G / (ratio - 1)``. This is the
    dynamic limiter of EngineBlock, without its grace operations, which let requests start early.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        ratio: How many times the rate to catch up at, 1 or more.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_ratio",)
    rate: Rate
    books_since: bool = True

    def __init__(self, rate: Rate | str | Number, ratio: Number = 1.1, *, start: int | None = None) -> None:
        self._ratio = ratio_of(ratio, "BurstRatio(ratio")
        super().__init__(rate, start=start)

    @property
    def ratio(self) -> float:
        """The rate of catching up, as a multiple of the plain rate."""
        return as_float(*self._ratio)

    def apply(self, rate: Rate | str | Number, burst_ratio: Number, now: int | None = None) -> None:
        """Change rate and ratio. The next slot keeps its instant."""
        rate, self._ratio = Rate.of(rate), ratio_of(burst_ratio, "BurstRatio(ratio")
        self._measure(rate, now)

    def bound(self, window: int, largest: int = 1) -> int | None:
        check_window(window, largest)
        return largest + window * self._unit // self._price

    def _numbers(self, rate: Rate) -> Numbers:
        (unit, cost), (num, den) = rate._ticks, self._ratio
        return unit * num, cost * num, cost * den, None, NO_LINE

    def _rescaled(self, unit: int, cost: int) -> int:
        due = self._line.due
        if due is None:
            return 0
        # The slot of the schedule is rounded up, and so is the next free one: neither is sooner.
        return ceil_div(due * unit, self._unit) - ceil_div((due - self._stored) * unit, self._unit)

    _after = Pacing._after  # the delay is stored

    def _parameters(self) -> str:
        return f", ratio={self.ratio:g}"
