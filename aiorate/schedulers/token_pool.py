"""TokenPool: active, burst and waiting pools of time, and how they are refilled.

A token is a nanosecond of schedule. Fresh tokens fill the active pool, what does not fit waits, and a burst ratio above
1 lets waiting tokens return, pro rata to the time that has just passed. Consumers see one pool, active and burst.
Knows nothing of clocks, loops or who waits. From the token pools of EngineBlock and nosqlbench, 2018 to 2023.

Inside, a nanosecond is ``rate.permits x ratio's denominator`` units and a permit costs ``rate.period_ns x ratio's
denominator``: whole numbers, so nothing is lost to rounding however often the pool is refilled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.rate import Rate, as_float, ceil_div, exact
from aiorate.schedulers.interface import check_ask, check_ns, check_start, check_window

if TYPE_CHECKING:
    from aiorate.rate import Number

__all__ = ["TokenPool"]

_LEAST_POOL_NS = 1_000_000


class TokenPool:
    """Pay now from a pool of two permits or 1 ms of them, whichever is more, times ``burst``.

    ``burst`` is the ratio (1 or more) of the fastest to the plain rate: while there is a backlog, permits come at
    ``burst x rate``. ``pool`` sets the size of the active pool in ns. Starts with one permit. A request larger than the
    pool is granted when the pool is full, and the rest is owed: those behind wait for it.

    `refill`, `take_up_to`, `restart`, `apply` and the whole numbers `active`, `waiting`, `max_active` and
    `max_over_active` are the original's, in ns. `take` and `peek` refill by themselves, as a filler of infinite
    frequency would have; the two ways of use are not meant to be mixed on one pool.
    """

    __slots__ = (
        "_a",
        "_burst",
        "_cost",
        "_extra",
        "_full",
        "_last",
        "_over",
        "_pool",
        "_unit",
        "_w",
        "max_active",
        "max_over_active",
        "rate",
    )
    max_permits: int | None = None
    refundable = True

    def __init__(self, rate: Rate | str | Number, burst: Number = 1.0, pool: int | None = None, *, start: int | None = None) -> None:
        check_start(start)
        if pool is not None:
            check_ns("TokenPool(pool)", pool, least=1)
        self._pool = pool
        self._last = start
        self._size(Rate.of(rate), _burst_of(burst))
        self._a = self._cost  # one permit: the first caller does not wait
        self._w = 0

    def _size(self, rate: Rate, burst: tuple[int, int]) -> None:
        """Derive the sizes of the pools; what they hold is left alone."""
        num, den = burst
        self.rate, self._burst = rate, burst
        self._extra = num - den
        self._unit = rate.permits * den
        self._cost = rate.period_ns * den
        self.max_active = self._pool or max(_LEAST_POOL_NS, 2 * rate.interval_ns)
        """Size of the active pool, in ns."""
        try:
            # In floating point, truncated, as the original has it, so that its figures come out to the last digit.
            self.max_over_active = int(self.max_active * as_float(num, den))
        except OverflowError:
            self.max_over_active = self.max_active * num // den
        """Size of active and burst pool together, in ns."""
        # Where a permit is no whole number of ns, max_active truncates; two whole permits must fit in all the same.
        self._full = self._pool * self._unit if self._pool else max(_LEAST_POOL_NS * self._unit, 2 * self._cost)
        self._over = self._full // den * num

    @property
    def burst(self) -> float:
        """The burst ratio."""
        return as_float(*self._burst)

    @property
    def active(self) -> int:
        """Tokens for the taking, active and burst, in ns rounded down; negative: what is owed."""
        return self._a // self._unit

    @property
    def waiting(self) -> int:
        """Tokens that found no room in the active pool, in ns rounded down: the backlog."""
        return self._w // self._unit

    @property
    def batch(self) -> int:
        """How many permits may be handed out without asking for each: 200 us worth, half the pool, or 256."""
        return min(self.rate.permits_in(200_000), self._full // (2 * self._cost), 256)

    @property
    def spilled(self) -> int:
        """The waiting pool: schedule not used so far, which returns only if burst is above 1."""
        return self.waiting

    # By instants: for the limiter.

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if type(permits) is not int or permits < 1 or type(now) is not int or not (since is None or type(since) is int):
            check_ask("take()", permits, now, since)
        return self.book(permits, now, since)

    def book(self, permits: int, now: int, since: int | None = None) -> int:
        """`take`, for a caller that has checked the arguments."""
        if since is None or since > now:
            last = self._last
            if not self._extra and last is not None and last <= now:
                # The common case by hand: nobody waited, and no tokens return from the waiting pool.
                a = self._a + (now - last) * self._unit
                excess = a - self._full
                cost = permits * self._cost
                if excess >= 0:
                    if excess >= self._unit or cost < self._full:  # filled within the last ns: on time, as in booked_from()
                        self._w += excess
                        a = self._full
                    self._a = a - cost
                    self._last = now
                    return now
                a -= cost
                if a >= 0:
                    self._a = a
                    self._last = now
                    return now
            since = now
        at, last, a, w = self._plan(permits, now, since)
        if at <= now:
            self._last, self._a, self._w = last, a - permits * self._cost, w
        return at

    def peek(self, permits: int, now: int) -> int:
        check_ask("peek()", permits, now)
        return self._plan(permits, now, now)[0]

    def _plan(self, permits: int, now: int, since: int) -> tuple[int, int, int, int]:
        """When the request is scheduled, and the pools as they stand then: refilled up to when, active, waiting."""
        last = self._last
        if last is None:
            last = self._last = now
        a, w = self._a, self._w
        if a > self._over:  # the pool was shrunk: the excess waits, or a new rate would be a free burst
            a, w = self._over, w + a - self._over
        need = permits * self._cost
        if need > self._full:
            need = self._full
        if since > last:
            # All at once: nobody was waiting, so what overflows is backlog.
            before = a, w
            a, w = self._refilled(a, w, (since - last) * self._unit)
            if need == self._full <= a:
                earlier = self._refilled(*before, (since - 1 - last) * self._unit)
                if earlier[0] < need:  # it fills within the last ns: on time, as in booked_from()
                    a, w = earlier
                    since -= 1
            last = since
        if a < need:
            # Only as far as the request needs: a late filler must not overflow the pool.
            fresh = self._fresh_for(a, w, need)
            ns = ceil_div(fresh, self._unit)
            if last + ns > now:
                return last + ns, last, a, w
            a, w = self._refilled(a, w, fresh)
            a += ns * self._unit - fresh  # the rest of a ns is not spilled, or requests for a full pool would drift
            last += ns
        elif now < last:
            # The clock went back: what was earned since then does not count yet.
            return max(since, last - (a - need) // self._unit), last, a, w
        return max(last, since), last, a, w

    def _refilled(self, a: int, w: int, fresh: int) -> tuple[int, int]:
        """The pools after so many fresh tokens, as if they had come one by one and had not been used."""
        extra = self._extra
        if not extra:
            # Nothing returns: what does not fit waits, and what had found room before the pool shrunk.
            a += fresh
            return (a, w) if a <= self._full else (self._full, w + a - self._full)
        num, den = self._burst
        if a > self._over:  # the pool was shrunk: the excess waits
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
        # 3. Full: fresh tokens wait, and return at the pace of the burst ratio until the burst pool is full too.
        w += fresh
        if fresh:
            moved = min(self._over - a, w, fresh * extra // den)
            a, w = a + moved, w - moved
        return a, w

    def _fresh_for(self, a: int, w: int, need: int) -> int:
        """How many fresh tokens it takes until the pool holds need, which is no more than full."""
        num, den = self._burst
        extra = self._extra
        if extra and w > 0:
            x = ceil_div((need - a) * den, num)
            dry = w * den // extra
            if x <= dry:
                return x
            return dry + (need - a - dry - dry * extra // den)
        return need - a

    def give_back(self, permits: int, now: int) -> None:
        """Put tokens back, up to the size of the pool."""
        check_ask("give_back()", permits, now)
        self._a = max(self._a, min(self._a + permits * self._cost, self._over))

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate; the pools keep their nanoseconds, and a debt its duration."""
        self._change(Rate.of(rate), self._burst, now)

    def lag(self, now: int) -> int:
        """The waiting pool, in ns."""
        last = now if self._last is None else self._last
        return self._refilled(self._a, self._w, max(0, now - last) * self._unit)[1] // self._unit

    def bound(self, window: int, largest: int = 1) -> int:
        """``max(pool, largest) + burst x rate x window``, where the pool is in permits and includes the burst pool."""
        check_window(window, largest)
        owed = max(0, largest * self._cost - self._full)  # a larger request is granted on credit for the rest
        return (self._over + owed + window * self.rate.permits * self._burst[0]) // self._cost

    # By tokens: the arithmetic of the original, driven by hand.

    def refill(self, ns: int) -> int:
        """Add so many fresh tokens; returns active + waiting.

        They fill the active pool, the rest waits; then up to ``min(ns / max_active, 1) x burst pool`` waiting tokens
        return, the fresh ones included.
        """
        check_ns("refill()", ns)
        unit = self._unit
        add = min(ns * unit, max(self.max_active * unit - self._a, 0))
        self._a += add
        self._w += ns * unit - add
        # In floating point and truncated, as the original has it: it may return nothing for a tiny refill.
        allowed = int(min(as_float(ns, self.max_active), 1.0) * (self.max_over_active - self.max_active))
        moved = min(self.max_over_active * unit - self._a, allowed * unit, self._w)
        self._a += moved
        self._w -= moved
        return self.active + self.waiting

    def take_up_to(self, ns: int) -> int:
        """Take so many tokens or as many as there are; returns how many."""
        check_ns("take_up_to()", ns)
        taken = min(ns, max(self.active, 0))
        self._a -= taken * self._unit
        return taken

    def restart(self, now: int | None = None) -> int:
        """Empty both pools (a debt stays) and forget the time until now; returns active + waiting as they were."""
        had = self.active + self.waiting
        self._a, self._w = min(self._a, 0), 0
        if now is not None and self._last is not None:
            self._last = max(self._last, now)
        return had

    def apply(self, rate: Rate | str | Number, burst: Number, now: int | None = None) -> None:
        """Change rate and ratio, as from ``now``; the pools keep what they hold, and a ``pool`` given in ns its size."""
        self._change(Rate.of(rate), _burst_of(burst), now)

    def _change(self, rate: Rate, burst: tuple[int, int], now: int | None) -> None:
        if now is not None:
            if self._last is None:
                self._last = now
            elif now > self._last:
                self._a, self._w = self._refilled(self._a, self._w, (now - self._last) * self._unit)
                self._last = now
        old = self._unit
        self._size(rate, burst)
        # Rounded down: no credit is given, and a debt grows by less than a unit.
        self._a, self._w = self._a * self._unit // old, self._w * self._unit // old

    def __repr__(self) -> str:
        return f"TokenPool({str(self.rate)!r}, burst={self.burst:g}, active={self.active}, waiting={self.waiting})"


def _burst_of(burst: Number) -> tuple[int, int]:
    num, den = exact(burst, "TokenPool(burst)")
    if num < den:
        raise ValueError(f"TokenPool(burst={burst!r}) is a ratio and must be 1 or more; 1 means no catching up.")
    return num, den
