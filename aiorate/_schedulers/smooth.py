"""Strategies that store unused time and let a request pay later: BurstRatio, SmoothBursty, SmoothWarmingUp.

The state is one instant, `next_free`, at which the next request may start, and a store of permits earned while idle. A request of
any size starts at `next_free`. Its stored and fresh permits then move `next_free` on, which delays only later requests. The
strategies differ in the price of a stored permit: nothing, more than a fresh one, or a fraction of it. Knows nothing of clocks, loops
or waiters.

From Guava's SmoothBursty and SmoothWarmingUp, from the stored-permits limiter that caps the store in permits, and from the dynamic
limiter of EngineBlock. The store is a whole number of ticks times a constant, so it is exact.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND, Rate, as_float, ceil_div, exact, exact_seconds, ns_to_seconds, ratio_of
from aiorate._schedulers.interface import check_ask, check_optional, check_permits, check_window
from aiorate._schedulers.metered import Undoing

if TYPE_CHECKING:
    from aiorate._rate import Duration, Number

__all__ = ["BurstRatio", "SmoothBursty", "SmoothWarmingUp"]

_ONE = 1


class _Smooth(Undoing):
    """What they share: `next_free`, and a store that fills while `next_free` lies in the past."""

    __slots__ = ("_cost", "_most", "_next", "_price", "_spilled", "_stored", "_unit")
    rate: Rate
    _next: int | None  # `next_free`, in ticks
    _unit: int  # the ticks of a nanosecond
    _cost: int  # what a permit takes up in the store
    _price: int  # the ticks that a stored permit costs, by the `_priced` here
    _most: int | None  # the size of the store; None: no end
    _starts_full: bool = False
    _makes_up: bool = False  # whether what is stored is a backlog: a request is as late as the store is full
    _earn: int = 1  # what a tick of idle time adds to the store

    def _setup(self, rate: Rate, start: int | None) -> None:
        check_optional("start", start)
        self._receipts = True
        self.rate, (self._unit, self._cost, self._price, self._most) = rate, self._numbers(rate)
        self._start(start)

    def _start(self, start: int | None) -> None:
        self.forget_takes()
        self._spilled = 0
        self._stored = self._most or 0 if self._starts_full else 0
        self._next = None if start is None else start * self._unit

    @abstractmethod
    def _numbers(self, rate: Rate) -> tuple[int, int, int, int | None]:
        """`_unit`, `_cost`, `_price` and `_most` at that rate."""

    def _priced(self, stored: int, permits: int) -> tuple[int, int]:
        """The store after a take of that many permits, and the ticks that they cost."""
        plain, cost = permits * self._cost, permits * self._price
        if plain - stored > cost:
            cost = plain - stored
        return stored + cost - plain, cost

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if permits is not _ONE or type(now) is not int or (since is not None and type(since) is not int):
            check_ask("take()", permits, now, since)
        due, unit, stored, spilled = self._next, self._unit, self._stored, self._spilled
        if due is None:
            due = self._due(now)
        at = -(-due // unit)  # rounded up
        if at > now:
            return at
        since = now if since is None or since > now else since
        # A record: the state before it, and the instant that it was booked from.
        if self._latest is None or self._latest[0] != now:
            self._latest = (now, due, stored, spilled, since, permits)
        else:
            self.note_take((now, due, stored, spilled, since, permits), joins=due > (since - 1) * unit)
        self._next, self._stored, self._spilled = self._after(permits, due, stored, spilled, since)
        return -((stored - due) // unit) if self._makes_up else max(at, since)

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now)
        due, stored = self._due(now), self._stored
        if ahead:
            due, stored, _ = self._after(ahead, due, stored, 0, now)
        at = -(-due // self._unit)
        return at if at > now else ceil_div(due - stored, self._unit) if self._makes_up else now

    def undo(self, record: tuple[int, ...], kept: int) -> None:
        _, due, stored, spilled, since, _ = record
        if kept:
            due, stored, spilled = self._after(kept, due, stored, spilled, since)
        self._next, self._stored, self._spilled = due, stored, spilled

    def charge(self, permits: int, now: int) -> None:
        """Take permits from the store, and the rest on credit: later requests wait for it."""
        check_permits("charge()", permits)
        self.forget_takes()
        self._next, self._stored, self._spilled = self._after(permits, self._due(now), self._stored, self._spilled, now)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate. A debt keeps its duration, and the store its fraction."""
        rate = Rate.of(rate)
        self._next, self._stored, _ = self._filled(self._due(now), self._stored, now)
        self._measure(rate)

    def _measure(self, rate: Rate) -> None:
        """Count by the numbers of that rate. What is stored or owed keeps its duration."""
        unit, cost, price, most = self._numbers(rate)
        due = None if self._next is None else ceil_div(self._next * unit, self._unit)
        stored, spilled = self._rescaled(unit, cost), self._spilled * unit // self._unit
        self.forget_takes()
        self._next, self._stored, self._spilled = due, stored, spilled  # without a call in between: a signal handler may raise there
        self.rate, self._unit, self._cost, self._price, self._most = rate, unit, cost, price, most

    def _rescaled(self, unit: int, cost: int) -> int:
        """The store, at another `_unit` and `_cost`."""
        return self._stored * unit // self._unit  # rounded down: no fraction of a permit is given

    def reset(self, now: int) -> None:
        """Owe nothing, with the store of a new scheduler."""
        self._start(now)

    def lag(self, now: int) -> int:
        """0: unused time is stored or lost, and never makes a backlog."""
        return 0

    @property
    def spilled(self) -> int:
        """Nanoseconds of idle time that found the store full and are lost."""
        return self._spilled // (self._unit * self._earn)

    @property
    def next_free(self) -> int | None:
        """The instant (ns, rounded up) at which the next request may start; None before the first call."""
        return None if self._next is None else ceil_div(self._next, self._unit)

    def _due(self, now: int) -> int:
        if self._next is None:
            self._next = now * self._unit
        return self._next

    def _filled(self, due: int, stored: int, since: int) -> tuple[int, int, int]:
        """next_free and the store after the idle time up to ``since``, and what found no room, in the store's unit."""
        idle = since * self._unit
        if due > idle - self._unit:  # within the instant is on time: a fraction of it lost at every grant would be drift
            return due, stored, 0
        stored += (idle - due) * self._earn
        most = self._most
        return (idle, stored, 0) if most is None or stored <= most else (idle, most, stored - most)

    def _after(self, permits: int, due: int, stored: int, spilled: int, since: int) -> tuple[int, int, int]:
        """next_free, the store and what was lost, after a request for that many permits that has stood in line since ``since``."""
        free, stored, gone = self._filled(due, stored, since)
        stored, cost = self._priced(stored, permits)
        return free + cost, stored, spilled + gone


