"""Pools: active, burst and waiting pools of time, and how they are refilled.

A token is a nanosecond of schedule. Fresh tokens fill the active pool, what does not fit waits, and a burst ratio above
1 lets waiting tokens return, pro rata to the time that has just passed. Consumers see one pool, active and burst.
Knows nothing of clocks, loops or who waits. From the token pools of EngineBlock and nosqlbench, 2018 to 2023.

Inside, a nanosecond is ``rate.permits x ratio's denominator`` units and a permit costs ``rate.period_ns x ratio's
denominator``: whole numbers, so nothing is lost to rounding however often the pool is refilled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.rate import Rate, as_float, ceil_div, exact
from aiorate.schedulers.interface import check_ns, check_start

if TYPE_CHECKING:
    from aiorate.rate import Number

__all__ = ["Pools"]

_LEAST_POOL_NS = 1_000_000
_EVEN = 1, 1  # of all pools that catch up at the plain rate


class Pools:
    """The arithmetic of the original, driven by hand: tokens are put in and taken out."""

    __slots__ = (
        "_a",
        "_burst",
        "_cost",
        "_extra",
        "_full",
        "_last",
        "_over",
        "_plain",
        "_pool",
        "_unit",
        "_w",
        "rate",
    )

    def __init__(self, rate: Rate | str | Number, burst: Number = 1.0, pool: int | None = None, *, start: int | None = None) -> None:
        check_start(start)
        if pool is not None:
            check_ns("TokenPool(pool)", pool, least=1)
        self._pool = pool
        self._last = start
        self._size(Rate.of(rate), _burst_of(burst))
        # Active (and burst) and waiting tokens, in units.
        self._a = self._cost  # one permit: the first caller does not wait
        self._w = 0

    def _size(self, rate: Rate, burst: tuple[int, int]) -> None:
        """Derive the sizes of the pools; what they hold is left alone."""
        num, den = burst
        self.rate, self._burst = rate, burst
        self._extra = num - den
        self._unit, self._cost = (rate.permits * den, rate.period_ns * den) if den > 1 else (rate.permits, rate.period_ns)
        # Where a permit is no whole number of ns, max_active truncates; two whole permits must fit in all the same.
        self._full = self._pool * self._unit if self._pool else max(_LEAST_POOL_NS * self._unit, 2 * self._cost)
        self._over = self._full // den * num if self._extra else self._full
        self._plain = False  # whether time fills the active pool, which is no more than full, and nothing else happens

    @property
    def max_active(self) -> int:
        """Size of the active pool, in ns."""
        return self._pool or max(_LEAST_POOL_NS, 2 * self.rate.interval_ns)

    @property
    def max_over_active(self) -> int:
        """Size of active and burst pool together, in ns."""
        num, den = self._burst
        try:
            # In floating point, truncated, as the original has it, so that its figures come out to the last digit.
            return int(self.max_active * as_float(num, den))
        except OverflowError:
            return self.max_active * num // den

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


def _burst_of(burst: Number) -> tuple[int, int]:
    num, den = exact(burst, "TokenPool(burst)")
    if num < den:
        raise ValueError(f"TokenPool(burst={burst!r}) is a ratio and must be 1 or more; 1 means no catching up.")
    return (num, den) if num > den else _EVEN
