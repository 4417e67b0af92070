"""Strategies that let a request pay later: it takes the next free slot, and its size delays only later requests.

`Pacing` is what they share. TicksAccumulator, BurstCompensation and BurstRatio keep to a schedule. They differ in what becomes of missed
time: it is made up for at once, given up in part, or made up for at a limited rate. From the EngineBlock limiters of 2018 (average,
compensated and dynamic).

The state is one instant, at which the next request may start, and a store of permits earned while idle. A request of any size starts at
that instant. Its stored and fresh permits then move the instant on. Time is counted in ticks (`Rate._ticks`), and the store in ticks times
a constant, so only a change of the rate rounds anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorate._meter import ENDLESS, NO_LINE, Meter, PureMeter
from aiorate._rate import Rate, as_float, ceil_div, exact, ratio_of
from aiorate._schedulers.interface import Scheduler, check_ask, check_ns, check_window

if TYPE_CHECKING:
    from aiorate._rate import Number


_ONE = 1
_MOST_COUNTED = 256


class Pacing(Scheduler):
    """The next free slot, which is `_line.due`, and a store that fills while that lies in the past."""

    __slots__ = ("_cost", "_latest", "_line", "_lost", "_stored", "_unit", "rate")
    _unit: int  # the ticks of a nanosecond
    _cost: int  # what a permit takes up in the store
    _price: int = 0  # the ticks that a stored permit costs, by the `_priced` here
    _most: int = 1 << 198  # the size of the store; by default it is never full
    _latest: tuple[int, int, tuple[int, int, int, int, Any]] | None
    """Of the latest take: its instant, its permits, the state before it, and the instant that it was booked from; and the same of a take
    before it at that instant, or None. Takes that were on time share the record of the one before."""
    _starts_full: bool = False
    _makes_up: bool = False  # whether the store is a backlog: a request is as late as it is full
    _earn: int = 1  # what a tick of idle time adds to the store
    _kept: Any = NO_LINE  # of `PureMeter.numbers`

    def __init__(self, rate: Rate | str | Number, *, start: int | None = None) -> None:
        check_ns("start", 0 if start is None else start)
        self.rate = Rate.of(rate)
        self._measure()
        self._line: Meter = PureMeter() if self._kept == NO_LINE else Meter()
        self._line.numbers = self._unit, self._cost, self._kept
        Pacing.reset(self, start)  # whatever a subclass makes of it

    def reset(self, now: int | None) -> None:
        """Start over at ``now`` or, if that is None, with the first request."""
        self._latest, self._lost, self._line.cut = None, 0, 0
        self._stored = self._most if self._starts_full else 0
        self._line.due = None if now is None else now * self._unit

    def _measure(self) -> None:
        """Set what follows from the rate, from `_unit` to `_most`."""
        self._unit, self._cost = self.rate._ticks

    def _priced(self, stored: int, permits: int) -> tuple[int, int]:
        """The store after a take of that many permits, and the ticks that they cost."""
        plain, cost = permits * self._cost, permits * self._price
        if plain - stored > cost:
            cost = plain - stored
        return stored + cost - plain, cost

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if permits is not _ONE or type(now) is not int or (since is not None and type(since) is not int):
            check_ask("take()", permits, now, since)
        line, unit = self._line, self._unit
        due = self._due(now) if line.due is None else line.due
        at = -(-due // unit)  # rounded up
        if at > now:
            return at
        if line.peak >= 0:  # the takes before a grab stand
            self._latest, line.peak = None, -1
        if not self.books_since:
            since = at
        elif since is None or since > now:
            since = now
        latest, stored = self._latest, self._stored
        on_time = due > (since - 1) * unit
        if latest is not None and latest[0] != now:
            latest = None
        if latest is not None and on_time:
            self._latest = now, latest[1] + permits, latest[2]
        else:
            self._latest = now, permits, (due, stored, self._lost, since, latest)
        if on_time and not stored and self._earn == _ONE:
            line.due = due + permits * self._cost  # as _after() says, in half the time
        else:
            line.due, self._stored, self._lost = self._after(permits, due, stored, self._lost, since)
        return -((stored - due) // unit) if self._makes_up else max(at, since)

    _metered_take = take

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now)
        due, stored = self._due(now), self._stored
        if ahead:
            due, stored, _ = self._after(ahead, due, stored, 0, now)
        at = ceil_div(due, self._unit)
        return at if at > now else ceil_div(due - stored, self._unit) if self._makes_up else now

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Undo the takes at ``taken``, if they are the latest. An older slot is lost, because it has delayed later requests."""
        check_ask("give_back()", permits, now, taken)
        if self._line.peak >= 0:
            self._latest, self._line.peak = None, -1
        while permits > 0 and (latest := self._latest) is not None and latest[0] == taken:
            before, permits = latest[2], permits - latest[1]
            due, stored, lost, since, self._latest = before
            if permits < 0:
                self._latest = latest[0], -permits, before
                due, stored, lost = self._after(-permits, due, stored, lost, since)
            self._line.due, self._stored, self._lost = due, stored, lost

    def set_rate(self, rate: Rate, now: int) -> None:
        """The next slot keeps its instant, the ones after it follow at the new rate. What is stored or owed keeps its duration."""
        due, line, unit, cost = self._due(now), self._line, self._unit, self._cost
        self.rate: Rate = Rate.of(rate)
        self._measure()
        line.numbers = self._unit, self._cost, self._kept
        self._stored, line.due = self._rescaled(unit, cost), ceil_div(due * self._unit, unit)  # rounded up: no slot is earlier than before
        self._latest, self._lost, line.cut = None, (self._lost + line.cut) * self._unit // unit, 0

    def _rescaled(self, unit: int, cost: int) -> int:
        """The store, which was filled at that `_unit` and `_cost`."""
        return self._stored * self._unit // unit  # rounded down: no fraction of a permit is given

    def available(self, now: int) -> int:
        """The slots that are due by now and, where stored permits are free, those in the store."""
        due, stored, _ = self._after(0, self._due(now), self._stored, 0, now)
        behind = now * self._unit - due
        return 0 if behind < 0 else 1 + (0 if self._price else min(behind + stored, self._most) // self._cost)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """``largest + rate x window``, where no permit costs less than the interval."""
        check_window(window, largest)
        return largest + self.rate._permits_in(window)

    @property
    def _spilled(self) -> int:
        """Nanoseconds of idle time that were given up or found the store full."""
        return (self._lost + self._line.cut) // (self._unit * self._earn)

    @property
    def next_free(self) -> int | None:
        """The instant (ns, rounded up) at which the next request may start; None before the first call."""
        return None if self._line.due is None else ceil_div(self._line.due, self._unit)

    def _due(self, now: int) -> int:
        due = self._line.due
        if due is None:
            due = self._line.due = now * self._unit
        return due

    def _after(self, permits: int, due: int, stored: int, lost: int, since: int) -> tuple[int, int, int]:
        """The next slot, the store, and what found no room in it, after a request that is in line since ``since``."""
        free, most = since * self._unit, self._most
        if due > free - self._unit:  # within the instant is on time: losing a fraction of it at each grant would be drift
            free = due
        elif (stored := stored + (free - due) * self._earn) > most:
            stored, lost = most, lost + stored - most
        stored, cost = self._priced(stored, permits)
        return free + cost, stored, lost


class TicksAccumulator(Pacing):
    """Keep to a schedule, and make up for all missed time at once.

    The k-th permit is due at ``start + k / rate``, whatever happened before. Use it for load generators that must reach a mean rate, and
    not for quotas: everything that was missed follows at once, without a bound.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ()
    books_since: bool = False
    _makes_up: bool = True
    _strictness: tuple[int, int] = (0, 1)
    _kept: Any = ENDLESS

    @property
    def ticks(self) -> int | None:
        """The start of the next slot of the schedule (ns, rounded up); None before the first call."""
        return None if self._line.due is None else ceil_div(self._line.due - self._stored, self._unit)

    def restart(self, now: int) -> None:
        """Forget the backlog: no slot is due before now."""
        due = max(self._due(now), now * self._unit)
        self._latest, self._line.due, self._stored = None, due, min(self._stored, due - now * self._unit)

    def lag(self, now: int) -> int:
        return 0 if self.ticks is None else max(0, now - self.ticks)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """None: after a pause, all the permits that it held up may go at once.

        With strictness 1 ``largest + rate x window``; below that, a burst of any size may follow a long pause too.
        """
        most = super().bound(window, largest)
        return None if self._kept else most

    def _after(self, permits: int, due: int, stored: int, lost: int, since: int) -> tuple[int, int, int]:
        given_up, (num, den) = 0, self._strictness
        if due <= (since - 1) * self._unit:
            given_up = -((due - since * self._unit) * num // den)  # rounded up: the schedule never gains a fraction of a tick
        return due + given_up + permits * self._cost, 0, lost + given_up


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

    __slots__ = ("_kept", "_strictness")
    books_since: bool = True
    _shown: tuple[str, ...] = ("strictness",)

    def __init__(self, rate: Rate | str | Number, strictness: Number = 1.0, *, start: int | None = None) -> None:
        num, den = self._strictness = exact(strictness, "BurstCompensation(strictness)")
        if not 0 <= num <= den:
            raise ValueError(
                f"BurstCompensation(strictness={strictness!r}) must be from 0 (plain) to 1 (strict). For more, use BurstRatio."
            )
        self._kept = ENDLESS if not num else 0 if num == den else NO_LINE
        super().__init__(rate, start=start)

    @property
    def strictness(self) -> float:
        """The fraction of missed time that a late request gives up."""
        return as_float(*self._strictness)

    def available(self, now: int) -> int:
        """The permits that can go at once, one by one: each of them gives up its fraction of what is left. Counted up to 256."""
        if not self._strictness[0]:
            return super().available(now)
        due, count = self._due(now), 0
        while due <= now * self._unit and count < _MOST_COUNTED:
            due, count = self._after(1, due, 0, 0, now + 1)[0], count + 1  # the next may come later
        return count


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

    __slots__ = ("_price", "_ratio")
    books_since: bool = True
    _kept: Any = NO_LINE
    _shown: tuple[str, ...] = ("ratio",)

    def __init__(self, rate: Rate | str | Number, ratio: Number = 1.1, *, start: int | None = None) -> None:
        self._ratio = ratio_of(ratio, "BurstRatio(ratio")
        super().__init__(rate, start=start)

    @property
    def ratio(self) -> float:
        """The rate of catching up, as a multiple of the plain rate."""
        return as_float(*self._ratio)

    def apply(self, rate: Rate | str | Number, burst_ratio: Number, now: int) -> None:
        """Change rate and ratio. The next slot keeps its instant."""
        rate, self._ratio = Rate.of(rate), ratio_of(burst_ratio, "BurstRatio(ratio")
        self.set_rate(rate, now)

    def bound(self, window: int, largest: int = 1) -> int | None:
        check_window(window, largest)
        return largest + window * self._unit // self._price

    def _measure(self) -> None:
        (unit, cost), (num, den) = self.rate._ticks, self._ratio
        self._unit, self._cost, self._price = unit * num, cost * num, cost * den

    def _rescaled(self, unit: int, cost: int) -> int:
        due = self._due(0)  # it has begun
        # The slot of the schedule is rounded up, and so is the next free one: neither is sooner.
        return ceil_div(due * self._unit, unit) - ceil_div((due - self._stored) * self._unit, unit)

    _after = Pacing._after  # the delay is stored
