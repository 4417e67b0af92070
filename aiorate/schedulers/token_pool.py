"""TokenPool: the scheduler on top of the pools, which refills them with the time that has passed.

Knows nothing of clocks, loops or who waits.
"""

from __future__ import annotations

from aiorate.rate import Rate, ceil_div
from aiorate.schedulers.interface import check_ask, check_window
from aiorate.schedulers.pools import Pools

__all__ = ["TokenPool"]


class TokenPool(Pools):
    """Pay now from a pool of two permits or 1 ms of them, whichever is more, times ``burst``.

    ``burst`` is the ratio (1 or more) of the fastest to the plain rate: while there is a backlog, permits come at
    ``burst x rate``. ``pool`` sets the size of the active pool in ns. Starts with one permit. A request larger than the
    pool is granted when the pool is full, and the rest is owed: those behind wait for it.

    `refill`, `take_up_to`, `restart`, `apply` and the whole numbers `active`, `waiting`, `max_active` and
    `max_over_active` are the original's, in ns. `take` and `peek` refill by themselves, as a filler of infinite
    frequency would have; the two ways of use are not meant to be mixed on one pool.
    """

    __slots__ = ()
    max_permits: int | None = None
    refundable = True

    @property
    def batch(self) -> int:
        """How many permits may be handed out without asking for each: 200 us worth, half the pool, or 256."""
        return min(self.rate.permits_in(200_000), self._full // (2 * self._cost), 256)

    @property
    def spilled(self) -> int:
        """The waiting pool: schedule not used so far, which returns only if burst is above 1."""
        return self.waiting

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if type(permits) is not int or permits < 1 or type(now) is not int or not (since is None or type(since) is int):
            check_ask("take()", permits, now, since)
        return self.book(permits, now, since)

    def book(self, permits: int, now: int, since: int | None = None) -> int:
        """`take`, for a caller that has checked the arguments."""
        last: int = self._last  # type: ignore[assignment]  # or nothing is plain yet
        if self._plain and last <= now:
            # By hand: no tokens return from the waiting pool.
            a, cost, full = self._a, permits * self._cost, self._full
            if since is None or since > now:
                # Nobody waited: what overflows is backlog.
                a += (now - last) * self._unit
                if a >= full:
                    if a - full >= self._unit or cost < full:  # filled within the last ns: on time, as in booked_from()
                        self._w += a - full
                        a = full
                    self._a = a - cost
                    self._last = now
                    return now
                if a >= cost:
                    self._a = a - cost
                    self._last = now
                    return now
            else:
                # A line that is served without a break: once somebody waits, refilled only as far as each needs.
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
                    self._a = a - cost
                    self._last = last
                    return last
        since = now if since is None or since > now else since
        at, last, a, w = self._plan(permits, now, since)
        if at <= now:
            self._last, self._a, self._w = last, a - permits * self._cost, w
            self._plain = not self._extra
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

    def __repr__(self) -> str:
        return f"TokenPool({str(self.rate)!r}, burst={self.burst:g}, active={self.active}, waiting={self.waiting})"