class BurstRatio(_Smooth):
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
    _makes_up: bool = True

    def __init__(self, rate: Rate | str | Number, ratio: Number = 1.1, *, start: int | None = None) -> None:
        self._ratio = ratio_of(ratio, "BurstRatio(ratio")
        self._setup(Rate.of(rate), start)

    @property
    def ratio(self) -> float:
        """The rate of catching up, as a multiple of the plain rate."""
        return as_float(*self._ratio)

    @property
    def ticks(self) -> int | None:
        """The start of the next slot of the schedule (ns, rounded up); None before the first call."""
        return None if self._next is None else ceil_div(self._next - self._stored, self._unit)

    def set_rate(self, rate: Rate, now: int) -> None:
        """The next slot keeps its instant, the ones after it follow at the new rate."""
        rate = Rate.of(rate)
        self._due(now)
        self._measure(rate)

    def apply(self, rate: Rate | str | Number, burst_ratio: Number, now: int | None = None) -> None:
        """Change rate and ratio. The next slot keeps its instant."""
        rate, ratio = Rate.of(rate), ratio_of(burst_ratio, "BurstRatio(ratio")
        if now is not None:
            self._due(now)
        self._ratio = ratio
        self._measure(rate)

    def restart(self, now: int) -> None:
        """Forget the backlog: no slot is due before now."""
        self.forget_takes()
        due = max(self._due(now), now * self._unit)
        self._next, self._stored = due, min(self._stored, due - now * self._unit)

    def lag(self, now: int) -> int:
        return 0 if self.ticks is None else max(0, now - self.ticks)

    def bound(self, window: int, largest: int = 1) -> int | None:
        check_window(window, largest)
        return largest + window * self._unit // self._price

    def _numbers(self, rate: Rate) -> tuple[int, int, int, int | None]:
        (unit, cost), (num, den) = rate.ticks, self._ratio
        return unit * num, cost * num, cost * den, None

    def _rescaled(self, unit: int, cost: int) -> int:
        if self._next is None:
            return 0
        # The slot of the schedule is rounded up, and so is `next_free`: neither is sooner.
        return ceil_div(self._next * unit, self._unit) - ceil_div((self._next - self._stored) * unit, self._unit)

    def __repr__(self) -> str:
        # The next slot as a clock reading in seconds, once there is one.
        next_at = "" if self.ticks is None else f", next_at={round(ns_to_seconds(self.ticks), 6)}"
        return f"BurstRatio({str(self.rate)!r}, ratio={self.ratio:g}{next_at})"


