"""TokenBucket: a bucket of permits that fills at the rate. A request takes its permits out or waits for them.

It makes the same grants as golang.org/x/time/rate without the truncation there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from aiorate._errors import check_count
from aiorate._rate import Rate
from aiorate._schedulers.interface import check_permits
from aiorate._schedulers.stored import Stored

if TYPE_CHECKING:
    from aiorate._rate import Number
    from aiorate._schedulers.stored import Plan


class TokenBucket(Stored):
    """Allow bursts of up to ``burst``, then a steady rate.

    A bucket that holds permits and refills at the rate. A request takes its permits out, or waits for them. Any window holds at most
    ``burst + rate x window``; if the bucket holds a whole period's permits, that is nearly twice the rate in the first period.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        burst: How many permits the bucket holds. A request for more can never be granted.
        initial: How many permits are in it at first. Full by default.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("max_permits",)
    rate: Rate

    def __init__(self, rate: Rate | str | Number, burst: int, initial: int | None = None, *, start: int | None = None) -> None:
        check_permits("TokenBucket(burst)", burst)
        if initial is not None:
            check_count("TokenBucket(initial)", initial)
            if initial > burst:
                raise ValueError(f"TokenBucket(initial={initial}) must be from 0 to {burst}, the burst.")
        self.max_permits: int = burst  # pyright: ignore[reportIncompatibleVariableOverride]  # a bucket has a largest request
        self._setup(_plan_of(rate if type(rate) is str else Rate.of(rate), burst), burst if initial is None else initial, start)

    @property
    def burst(self) -> int:
        """Size of the bucket in permits."""
        return self.max_permits

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate. The bucket keeps its level in permits, and so does a debt."""
        self._change(_plan_of(Rate.of(rate), self.burst), 1, now)

    def __repr__(self) -> str:
        return f"TokenBucket({str(self.rate)!r}, burst={self.burst})"


@lru_cache(256)
def _plan_of(rate: Rate | str, burst: int) -> Plan:
    rate = Rate.of(rate)
    unit, cost = rate._ticks
    full = burst * cost
    # Less than a nanosecond above full lies within the instant, and cutting it off would be drift.
    return rate, (unit, cost, full, full, 1, 1), (unit, cost, full - cost + unit - 1, full - cost)
