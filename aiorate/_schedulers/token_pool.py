"""TokenPool: active, burst and waiting pools of time, and how they are refilled.

A token is a nanosecond of schedule. Fresh tokens fill the active pool, and the rest waits in the waiting pool. A burst ratio above
1 lets waiting tokens return, in proportion to the time that has just passed. Consumers see one pool, active and burst together.
From the token pools of EngineBlock and nosqlbench, 2018 to 2023.

Inside, a nanosecond and the cost of a permit are the rate's `ticks` times the ratio's denominator, in units. Both are whole numbers,
so no number of refills loses anything to rounding.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from aiorate._meter import NO_LINE, Meter
from aiorate._rate import EVEN, Rate, as_float, ceil_div, duration_to_ns, ns_to_seconds, ratio_of
from aiorate._schedulers.interface import check_ask, check_ns, check_permits, check_window
from aiorate._schedulers.metered import Stored

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Any, ClassVar

    from aiorate._rate import Number


_LEAST_POOL_NS = 1_000_000


class TokenPool(Stored):
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

    __slots__ = ("_begun_with", "_last", "_pool", "_w")
    rate: Rate
    _plan: tuple[int, int, int, int, int, int]
    """In units: a nanosecond, a permit, the size of the active pool, and that of active and burst pool together; and the ratio."""
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
        if pool is not None:
            if not isinstance(pool, int):
                pool = _pool_ns(pool)
            check_ns("TokenPool(pool)", pool, least=1)
        self.line: Meter = Meter()
        self._receipts = True
        self._peaks = None
        self._pool = pool
        self._last: int | None = None  # the instant up to which the pool is refilled
        self._w = 0  # waiting tokens, in units
        ratio = EVEN if type(burst_ratio) is int and burst_ratio == 1 else ratio_of(burst_ratio, "TokenPool(burst_ratio")
        self._size(rate if type(rate) is str else Rate.of(rate), ratio)
        self._begun_with = self._plan[1]  # active tokens before it begins: one permit, so that the first caller does not wait
        if start is not None:
            check_ns("start", start)
            self._begin(start)

    def _size(self, rate: Rate | str, ratio: tuple[int, int]) -> None:
        """Derive the sizes of the pools. Their contents stay."""
        self._latest, (self.rate, self._plan, self.line.numbers) = None, _plan_of(rate, ratio, self._pool, self._stored)

    def _pools(self, now: int | None = None) -> tuple[int, int, int]:
        """The instant up to which they are refilled, and the active (with burst) and waiting tokens then.

        With ``now``, as they are when they are refilled up to that instant too.
        """
        if self.line.last is not None:
            self.collect()
        last, due, (unit, cost, *_) = self._last, self.line.due, self._plan
        if last is None or due is None:
            return now or 0, self._begun_with, self._w
        a, w = last * unit - due + cost, self._w
        return (last, a, w) if now is None or now <= last else (now, *self._refilled(a, w, (now - last) * unit))

    def _keep(self, last: int, a: int, w: int) -> None:
        """The contents of the pools, refilled up to that instant."""
        unit, cost, *_ = self._plan
        if self._last is None:
            self._begun_with, self._w = a, w
        else:
            self._last, self._w, self.line.due = last, w, last * unit - a + cost  # in one step: a signal handler may raise after a call

    def heed(self, last: int, cut: int, peak: int) -> None:
        due, (unit, cost, *_) = self.line.due, self._plan
        assert due is not None
        assert self._last is not None
        # Callers that wait since a late wake-up take what has come since, and the pool is refilled only as far as they need.
        self._last = max(self._last, min(last, self.line.since), ceil_div(due - cost, unit))
        self._w += cut
        self.note_level(last, peak + cost)

    # The original's figures, in ns.

    @property
    def max_active(self) -> int:
        """Size of the active pool, in ns."""
        return self._pool or max(_LEAST_POOL_NS, self._stored * self.rate.interval_ns)

    @property
    def max_over_active(self) -> int:
        """Size of active and burst pool together, in ns."""
        num, den = self._plan[4:]
        try:
            # Truncated floating point, as in the original, so that its figures agree to the last digit.
            return int(self.max_active * as_float(num, den))
        except OverflowError:
            return self.max_active * num // den

    @property
    def burst_ratio(self) -> float:
        """The fastest rate divided by the plain rate."""
        return as_float(*self._plan[4:])

    @property
    def active(self) -> int:
        """Tokens in the active and burst pool, in ns rounded down. Below 0 it is a debt."""
        return self._pools()[1] // self._plan[0]

    @property
    def waiting(self) -> int:
        """The backlog: tokens that found no room in the active pool, in ns rounded down."""
        return self._pools()[2] // self._plan[0]

    @property
    def spilled(self) -> int:
        """The waiting pool, unless it returns: with a burst ratio above 1 nothing is given up."""
        return self.waiting if self._plan[2] == self._plan[3] else 0

    # The original's steps, for programs that drive a pool by hand.

    def refill(self, ns: int) -> int:
        """Add ``ns`` fresh tokens; returns active + waiting.

        Fresh tokens fill the active pool, and the rest joins the waiting ones. Then up to ``min(ns / max_active, 1) x burst pool``
        waiting tokens return.
        """
        check_ns("refill()", ns, least=0)
        last, a, w = self._pools()
        unit, active, over = self._plan[0], self.max_active, self.max_over_active
        add = min(ns * unit, max(active * unit - a, 0))
        a, w = a + add, w + ns * unit - add
        # Truncated floating point, as in the original: a tiny refill may return nothing.
        allowed = int(min(as_float(ns, active), 1.0) * (over - active))
        moved = min(over * unit - a, allowed * unit, w)
        self._keep(last, a + moved, w - moved)
        return self.active + self.waiting

    def take_up_to(self, ns: int) -> int:
        """Take ``ns`` tokens, or all if there are fewer; returns the number taken."""
        check_ns("take_up_to()", ns, least=0)
        (last, a, w), unit = self._pools(), self._plan[0]
        taken = min(ns, max(a // unit, 0))
        self._keep(last, a - taken * unit, w)
        return taken

    def restart(self, now: int | None = None) -> int:  # type: ignore[override]  # the original returns a number
        """Empty both pools and forget the time until now. A debt stays. Returns the active + waiting ns before it."""
        had = self.active + self.waiting
        last, a, _ = self._pools()
        self._latest = None
        if now is not None and self._last is not None:
            last = max(last, now)
            self.note_level(now, self._plan[3])  # as if full: an earlier take is not put back into the emptied pool
        self._keep(last, min(a, 0), 0)
        return had

    def apply(self, rate: Rate | str | Number, burst_ratio: Number, now: int | None = None) -> None:
        """Change rate and ratio as from ``now``. The pools keep their contents, and a ``pool`` given in ns keeps its size."""
        self._change(Rate.of(rate), ratio_of(burst_ratio, "TokenPool(burst_ratio"), now)

    # The scheduler.

    def take(self, permits: int, now: int, since: int | None = None, *, asking: bool = False) -> int:
        """As `Scheduler.take`. ``asking``: only say when, as `peek`."""
        if type(now) is not int or type(permits) is not int or permits < 1 or (since is not None and type(since) is not int):
            check_ask("take()", permits, now, since)
        line, last, w, (unit, cost, full, over, num, den) = self.line, self._last, self._w, self._plan
        if last is None or line.last is not None:
            if last is None:
                self._begin(now)
            last, _, w = self._pools()
        if since is None or since > now:
            since = now
        due: int = line.due  # type: ignore[assignment]  # it has begun
        need, begun = permits * cost, due
        if since <= last:
            a = last * unit - due + cost
        elif (a := since * unit - due + cost) <= full and (over == full or not w):
            last = since  # nothing overflows, and nothing returns
        else:
            # At once: no request was waiting, so the overflow is backlog.
            a, w = self._refilled(last * unit - due + cost, w, (since - last) * unit)
            last, begun = since, since * unit - a + cost
        at = last
        if a < need and a < full:
            # Only as far as the request needs, because a late wake-up must not overflow the pool.
            ns = -(-self._fresh_for(a, w, min(need, full)) // unit)  # rounded up
            at = last = last + ns
            if at > now:
                return at
            a, w = self._refilled(a, w, ns * unit)
            begun = last * unit - a + cost
        elif now < last:
            # The clock went back: the most that can have been earned since then does not count yet.
            at = max(since, last - (a - min(need, full)) * den // (num * unit))
        if at <= now and not asking:
            if self._receipts:
                self.note_take(permits, now, a, due, self._w, self._last)
            self._last, self._w, line.due = last, w, begun + permits * cost
        return at

    metered_take = take

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now)
        at = TokenPool.take(self, permits, now, asking=True)
        if not ahead:
            return at
        (last, a, w), (unit, cost, full, *_) = self._pools(now), self._plan
        need = ahead * cost + min(permits * cost, full)
        return max(at, last + ceil_div(self._fresh_for(a, w, need), unit) if need > a else last)

    def _refilled(self, a: int, w: int, fresh: int) -> tuple[int, int]:
        """The pools after ``fresh`` tokens that come one by one, none of them used."""
        unit, _, full, over, num, den = self._plan
        if w > 0 and a < full and num > den:
            # 1. Below full with a backlog: fresh and returning tokens together, until full or no backlog.
            x = min(fresh, ceil_div((full - a) * den, num), w * den // (num - den))
            moved = min(x * (num - den) // den, full - a - x)
            a, w, fresh = a + x + moved, w - moved, fresh - x
        if a + fresh < full + unit:
            # 2. Below full without a backlog: fresh tokens only. Full within the last ns is on time: waiting, its rest would be drift.
            return a + fresh, w
        # 3. Full: fresh tokens wait, and tokens return at the pace of the burst ratio until the burst pool is full too.
        if a < full:
            a, fresh = full, fresh - (full - a)
        w += fresh
        moved = min(over - a, w, fresh * (num - den) // den)
        return a + moved, w - moved

    def _fresh_for(self, a: int, w: int, need: int) -> int:
        """The fresh tokens after which the pool holds ``need``, which is at most full."""
        num, den = self._plan[4:]
        if num == den or w <= 0:
            return need - a
        x, dry = ceil_div((need - a) * den, num), w * den // (num - den)
        return x if x <= dry else dry + (need - a - dry - dry * (num - den) // den)

    def _begin(self, now: int) -> None:
        unit, cost, _, over, *_ = self._plan
        a = min(self._begun_with, over)
        self._last, self._w, self.line.due = now, self._w + self._begun_with - a, now * unit - a + cost

    def restore(self, before: tuple[Any, ...]) -> None:
        self.line.due, self._w, self._last = before

    def credit(self, permits: int, now: int, taken: int | None) -> None:
        """As `Stored.credit`. By receipt, tokens without room join the waiting ones."""
        if self._last is None:
            self._begin(now)
        (last, a, w), (_, cost, full, over, *_) = self._pools(), self._plan
        tokens = permits * cost
        if taken is None:
            a += max(0, min(tokens, over - a))
            self.note_level(now, a)
        else:
            # Above full, the tokens would have slowed the return of others. So the credit ends at full.
            credit = self.credit_since(taken, max(0, min(tokens, full - a)), full)
            a, w = a + credit, w + tokens - credit
        self._keep(last, a, w)

    def charge(self, permits: int, now: int) -> None:
        """Take any number of permits at once. The pool may owe them."""
        check_permits("charge()", permits)
        if self.take(permits, now) > now:
            last, a, w = self._pools(now)
            self.note_level(now, a)
            self._latest = None
            self._keep(last, a - permits * self._plan[1], w)

    def available(self, now: int) -> int:
        """The permits in the pool."""
        if self._last is None:
            self._begin(now)
        last, a, _ = self._pools(now)
        return 0 if now < last else max(0, a // self._plan[1])

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate. The pools keep their nanoseconds, and a debt its duration."""
        self._change(Rate.of(rate), self._plan[4:], now)

    def _change(self, rate: Rate, ratio: tuple[int, int], now: int | None) -> None:
        if now is not None:
            if self._last is None:
                self._begin(now)
            self._keep(*self._pools(now))
        (last, a, w), old = self._pools(), self._plan[0]
        slower = rate.slower_than(self.rate)
        self._size(rate, ratio)
        unit, _, _, over, *_ = self._plan
        self.scale_levels(unit, old)
        if now is not None and slower:
            self.note_level(now, over)  # as if full: an earlier permit cost less than it would bring now
        # Rounded down: this gives no credit, and a debt grows by less than a unit.
        a, w = a * unit // old, w * unit // old
        if now is not None and a > over:  # the pool has shrunk: the excess waits, or a new rate would give a free burst
            a, w = over, w + a - over
        self._keep(last, a, w)

    def reset(self, now: int) -> None:
        """Hold one permit and no backlog, as at first."""
        self.collect()
        self._latest = self._peaks = None
        self._w, self._last, self.line.due = 0, now, now * self._plan[0]

    def lag(self, now: int) -> int:
        """The waiting pool, in ns."""
        return self._pools(now)[2] // self._plan[0]

    def bound(self, window: int, largest: int = 1) -> int:
        """``max(pool, largest) + burst_ratio x rate x window``. The pool is in permits and includes the burst pool."""
        check_window(window, largest)
        _, cost, full, over, num, _ = self._plan
        owed = max(0, largest * cost - full)  # the part of a larger request that is granted on credit
        return (over + owed + window * self.rate.ticks[0] * num) // cost

    def __repr__(self) -> str:
        # In permits and seconds, after the latest call.
        available, lag = as_float(self._pools()[1], self._plan[1]), ns_to_seconds(self.waiting)
        return f"TokenPool({str(self.rate)!r}, burst_ratio={self.burst_ratio:g}, available={available:g}, lag={lag:g})"


@lru_cache(256)
def _plan_of(
    rate: Rate | str, ratio: tuple[int, int], pool: int | None, stored: int
) -> tuple[Rate, tuple[int, int, int, int, int, int], tuple[int, int, float, int]]:
    """The rate, what follows from it, and the numbers of the meter: once for all pools with these parameters."""
    rate, (num, den) = Rate.of(rate), ratio
    unit, cost = rate.ticks[0] * den, rate.ticks[1] * den
    # max_active is truncated if a permit is a fraction of a ns, but whole permits must still fit in.
    full = pool * unit if pool else max(_LEAST_POOL_NS * unit, stored * cost)
    # A permit that is due within the ns is on time, as in _refilled().
    numbers = (unit, cost, full - cost + unit - 1, full - cost) if num == den and cost <= full else NO_LINE
    return rate, (unit, cost, full, full // den * num, num, den), numbers


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