class SmoothBursty(_Smooth):
    """Save up unused permits and let them go at once, like Guava's SmoothBursty.

    The store is empty at first. A request pays later: one of any size starts at once if nothing is owed, and the next one waits for it. So
    after a long quiet spell, one permit more than the store holds can pass at one instant.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        max_burst: How much time fills the store, in seconds or as a timedelta. 1 s by default.
        max_stored: How many permits the store holds, in place of ``max_burst``.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_in_permits", "_size")

    def __init__(
        self,
        rate: Rate | str | Number,
        max_burst: Duration | None = None,
        max_stored: Number | None = None,
        *,
        start: int | None = None,
    ) -> None:
        if max_stored is None:
            self._size = exact_seconds(1 if max_burst is None else max_burst, "SmoothBursty(max_burst)")
        elif max_burst is None:
            self._size = exact(max_stored, "SmoothBursty(max_stored)")
        else:
            raise ValueError("SmoothBursty() takes max_burst (seconds) or max_stored (permits), not both.")
        self._in_permits = max_stored is not None
        if self._size[0] < 0:
            raise ValueError("SmoothBursty(max_burst, max_stored) must be 0 or more; 0 stores nothing.")
        self._setup(Rate.of(rate), start)

    @property
    def stored(self) -> float:
        """Permits in the store after the latest call."""
        return as_float(self._stored, self._cost)

    def bound(self, window: int, largest: int = 1) -> int:
        """``store + rate x window + largest``: a full store, the permits that flow in, and one request on credit."""
        check_window(window, largest)
        return ((self._most or 0) + window * self._unit) // self._cost + largest

    def available(self, now: int) -> int:
        """The whole permits in the store, and one on credit; 0 while one is owed."""
        due = self._due(now)
        return 0 if due > now * self._unit else self._filled(due, self._stored, now)[1] // self._cost + 1

    def _numbers(self, rate: Rate) -> tuple[int, int, int, int | None]:
        num, den = self._size
        full = rate.period_ns if self._in_permits else NS_PER_SECOND * rate.permits
        return rate.permits, rate.period_ns, 0, num * full // den

    def _rescaled(self, unit: int, cost: int) -> int:
        return self._stored * cost // self._cost if self._in_permits else super()._rescaled(unit, cost)

    def __repr__(self) -> str:
        return f"SmoothBursty({str(self.rate)!r}, stored={self.stored:g})"


class SmoothWarmingUp(_Smooth):
    """Start slowly and warm up to the rate, like Guava's SmoothWarmingUp.

    For servers that must fill caches or pools before they can bear the full rate. It starts cold, and cools down again while idle.

    The price of a stored permit depends on the level x of the store (interval I, cold interval c I)::

          c I |            /          The store holds max permits when cold. Taking k of them costs the
              |          /            area under the line from the level down to level - k: from max to
            I |--------/              threshold exactly the warm-up time. Permits above the store cost I.
              |        |      |
              0    threshold  max     threshold = warmup / 2I,  max = threshold + 2 warmup / (I + cI)

    A cost is the difference of the areas up to two levels, each rounded once, so splitting a request does not change the total.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        warmup: How long it takes from cold to warm under load, in seconds or as a timedelta.
        cold_factor: The cold interval divided by the warm one, 1 or more.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_cold_factor", "_earn", "_warmup")
    _starts_full: bool = True

    def __init__(self, rate: Rate | str | Number, warmup: Duration, cold_factor: Number = 3.0, *, start: int | None = None) -> None:
        num, den = exact_seconds(warmup, "SmoothWarmingUp(warmup)")
        if num <= 0:
            raise ValueError(f"SmoothWarmingUp(warmup={warmup!r}) must be more than 0 seconds. For no warm-up, use SmoothBursty.")
        # Rounded up to a whole nanosecond: never to 0, which would stop all throttling.
        self._warmup = ceil_div(num * NS_PER_SECOND, den)
        cold, warm = self._cold_factor = exact(cold_factor, "SmoothWarmingUp(cold_factor)")
        if cold < warm:
            raise ValueError(f"SmoothWarmingUp(cold_factor={cold_factor!r}) must be 1 or more: cold is slower than warm.")
        # max permits = warmup / I x (5 + c) / (2 (1 + c)). In the unit of the store, a permit is period_ns x 2 (cold + warm) and
        # a tick of idle time earns (5 warm + cold), all whole numbers.
        self._earn = 5 * warm + cold
        self._setup(Rate.of(rate), start)

    @property
    def stored(self) -> float:
        """Permits in the store after the latest call. A full store is cold."""
        return as_float(self._stored, self._cost)

    def bound(self, window: int, largest: int = 1) -> int:
        """``largest + rate x window``, because no permit costs less than the interval."""
        check_window(window, largest)
        return largest + self.rate.permits_in(window)

    def _numbers(self, rate: Rate) -> tuple[int, int, int, int | None]:
        return rate.permits, rate.period_ns * 2 * sum(self._cold_factor), 0, self._warmup * rate.permits * self._earn

    def _priced(self, stored: int, permits: int) -> tuple[int, int]:
        left = stored - permits * self._cost
        return max(left, 0), self._area(stored) - self._area(left)

    def _area(self, level: int) -> int:
        """The ticks that all permits up to the level cost. Below 0 nothing is stored, and the price is the interval."""
        cold, warm = self._cold_factor
        warmup = self._warmup * self._unit
        above = max(level - warmup * (cold + warm), 0)
        # level / (2 (cold + warm)) for the rectangle; above^2 slope / 2 for the triangle, slope = (cI - I) / (max - threshold).
        scale = 8 * warm * warm * warmup
        return ceil_div(level * scale + above * above * (cold - warm), scale * 2 * (cold + warm))

    def _rescaled(self, unit: int, cost: int) -> int:
        return ceil_div(self._stored * unit, self._unit)  # rounded up: a fuller store is colder, so this gives no credit

    def __repr__(self) -> str:
        return f"SmoothWarmingUp({str(self.rate)!r}, warmup={ns_to_seconds(self._warmup):g}, stored={self.stored:g})"
