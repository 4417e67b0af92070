"""TokenPool: active, burst and waiting pools of time, and how they are refilled.

A token is a nanosecond of schedule. Fresh tokens fill the active pool, and the rest waits in the waiting pool. A burst ratio above
1 lets waiting tokens return, in proportion to the time that has just passed. Consumers see one pool, active and burst together.
Knows nothing of clocks, loops or waiters. From the token pools of EngineBlock and nosqlbench, 2018 to 2023.

Inside, a nanosecond is ``rate.permits x ratio's denominator`` units and a permit costs ``rate.period_ns x ratio's denominator``
units. Both are whole numbers, so no number of refills loses anything to rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.rate import Rate, as_float, ceil_div, ns_to_seconds, ratio_of
from aiorate.schedulers.interface import check_ask, check_give_back, check_ns, check_optional, check_permits, check_window, wrong_arguments
from aiorate.schedulers.peaks import Peaks
from aiorate.schedulers.undo import Undoing

if TYPE_CHECKING:
    from typing import Never

    from aiorate.rate import Number

__all__ = ["TokenPool"]

_ONE = 1
_NEVER = 1 << 200
_LEAST_POOL_NS = 1_000_000


class TokenPool(Undoing):
    """Pay now from a pool of two permits or 1 ms of them, whichever is more, times ``burst_ratio``.

    ``burst_ratio`` is the fastest rate divided by the plain rate (1 or more): while there is a backlog, permits come at
    ``burst_ratio x rate``. With 1 the backlog is only counted. For a number of permits at once, use `TokenBucket`.

    ``pool`` sets the size of the active pool in ns. The pool starts with one permit. A request larger than the pool is granted when
    the pool is full, and the rest is owed: later requests wait for it.

    `refill`, `take_up_to`, `restart`, `apply` and the whole numbers `active`, `waiting`, `max_active` and `max_over_active` are the
    original's, in ns. `take` and `peek` refill the pool themselves, as a filler of infinite frequency would. Use one pool in one of
    the two ways only.
    """

    __slots__ = ("_a", "_calm_until", "_cost", "_earlier", "_full", "_last", "_over", "_peaks", "_plain", "_pool", "_ratio", "_unit", "_w")
    rate: Rate

    def __init__(
        self, rate: Rate | str | Number, burst_ratio: Number = 1, pool: int | None = None, *, start: int | None = None, **unknown: Never
    ) -> None:
        if unknown:
            raise wrong_arguments("TokenPool", rate, (), unknown)
        check_optional("start", start)
        if pool is not None:
            check_ns("TokenPool(pool)", pool, least=1)
        self.receipts = True
        self._peaks = Peaks()
        self._pool = pool
        self._last = start  # the instant up to which the pool is refilled
        self._size(Rate.of(rate), ratio_of(burst_ratio, "TokenPool(burst_ratio"))
        # Active (with burst) and waiting tokens, in units.
        self._a = self._cost  # one permit, so that the first caller does not wait
        self._w = 0
        self._earlier: tuple[int, int] | None = None  # the instant before which a permit cost less, and its cost then in ns

    def _size(self, rate: Rate, ratio: tuple[int, int]) -> None:
        """Derive the sizes of the pools. Their contents stay."""
        num, den = ratio
        self.rate, self._ratio = rate, ratio
        self._unit, self._cost = (rate.permits * den, rate.period_ns * den) if den > 1 else (rate.permits, rate.period_ns)
        # max_active is truncated if a permit is a fraction of a ns, but two whole permits must still fit in.
        self._full = self._pool * self._unit if self._pool else max(_LEAST_POOL_NS * self._unit, 2 * self._cost)
        self._over = self._full // den * num if num > den else self._full
        self.forget_takes()
        self._plain = False  # whether the active pool is at most full, and no tokens return to it
        self._calm_until = -_NEVER  # an instant before which the active pool is not full

    # The original's figures, in ns.

    @property
    def max_active(self) -> int:
        """Size of the active pool, in ns."""
        return self._pool or max(_LEAST_POOL_NS, 2 * self.rate.interval_ns)

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
        return self._a // self._unit

    @property
    def waiting(self) -> int:
        """The backlog: tokens that found no room in the active pool, in ns rounded down."""
        return self._w // self._unit

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
        self._calm_until = -_NEVER
        add = min(ns * unit, max(self.max_active * unit - self._a, 0))
        self._a += add
        self._w += ns * unit - add
        # Truncated floating point, as in the original: a tiny refill may return nothing.
        allowed = int(min(as_float(ns, self.max_active), 1.0) * (self.max_over_active - self.max_active))
        moved = min(self.max_over_active * unit - self._a, allowed * unit, self._w)
        self._a += moved
        self._w -= moved
        return self.active + self.waiting

    def take_up_to(self, ns: int) -> int:
        """Take ``ns`` tokens, or all if there are fewer; returns the number taken."""
        check_ns("take_up_to()", ns)
        taken = min(ns, max(self.active, 0))
        self._a -= taken * self._unit
        return taken

    def restart(self, now: int | None = None) -> int:  # type: ignore[override]  # the original returns a number
        """Empty both pools and forget the time until now. A debt stays. Returns the active + waiting ns before it."""
        had = self.active + self.waiting
        self._a, self._w = min(self._a, 0), 0
        self._calm_until = -_NEVER
        self.forget_takes()
        if now is not None and self._last is not None:
            self._last = max(self._last, now)
            self._peaks.note(now, self._over)  # as if full: an earlier take is not put back into the emptied pool
        return had

    def apply(self, rate: Rate | str | Number, burst_ratio: Number, now: int | None = None) -> None:
        """Change rate and ratio as from ``now``. The pools keep their contents, and a ``pool`` given in ns keeps its size."""
        self._change(Rate.of(rate), ratio_of(burst_ratio, "TokenPool(burst_ratio"), now)

    # The scheduler.

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if permits is _ONE and since is None and type(now) is int and now < self._calm_until and not self.receipts:
            # Not full yet, and no record to keep: a sum, in half the time of the code below.
            a = self._a + (now - self._last) * self._unit - self._cost  # type: ignore[operator]  # in force only once it has begun
            if a >= 0:
                self._a, self._last = a, now
                return now
        if type(now) is not int or type(permits) is not int or permits < 1 or (since is not None and type(since) is not int):
            check_ask("take()", permits, now, since)
        last = self._last
        if self._plain and last is not None and last <= now:
            # Inlined for a pool to which no tokens return, in a third of the time of the code below.
            a, cost, full = self._a, permits * self._cost, self._full
            if since is None or since >= now:
                # No request waited: the overflow is backlog.
                a += (now - last) * self._unit
                if a >= full and (a - full >= self._unit or cost < full):  # otherwise filled within this ns, as in booked_from()
                    return self._taken(permits, now, now, full, a - full)
                if a >= cost or a >= full:
                    return self._taken(permits, now, now, a)
                return now - (a - cost if cost < full else a - full) // self._unit  # rounded up
            # While a request waits, the pool is refilled only as far as the request needs.
            if since > last:
                a += (since - last) * self._unit
                last = since
            if a <= full:
                missing = (cost if cost < full else full) - a
                if missing > 0:
                    ns = -(-missing // self._unit)  # rounded up
                    last += ns
                    if last > now:
                        return last
                    a += ns * self._unit
                return self._taken(permits, now, last, a)
        at, last, a, w = self._plan(permits, now, now if since is None or since > now else since)
        if at <= now:
            self._plain = self._over == self._full
            self._taken(permits, now, last, a, w - self._w)
        return at

    def _taken(self, permits: int, now: int, last: int, level: int, spilled: int = 0) -> int:
        """Take from a pool that is refilled up to ``last`` and holds ``level``. ``spilled`` tokens join the waiting ones first."""
        if not self.receipts:
            self._last, self._a = last, level - permits * self._cost
            if spilled:
                self._w += spilled
            if self._plain:
                self._calm_until = last + (self._full - self._a) // self._unit
            return last
        peaks = self._peaks
        if now != peaks.at or level > peaks.level:
            peaks.note(now, level)
        latest, before, a, w = self._latest, self._last, self._a, self._w + spilled
        # A record: the pools before the take, and after their refill. Written out, because slices take as long as all the rest.
        if latest is None or latest[0] != now:
            self._latest = (now, before, a, self._w, last, level, w, permits)  # type: ignore[assignment]  # it was refilled once
        elif last == before == latest[4] and not spilled and level == a == latest[5] - latest[7] * self._cost and w == latest[6]:
            self._latest = (now, latest[1], latest[2], latest[3], last, latest[5], w, latest[7] + permits)
        else:
            self.note_take((now, before, a, self._w, last, level, w, permits), joins=False)  # type: ignore[arg-type]
        self._last, self._a, self._w = last, level - permits * self._cost, w
        return last

    def peek(self, permits: int, now: int) -> int:
        check_ask("peek()", permits, now)
        return self._plan(permits, now, now)[0]

    def _plan(self, permits: int, now: int, since: int) -> tuple[int, int, int, int]:
        """The instant of the request, and the pools at that instant: the instant of their refill, active, waiting."""
        last = self._last
        if last is None:
            last = self._last = now
        a, w = self._a, self._w
        if a > self._over:  # the pool has shrunk: the excess waits, or a new rate would give a free burst
            a, w = self._over, w + a - self._over
        need = permits * self._cost
        if need > self._full:
            need = self._full
        if since > last:
            # At once: no request was waiting, so the overflow is backlog.
            before = a, w
            a, w = self._refilled(a, w, (since - last) * self._unit)
            if need == self._full <= a:
                earlier = self._refilled(*before, (since - 1 - last) * self._unit)
                if earlier[0] < need:  # filled within the last ns, which is on time, as in booked_from()
                    a, w = earlier
                    since -= 1
            last = since
        if a < need:
            # Only as far as the request needs, because a late filler must not overflow the pool.
            fresh = self._fresh_for(a, w, need)
            ns = ceil_div(fresh, self._unit)
            if last + ns > now:
                return last + ns, last, a, w
            a, w = self._refilled(a, w, fresh)
            a += ns * self._unit - fresh  # keeps the rest of a ns, or requests for a full pool would drift
            last += ns
        elif now < last:
            # The clock went back: the most that can have been earned since then does not count yet.
            num, den = self._ratio
            return max(since, last - (a - need) * den // (num * self._unit)), last, a, w
        return max(last, since), last, a, w

    def _refilled(self, a: int, w: int, fresh: int) -> tuple[int, int]:
        """The pools after ``fresh`` tokens that come one by one, none of them used."""
        if self._over == self._full:
            # No token returns. The overflow waits, and so do tokens for which a shrunken pool has no room.
            a += fresh
            return (a, w) if a <= self._full else (self._full, w + a - self._full)
        num, den = self._ratio
        extra = num - den
        if a > self._over:  # the pool has shrunk: the excess waits
            a, w = self._over, w + a - self._over
        if w > 0 and a < self._full:
            # 1. Below full with a backlog: fresh and returning tokens together, until full or no backlog.
            x = min(fresh, ceil_div((self._full - a) * den, num), w * den // extra)
            moved = min(x * extra // den, self._full - a - x)
            a, w, fresh = a + x + moved, w - moved, fresh - x
        if a < self._full:
            # 2. Below full without a backlog: fresh tokens only.
            x = min(fresh, self._full - a)
            a, fresh = a + x, fresh - x
        # 3. Full: fresh tokens wait, and tokens return at the pace of the burst ratio until the burst pool is full too.
        w += fresh
        if fresh:
            moved = min(self._over - a, w, fresh * extra // den)
            a, w = a + moved, w - moved
        return a, w

    def _fill(self, now: int) -> None:
        last = now if self._last is None else self._last
        pools, last = self._refilled(self._a, self._w, max(0, now - last) * self._unit), max(now, last)
        (self._a, self._w), self._last = pools, last  # in one step: a signal handler may raise after a call

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
        self._calm_until = -_NEVER
        if taken is None:
            self._a += max(0, min(permits * self._cost, self._over - self._a))
            self._peaks.note(now, self._a)
            return
        permits = self.undo_takes(permits, taken)
        if permits:
            tokens = permits * self._cost
            if self._earlier is not None and taken < self._earlier[0]:
                tokens = min(tokens, permits * self._earlier[1] * self._unit)
            # Above full, the tokens would have slowed the return of others. So the credit ends at full.
            peak = self._peaks.since(taken)
            credit = max(0, min(tokens, self._full - (self._a if peak is None else max(self._a, peak))))
            self._a += credit
            self._w += tokens - credit
            self._peaks.raise_since(taken, credit)

    def stands(self, record: tuple[int, ...]) -> bool:
        return (self._last, self._a, self._w) == (record[4], record[5] - record[7] * self._cost, record[6])

    def undo(self, record: tuple[int, ...], kept: int) -> None:
        self._plain = False  # until the next take, because the active pool may be more than full
        if kept:
            self._last, self._a, self._w = record[4], record[5] - kept * self._cost, record[6]
        else:
            _, self._last, self._a, self._w, *_ = record

    def charge(self, permits: int, now: int) -> None:
        """Take any number of permits at once. The pool may owe them."""
        check_permits("charge()", permits)
        if self.take(permits, now) <= now:
            return
        self._fill(now)
        self._peaks.note(now, self._a)
        self._a -= permits * self._cost

    def stock(self, now: int) -> int:
        """The permits in the pool."""
        if self._last is None or now < self._last:
            return 0
        return max(0, self._refilled(self._a, self._w, (now - self._last) * self._unit)[0] // self._cost)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate. The pools keep their nanoseconds, and a debt its duration."""
        self._change(Rate.of(rate), self._ratio, now)

    def _change(self, rate: Rate, ratio: tuple[int, int], now: int | None) -> None:
        if now is not None:
            self._fill(now)
            if rate != self.rate:
                cost = self.rate.interval_ns
                self._earlier = now, cost if self._earlier is None else min(cost, self._earlier[1])
        old = self._unit
        self._size(rate, ratio)
        # Rounded down: this gives no credit, and a debt grows by less than a unit.
        self._a, self._w = self._a * self._unit // old, self._w * self._unit // old
        self._peaks.scale(self._unit, old)

    def reset(self, now: int) -> None:
        """Hold one permit and no backlog, as at first."""
        self._last, self._a, self._w, self._earlier = now, self._cost, 0, None
        self._calm_until = -_NEVER
        self.forget_takes()
        self._peaks.clear()

    def lag(self, now: int) -> int:
        """The waiting pool, in ns."""
        last = now if self._last is None else self._last
        return self._refilled(self._a, self._w, max(0, now - last) * self._unit)[1] // self._unit

    def bound(self, window: int, largest: int = 1) -> int:
        """``max(pool, largest) + burst_ratio x rate x window``. The pool is in permits and includes the burst pool."""
        check_window(window, largest)
        owed = max(0, largest * self._cost - self._full)  # the part of a larger request that is granted on credit
        return (self._over + owed + window * self.rate.permits * self._ratio[0]) // self._cost

    def __repr__(self) -> str:
        # In permits and seconds, after the latest call.
        available, lag = as_float(self._a, self._cost), ns_to_seconds(self.waiting)
        return f"TokenPool({str(self.rate)!r}, burst_ratio={self.burst_ratio:g}, available={available:g}, lag={lag:g})"
