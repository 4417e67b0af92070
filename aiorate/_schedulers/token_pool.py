"""TokenPool: active, burst and waiting pools of time, and how they are refilled.

A token is a nanosecond of schedule. Fresh tokens fill the active pool, and the rest waits in the waiting pool. A burst ratio above
1 lets waiting tokens return, in proportion to the time that has just passed. Consumers see one pool, active and burst together.
Knows nothing of clocks, loops or waiters. From the token pools of EngineBlock and nosqlbench, 2018 to 2023.

Inside, a nanosecond and the cost of a permit are the rate's `ticks` times the ratio's denominator, in units. Both are whole numbers,
so no number of refills loses anything to rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._meter import NO_LINE, Meter
from aiorate._rate import EVEN, Rate, as_float, ceil_div, duration_to_ns, ns_to_seconds, ratio_of
from aiorate._schedulers.interface import check_ask, check_give_back, check_instant, check_ns, check_permits, check_window
from aiorate._schedulers.metered import Metered
from aiorate._schedulers.peaks import NO_PEAKS

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import ClassVar

    from aiorate._rate import Number

__all__ = ["TokenPool"]

_LEAST_POOL_NS = 1_000_000


class TokenPool(Metered):
    """Keep an even pace, from a pool of two permits or 1 ms of them, whichever is more.

    The pool starts with one permit. Time that finds the pool full becomes a backlog, `waiting`. With a ``burst_ratio`` above 1 the backlog
    returns, so the limiter catches up at ``burst_ratio`` times the rate. A request larger than the pool is granted when the pool is full,
    and the rest is owed: later requests wait for it.

    `refill`, `take_up_to`, `restart`, `apply` and the integers `active`, `waiting`, `max_active` and `max_over_active` are those of the
    EngineBlock and nosqlbench token pools, in ns. Drive a pool either by them or by a limiter, not by both.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        burst_ratio: How many times the rate to run at while there is a backlog, 1 or more.
        pool: The size of the pool, as a timedelta or in whole ns.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_cost", "_earlier", "_first", "_full", "_last", "_over", "_peaks", "_pool", "_ratio", "_unit", "_w")
    rate: Rate
    _unit: int
    _cost: int
    _full: int
    _over: int
    _stored: ClassVar[int] = 2
    """The permits that the active pool holds, unless 1 ms holds more."""

    def __init__(
        self,
        rate: Rate | str | Number,
        burst_ratio: Number = 1,
        pool: int | timedelta | None = None,
        *,
        start: int | None = None,
    ) -> None:
        if start is not None:
            check_instant("start", start)
        if pool is not None and not isinstance(pool, int):
            pool = _pool_ns(pool)
        if pool is not None:
            check_ns("TokenPool(pool)", pool, least=1)
        self.line: Meter = Meter()
        self._receipts = True
        self._peaks = NO_PEAKS
        self._pool = pool
        self._last: int | None = None  # the instant up to which the pool is refilled
        self._w = 0  # waiting tokens, in units
        self._size(Rate.of(rate), ratio_of(burst_ratio, "TokenPool(burst_ratio"))
        self._first = self._cost  # active tokens before it begins: one permit, so that the first caller does not wait
        if start is not None:
            self._begin(start)
        self._earlier: tuple[int, int] | None = None  # the instant before which a permit cost less, and its cost then in ns

    def _size(self, rate: Rate, ratio: tuple[int, int]) -> None:
        """Derive the sizes of the pools. Their contents stay."""
        key = (self._stored,) if ratio is EVEN and self._pool is None else (self._stored, self._pool, ratio)
        plan = rate._plans.get(key)
        if plan is None:
            (unit, cost), (num, den) = rate.ticks, ratio
            unit, cost = unit * den, cost * den
            # max_active is truncated if a permit is a fraction of a ns, but whole permits must still fit in.
            full = self._pool * unit if self._pool else max(_LEAST_POOL_NS * unit, self._stored * cost)
            # A pool of one permit is full when that is due, and a permit that is due within the ns is on time, as in booked_from().
            numbers = (unit, cost, full - cost or unit - 1, full - cost) if num == den and cost <= full else NO_LINE
            plan = rate._keep_plan(key, (unit, cost, full, full // den * num, numbers))
        self.forget_takes()
        self.rate, self._ratio, (self._unit, self._cost, self._full, self._over, self.line.numbers) = rate, ratio, plan

    def _pools(self, now: int | None = None) -> tuple[int, int, int]:
        """The instant up to which they are refilled, 0 before the first, and the active (with burst) and waiting tokens then.

        With ``now``, as they are when they are refilled up to that instant too.
        """
        if self.line.last is not None:
            self.collect()
        last, due, w = self._last, self.line.due, self._w
        begun = last is not None and due is not None
        a = last * self._unit - due + self._cost if begun else self._first  # type: ignore[operator]
        last = last or 0
        if now is None:
            return last, a, w
        ns = max(0, now - last) if begun else 0
        return last + ns, *self._refilled(a, w, ns * self._unit)

    def _due(self, last: int, active: int) -> int | None:
        """The tick at which a pool with ``active`` tokens at ``last`` holds one permit. Before it begins: None, and it begins with them."""
        if self._last is None:
            self._first = active
            return None
        return last * self._unit - active + self._cost

    def heed(self, last: int, cut: int, peak: int) -> None:
        assert self.line.due is not None
        # Callers that wait since a late wake-up take what has come since, and the pool is refilled only as far as they need.
        refilled = max(min(last, self.line.since), ceil_div(self.line.due - self._cost, self._unit))
        if self._last is None or refilled > self._last:
            self._last = refilled
        self._w += cut
        if self._receipts:
            self._peaks = self._peaks.note(last, peak + self._cost)
        latest = self._latest
        if latest is not None and latest[0] == last:  # they have joined it, and it may be undone in part
            self._latest = (*latest[:5], self._last, *latest[6:])

    # The original's figures, in ns.

    @property
    def max_active(self) -> int:
        """Size of the active pool, in ns."""
        return self._pool or max(_LEAST_POOL_NS, self._stored * self.rate.interval_ns)

    @property
    def max_over_active(self) -> int:
        """Size of active and burst pool together, in ns."""
        num, den = self._ratio
        try:
            # Truncated floating point, as in the original, so that its figures agree to the last digit.
            return int(self.max_active * as_float(num, den))
        except OverflowError:
            return self.max_active * num // den

    @property
    def burst_ratio(self) -> float:
        """The fastest rate divided by the plain rate."""
        return as_float(*self._ratio)

    @property
    def active(self) -> int:
        """Tokens in the active and burst pool, in ns rounded down. Below 0 it is a debt."""
        return self._pools()[1] // self._unit

    @property
    def waiting(self) -> int:
        """The backlog: tokens that found no room in the active pool, in ns rounded down."""
        return self._pools()[2] // self._unit

    @property
    def spilled(self) -> int:
        """The waiting pool, unless it returns: with a burst ratio above 1 nothing is given up."""
        return self.waiting if self._over == self._full else 0

    # The original's steps, for programs that drive a pool by hand.

    def refill(self, ns: int) -> int:
        """Add ``ns`` fresh tokens; returns active + waiting.

        Fresh tokens fill the active pool, and the rest joins the waiting ones. Then up to ``min(ns / max_active, 1) x burst pool``
        waiting tokens return.
        """
        check_ns("refill()", ns)
        unit = self._unit
        last, a, w = self._pools()
        add = min(ns * unit, max(self.max_active * unit - a, 0))
        a, w = a + add, w + ns * unit - add
        # Truncated floating point, as in the original: a tiny refill may return nothing.
        allowed = int(min(as_float(ns, self.max_active), 1.0) * (self.max_over_active - self.max_active))
        moved = min(self.max_over_active * unit - a, allowed * unit, w)
        self._w, self.line.due = w - moved, self._due(last, a + moved)
        return self.active + self.waiting

    def take_up_to(self, ns: int) -> int:
        """Take ``ns`` tokens, or all if there are fewer; returns the number taken."""
        check_ns("take_up_to()", ns)
        last, a, _ = self._pools()
        taken = min(ns, max(a // self._unit, 0))
        self.line.due = self._due(last, a - taken * self._unit)
        return taken

    def restart(self, now: int | None = None) -> int:  # type: ignore[override]  # the original returns a number
        """Empty both pools and forget the time until now. A debt stays. Returns the active + waiting ns before it."""
        had = self.active + self.waiting
        last, a, _ = self._pools()
        self.forget_takes()
        if now is not None and self._last is not None:
            last = max(last, now)
            self._peaks = self._peaks.note(now, self._over)  # as if full: an earlier take is not put back into the emptied pool
        due = self._due(last, min(a, 0))
        self._w, self._last, self.line.due = 0, None if self._last is None else last, due
        return had

    def apply(self, rate: Rate | str | Number, burst_ratio: Number, now: int | None = None) -> None:
        """Change rate and ratio as from ``now``. The pools keep their contents, and a ``pool`` given in ns keeps its size."""
        self._change(Rate.of(rate), ratio_of(burst_ratio, "TokenPool(burst_ratio"), now)

    # The scheduler.

    def take(self, permits: int, now: int, since: int | None = None, *, asking: bool = False) -> int:
        """As `Scheduler.take`. ``asking``: only say when, as `peek`."""
        if type(now) is not int or type(permits) is not int or permits < 1 or (since is not None and type(since) is not int):
            check_ask("take()", permits, now, since)
        line, cost, last = self.line, self._cost, self._last
        if since is None and not self._receipts and line.last is None and last is not None and last <= now and self._full == self._over:
            # No record to keep, and nothing overflows or returns. Without these lines, an acquire(2) at once takes an eighth longer.
            due, need = line.due, permits * cost
            level = now * self._unit - due + cost  # type: ignore[operator]  # it has begun
            if level < need <= self._full:
                return now - (level - need) // self._unit  # rounded up
            if need <= level < self._full and not asking:
                self._last, line.due = now, due + need  # type: ignore[operator]
                return now
        unit, full, over, w = self._unit, self._full, self._over, self._w
        if last is None or line.last is not None:
            if last is None:
                self._begin(now)
            last, _, w = self._pools()
        since = now if since is None or since > now else since
        need, a = permits * cost, last * unit - line.due + cost  # type: ignore[operator]  # it has begun
        if need > full:
            need = full
        if a > over:  # the pool has shrunk: the excess waits, or a new rate would give a free burst
            a, w = over, w + a - over
        if since > last:
            # At once: no request was waiting, so the overflow is backlog. Filled within the last ns is on time, as in booked_from().
            fresh = (since - last) * unit
            if over == full:
                a += fresh
                if a > full and (need < full or a - full >= unit):
                    a, w = full, w + a - full
            else:
                before = a, w
                a, w = self._refilled(a, w, fresh)
                if need == full <= a and (earlier := self._refilled(*before, fresh - unit))[0] < need:
                    (a, w), since = earlier, since - 1
            last = since
        at = last
        if a < need:
            # Only as far as the request needs, because a late wake-up must not overflow the pool.
            returning = w > 0 and over > full
            fresh = self._fresh_for(a, w, need) if returning else need - a
            ns = -(-fresh // unit)  # rounded up
            at = last = last + ns
            if at > now:
                return at
            if returning:
                a, w = self._refilled(a, w, fresh)
                a -= fresh
            a += ns * unit  # with the rest of a ns, or requests for a full pool would drift
        elif now < last:
            # The clock went back: the most that can have been earned since then does not count yet.
            at = max(since, last - (a - need) * self._ratio[1] // (self._ratio[0] * unit))
        if at <= now and not asking:
            begun = last * unit - a + cost
            if self._receipts:
                self._note(permits, now, a, begun, last, w)
            self._last, self._w, line.due = last, w, begun + permits * cost
        return at

    metered_take = take

    def _note(self, permits: int, now: int, level: int, begun: int, last: int, w: int) -> None:
        """Keep a record of a take: the line before it and after its refill, and the rest of the pools before and after."""
        peaks = self._peaks
        if now != peaks.at or level > peaks.level:
            self._peaks = peaks.note(now, level)
        latest, due, before, waiting = self._latest, self.line.due, self._last, self._w
        # Written out, because slices take as long as all the rest.
        if latest is None or latest[0] != now:
            self._latest = (now, due, begun, before, waiting, last, w, permits)  # type: ignore[assignment]  # it has begun
        elif last == before == latest[5] and w == latest[6] == waiting and begun == due == latest[2] + latest[7] * self._cost:
            self._latest = (now, latest[1], latest[2], latest[3], latest[4], last, w, latest[7] + permits)
        else:
            self.note_take((now, due, begun, before, waiting, last, w, permits), joins=False)  # type: ignore[arg-type]

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now)
        at = TokenPool.take(self, permits, now, asking=True)
        if not ahead:
            return at
        last, a, w = self._pools(now)
        need = ahead * self._cost + min(permits * self._cost, self._full)
        return max(at, last + ceil_div(self._fresh_for(a, w, need), self._unit) if need > a else last)

    def _refilled(self, a: int, w: int, fresh: int) -> tuple[int, int]:
        """The pools after ``fresh`` tokens that come one by one, none of them used."""
        full, over, (num, den) = self._full, self._over, self._ratio
        if a > over:  # the pool has shrunk: the excess waits
            a, w = over, w + a - over
        if w > 0 and a < full and num > den:
            # 1. Below full with a backlog: fresh and returning tokens together, until full or no backlog.
            x = min(fresh, ceil_div((full - a) * den, num), w * den // (num - den))
            moved = min(x * (num - den) // den, full - a - x)
            a, w, fresh = a + x + moved, w - moved, fresh - x
        if a + fresh <= full:
            # 2. Below full without a backlog: fresh tokens only.
            return a + fresh, w
        # 3. Full: fresh tokens wait, and tokens return at the pace of the burst ratio until the burst pool is full too.
        if a < full:
            a, fresh = full, fresh - (full - a)
        w += fresh
        moved = min(over - a, w, fresh * (num - den) // den)
        return a + moved, w - moved

    def _begin(self, now: int) -> None:
        self._last, self.line.due = now, now * self._unit - self._first + self._cost

    def _fill(self, now: int) -> None:
        if self._last is None:
            self._begin(now)
        last, a, w = self._pools(now)
        due = self._due(last, a)
        self._last, self._w, self.line.due = last, w, due  # in one step: a signal handler may raise after a call

    def _fresh_for(self, a: int, w: int, need: int) -> int:
        """The fresh tokens after which the pool holds ``need``, which is at most full."""
        num, den = self._ratio
        if num == den or w <= 0:
            return need - a
        x, dry = ceil_div((need - a) * den, num), w * den // (num - den)
        return x if x <= dry else dry + (need - a - dry - dry * (num - den) // den)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Put tokens back as far as there is room; by receipt, as far as there was room at every instant since the take.

        By receipt, tokens without room join the waiting ones.
        """
        check_give_back(permits, now, taken)
        if taken is None:
            if self._last is None:
                self._begin(now)
            last, a, _ = self._pools()
            a += max(0, min(permits * self._cost, self._over - a))
            self.line.due = self._due(last, a)
            self._peaks = self._peaks.note(now, a)
            return
        permits = self.undo_takes(permits, taken)
        if permits:
            tokens = permits * self._cost
            if self._earlier is not None and taken < self._earlier[0]:
                tokens = min(tokens, permits * self._earlier[1] * self._unit)
            # Above full, the tokens would have slowed the return of others. So the credit ends at full.
            last, a, w = self._pools()
            peak = self._peaks.since(taken)
            credit = max(0, min(tokens, self._full - (a if peak is None else max(a, peak))))
            due = self._due(last, a + credit)
            self._w, self.line.due = w + tokens - credit, due
            self._peaks.raise_since(taken, credit)

    def stands(self, record: tuple[int, ...]) -> bool:
        return (self.line.due, self._w) == (record[2] + record[7] * self._cost, record[6])

    def undo(self, record: tuple[int, ...], kept: int) -> None:
        if kept:
            self._last, self._w, self.line.due = record[5], record[6], record[2] + kept * self._cost
        else:
            self._last, self._w, self.line.due = record[3], record[4], record[1]

    def charge(self, permits: int, now: int) -> None:
        """Take any number of permits at once. The pool may owe them."""
        check_permits("charge()", permits)
        if self.take(permits, now) <= now:
            return
        self._fill(now)
        last, a, _ = self._pools()
        self._peaks = self._peaks.note(now, a)
        self.line.due = self._due(last, a - permits * self._cost)

    def available(self, now: int) -> int:
        """The permits in the pool."""
        if self._last is None:
            self._begin(now)
        last, a, _ = self._pools(now)
        return 0 if now < last else max(0, a // self._cost)

    def _standings(self, now: int) -> list[tuple[int, int]]:
        line, last = self.line, self._last
        due, (unit, cost, slack, _) = line.due, line.numbers
        if due is None or last is None or now < last or line.numbers == NO_LINE:
            return super()._standings(now)
        idle = now * unit - due
        if idle < 0:
            return [(0, -(-due // unit))]
        most = self._full // cost
        left = min(idle // cost + 1, most)
        return [(left, now if left == most or idle > slack else -(-(due + left * cost) // unit))]

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate. The pools keep their nanoseconds, and a debt its duration."""
        self._change(Rate.of(rate), self._ratio, now)

    def _change(self, rate: Rate, ratio: tuple[int, int], now: int | None) -> None:
        if now is not None:
            self._fill(now)
            if rate != self.rate:
                cost = self.rate.interval_ns
                self._earlier = now, cost if self._earlier is None else min(cost, self._earlier[1])
        last, a, w = self._pools()
        old = self._unit
        self._size(rate, ratio)
        # Rounded down: this gives no credit, and a debt grows by less than a unit.
        self._w, self.line.due = w * self._unit // old, self._due(last, a * self._unit // old)
        self._peaks.scale(self._unit, old)

    def reset(self, now: int) -> None:
        """Hold one permit and no backlog, as at first."""
        self.collect()
        self.forget_takes()
        self._peaks = NO_PEAKS
        self._w, self._earlier, self._last, self.line.due = 0, None, now, now * self._unit

    def lag(self, now: int) -> int:
        """The waiting pool, in ns."""
        return self._pools(now)[2] // self._unit

    def bound(self, window: int, largest: int = 1) -> int:
        """``max(pool, largest) + burst_ratio x rate x window``. The pool is in permits and includes the burst pool."""
        check_window(window, largest)
        owed = max(0, largest * self._cost - self._full)  # the part of a larger request that is granted on credit
        return (self._over + owed + window * self.rate.ticks[0] * self._ratio[0]) // self._cost

    def __repr__(self) -> str:
        # In permits and seconds, after the latest call.
        available, lag = as_float(self._pools()[1], self._cost), ns_to_seconds(self.waiting)
        return f"TokenPool({str(self.rate)!r}, burst_ratio={self.burst_ratio:g}, available={available:g}, lag={lag:g})"


class PlainPool(TokenPool):
    """The pool of a plain rate, as in ``Limiter("9/s")``. It stores one permit, or 1 ms of them, so that a server that allows 10 a second
    never sees more than 10."""

    __slots__ = ()
    _stored = 1


def _pool_ns(pool: object) -> int:
    from datetime import timedelta

    if isinstance(pool, timedelta):
        return duration_to_ns(pool, "TokenPool(pool)")
    raise TypeError(
        f"TokenPool(pool) must be a timedelta or whole ns, not {type(pool).__name__}."
        " For 5 ms, write timedelta(milliseconds=5) or 5_000_000."
    )
