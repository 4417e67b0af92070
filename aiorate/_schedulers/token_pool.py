"""TokenPool: active, burst and waiting pools of time, from EngineBlock and nosqlbench, 2018 to 2023.

A token is a nanosecond of schedule. Fresh tokens fill the active pool, and the rest waits in the waiting pool. A burst ratio above
1 lets waiting tokens return, in proportion to the time that has just passed. Consumers see active and burst pool as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._rate import EVEN, Rate, as_float, duration_to_ns, ratio_of
from aiorate._schedulers.interface import check_ns
from aiorate._schedulers.token_bucket import Stored, plan_of

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import ClassVar

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

    __slots__ = ("_size",)
    _size: tuple[int, int]
    _shown: tuple[str, ...] = ("burst_ratio",)
    _least: ClassVar[tuple[int, int]] = 2, _LEAST_POOL_NS
    """The size of the active pool: in permits or, if that is more, in ns."""

    def __init__(
        self,
        rate: Rate | str | Number,
        burst_ratio: Number = 1,
        pool: int | timedelta | None = None,
        *,
        start: int | None = None,
    ) -> None:
        if pool is not None:
            if hasattr(pool, "total_seconds"):  # a timedelta, whose module takes long to import
                pool = duration_to_ns(pool, "TokenPool(pool)")
            check_ns("TokenPool(pool), if it is no timedelta,", pool, least=1)  # pyright: ignore[reportArgumentType]
        ratio = EVEN if type(burst_ratio) is int and burst_ratio == 1 else ratio_of(burst_ratio, "TokenPool(burst_ratio")
        permits, ns = self._size = (0, pool) if pool else self._least  # pyright: ignore[reportAttributeAccessIssue]
        plan = plan_of(rate if type(rate) is str else Rate.of(rate), permits, ns, ratio)
        self._setup(plan, 1, start)  # so that the first caller does not wait

    # The original's figures, in ns.

    @property
    def max_active(self) -> int:
        """Size of the active pool, in ns; truncated if a permit is a fraction of a ns, though whole permits fit in."""
        permits, ns = self._size
        return max(permits * self.rate.interval_ns, ns)

    @property
    def max_over_active(self) -> int:
        """Size of active and burst pool together, in ns."""
        return int(self.max_active * self.burst_ratio)  # floating point, so that it is the original's figure to the last digit

    @property
    def burst_ratio(self) -> float:
        """The fastest rate divided by the plain rate."""
        return as_float(*self._plan[4:])

    @property
    def active(self) -> int:
        """Tokens in the active and burst pool, in ns rounded down. Below 0 it is a debt."""
        return self._level()[1] // self._plan[0]

    @property
    def waiting(self) -> int:
        """The backlog: tokens that found no room in the active pool, in ns rounded down."""
        return self._level()[2] // self._plan[0]

    # The original's steps, for programs that drive a pool by hand.

    def refill(self, ns: int) -> int:
        """Add ``ns`` fresh tokens; returns active + waiting.

        Fresh tokens fill the active pool, and the rest joins the waiting ones. Then up to ``min(ns / max_active, 1) x burst pool``
        waiting tokens return.
        """
        check_ns("refill()", ns, least=0)
        last, a, w = self._level()
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
        (last, a, w), unit = self._level(), self._plan[0]
        taken = min(ns, max(a // unit, 0))
        self._keep(last, a - taken * unit, w)
        return taken

    def restart(self, now: int | None = None) -> int:  # type: ignore[override]  # the original returns a number
        """Empty both pools and forget the time until now. A debt stays. Returns the active + waiting ns before it."""
        had = self.active + self.waiting
        last, a, _ = self._level()
        self._latest = None
        if now is not None and last is not None:
            last = max(last, now)
            self._note_level(now, self._plan[3])  # as if full: earlier takes do not fill the emptied pool
        self._keep(last, min(a, 0), 0)
        return had

    def apply(self, rate: Rate | str | Number, burst_ratio: Number, now: int | None = None) -> None:
        """Change rate and ratio as from ``now``. The pools keep their contents, and a ``pool`` given in ns keeps its size."""
        self._change(plan_of(Rate.of(rate), *self._size, ratio_of(burst_ratio, "TokenPool(burst_ratio")), 0, now)

    # The scheduler.

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate. The pools keep their nanoseconds, and a debt its duration."""
        self._change(plan_of(Rate.of(rate), *self._size, self._plan[4:]), 0, now)

    def lag(self, now: int) -> int:
        """The waiting pool, in ns."""
        return self._level(now)[2] // self._plan[0]


class PlainPool(TokenPool):
    """The pool of a plain rate, as in ``Limiter("9/s")``. It stores one permit, or 1 ms of them, so that a server that allows 10 a second
    never sees more than 10."""

    __slots__ = ()
    _least = 1, _LEAST_POOL_NS


PlainPool.__name__ = "TokenPool"  # as users know it
