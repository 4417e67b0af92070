"""Strategies that store unused permits and let a request pay later: SmoothBursty, SmoothWarmingUp.

The state is one instant, `next_free`, at which the next request may start, and a store of permits earned while idle. A request of
any size starts at `next_free`. Its stored and fresh permits then move `next_free` on, which delays only later requests. The two
strategies differ in the price of a stored permit. Knows nothing of clocks, loops or waiters.

From Guava's SmoothBursty and SmoothWarmingUp, and from the stored-permits limiter that caps the store in permits. The store is a
whole number of ticks (a nanosecond has ``rate.permits``, a permit lasts ``rate.period_ns``) times a constant, so it is exact.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND, Rate, as_float, ceil_div, exact, exact_seconds, ns_to_seconds
from aiorate._schedulers.interface import booked_from, check_ask, check_optional, check_permits, check_window
from aiorate._schedulers.undo import Undoing

if TYPE_CHECKING:
    from aiorate._rate import Duration, Number

__all__ = ["SmoothBursty", "SmoothWarmingUp"]

_ONE = 1


class _Smooth(Undoing):
    """What both strategies share: `next_free`, and a store that fills while `next_free` lies in the past."""

    __slots__ = ("_next", "_spilled", "_stored")
    rate: Rate
    _receipts: bool

    _starts_full: bool = False
    _earn: int = 1  # what a tick of idle time adds to the store, in the unit of the store

    def _setup(self, rate: Rate, start: int | None) -> None:
        self.rate, self._receipts = rate, True
        self.forget_takes()
        self._spilled = 0
        self._stored = self._most() if self._starts_full else 0
        self._next: int | None = None if start is None else start * rate.permits  # next_free in ticks

    @abstractmethod
    def _most(self) -> int:
        """The size of the store."""

    @abstractmethod
    def _priced(self, stored: int, permits: int) -> tuple[int, int]:
        """The store after a take of that many permits, and the ticks that they cost."""

    @abstractmethod
    def _rescaled(self, stored: int, rate: Rate) -> int:
        """The store at a new rate: the same fraction of its size."""

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if permits is not _ONE or type(now) is not int or (since is not None and type(since) is not int):
            check_ask("take()", permits, now, since)
        due = self._due(now)
        at = -(-due // self.rate.permits)  # rounded up
        if at > now:
            return at
        since = now if since is None or since > now else since
        stored = self._stored
        free = self._spend(permits, due, stored, since)
        # A record: next_free and the store before it, and the instant that it was booked from.
        if self._latest is None or self._latest[0] != now:
            self._latest = (now, due, stored, since, permits)
        else:
            self.note_take((now, due, stored, since, permits), joins=free == due)
        return max(at, since)

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now)
        due = self._due(now)
        if ahead:
            free, stored, _ = self._synced(due, self._stored, now)
            due = free + self._priced(stored, ahead)[1]
        return max(now, ceil_div(due, self.rate.permits))

    def undo(self, record: tuple[int, ...], kept: int) -> None:
        _, due, stored, since, _ = record
        if kept:
            self._spend(kept, due, stored, since, again=True)
        else:
            self._next, self._stored = due, stored
            self._spilled -= self._synced(due, stored, since)[2]

    def charge(self, permits: int, now: int) -> None:
        """Take permits from the store, and the rest on credit: later requests wait for it."""
        check_permits("charge()", permits)
        self.forget_takes()
        self._spend(permits, self._due(now), self._stored, now)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate. A debt keeps its duration, and the store its fraction."""
        rate = Rate.of(rate)
        free, stored, _ = self._synced(self._due(now), self._stored, now)
        due, stored = ceil_div(free * rate.permits, self.rate.permits), self._rescaled(stored, rate)
        self._spilled = self._spilled * rate.permits // self.rate.permits
        self.forget_takes()
        self._next, self._stored, self.rate = due, stored, rate

    def reset(self, now: int) -> None:
        """Owe nothing, with the store of a new scheduler."""
        receipts = self._receipts
        self._setup(self.rate, now)
        self._receipts = receipts

    def lag(self, now: int) -> int:
        """0: unused time is stored or lost, and never makes a backlog."""
        return 0

    @property
    def spilled(self) -> int:
        """Nanoseconds of idle time that found the store full and are lost."""
        return self._spilled // (self.rate.permits * self._earn)

    @property
    def next_free(self) -> int | None:
        """The instant (ns, rounded up) at which the next request may start; None before the first call."""
        return None if self._next is None else ceil_div(self._next, self.rate.permits)

    def _due(self, now: int) -> int:
        if self._next is None:
            self._next = now * self.rate.permits
        return self._next

    def _spend(self, permits: int, due: int, stored: int, since: int, again: bool = False) -> int:
        """Take permits from a given next_free (``due``) and store, with the idle time up to ``since``. Returns the start of the request."""
        free, stored, gone = self._synced(due, stored, since)
        if not again:
            self._spilled += gone
        self._stored, cost = self._priced(stored, permits)
        self._next = free + cost
        return free

    def _synced(self, due: int, stored: int, since: int) -> tuple[int, int, int]:
        """next_free and the store after the idle time up to ``since``, and the earned permits that found no room, in the store's unit."""
        free = booked_from(due, since, self.rate.permits)
        stored += (free - due) * self._earn
        most = self._most()
        return (free, stored, 0) if stored <= most else (free, most, stored - most)


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

    __slots__ = ("_max_burst", "_max_stored")

    def __init__(
        self,
        rate: Rate | str | Number,
        max_burst: Duration | None = None,
        max_stored: Number | None = None,
        *,
        start: int | None = None,
    ) -> None:
        check_optional("start", start)
        if max_burst is not None and max_stored is not None:
            raise ValueError("SmoothBursty() takes max_burst (seconds) or max_stored (permits), not both.")
        self._max_burst = exact_seconds(1 if max_burst is None else max_burst, "SmoothBursty(max_burst)")
        self._max_stored = None if max_stored is None else exact(max_stored, "SmoothBursty(max_stored)")
        if self._max_burst[0] < 0 or (self._max_stored and self._max_stored[0] < 0):
            raise ValueError("SmoothBursty(max_burst, max_stored) must be 0 or more; 0 stores nothing.")
        self._setup(Rate.of(rate), start)

    @property
    def stored(self) -> float:
        """Permits in the store after the latest call."""
        return as_float(self._stored, self.rate.period_ns)

    def bound(self, window: int, largest: int = 1) -> int:
        """``store + rate x window + largest``: a full store, the permits that flow in, and one request on credit."""
        check_window(window, largest)
        return (self._most() + window * self.rate.permits) // self.rate.period_ns + largest

    def available(self, now: int) -> int:
        """The whole permits in the store, and one on credit; 0 while one is owed."""
        due = self._due(now)
        if due > now * self.rate.permits:
            return 0
        return self._synced(due, self._stored, now)[1] // self.rate.period_ns + 1

    def _most(self) -> int:
        if self._max_stored is not None:
            num, den = self._max_stored
            return num * self.rate.period_ns // den
        num, den = self._max_burst
        return num * NS_PER_SECOND * self.rate.permits // den

    def _priced(self, stored: int, permits: int) -> tuple[int, int]:
        cost = permits * self.rate.period_ns
        free = min(stored, cost)
        return stored - free, cost - free

    def _rescaled(self, stored: int, rate: Rate) -> int:
        # Rounded down: no fraction of a permit is given.
        if self._max_stored is not None:
            return stored * rate.period_ns // self.rate.period_ns
        return stored * rate.permits // self.rate.permits

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
        check_optional("start", start)
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
        return as_float(self._stored, self._per_permit)

    @property
    def _per_permit(self) -> int:
        return self.rate.period_ns * 2 * sum(self._cold_factor)

    def bound(self, window: int, largest: int = 1) -> int:
        """``largest + rate x window``, because no permit costs less than the interval."""
        check_window(window, largest)
        return largest + self.rate.permits_in(window)

    def _most(self) -> int:
        return self._warmup * self.rate.permits * self._earn

    def _priced(self, stored: int, permits: int) -> tuple[int, int]:
        left = stored - permits * self._per_permit
        return max(left, 0), self._area(stored) - self._area(left)

    def _area(self, level: int) -> int:
        """The ticks that all permits up to the level cost. Below 0 nothing is stored, and the price is the interval."""
        cold, warm = self._cold_factor
        warmup = self._warmup * self.rate.permits
        above = max(level - warmup * (cold + warm), 0)
        # level / (2 (cold + warm)) for the rectangle; above^2 slope / 2 for the triangle, slope = (cI - I) / (max - threshold).
        scale = 8 * warm * warm * warmup
        return ceil_div(level * scale + above * above * (cold - warm), scale * 2 * (cold + warm))

    def _rescaled(self, stored: int, rate: Rate) -> int:
        # Rounded up: a fuller store is colder, so this gives no credit.
        return ceil_div(stored * rate.permits, self.rate.permits)

    def __repr__(self) -> str:
        return f"SmoothWarmingUp({str(self.rate)!r}, warmup={ns_to_seconds(self._warmup):g}, stored={self.stored:g})"
