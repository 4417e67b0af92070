"""Every strategy by its name, for a given rate, with parameters that show its purpose."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import aiorate
from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate import Rate, Scheduler

__all__ = ["NAMES", "make"]


def make(name: str, rate: Rate, *, origin: int | None = None) -> Scheduler:
    """The strategy of that name, in upper or lower case. ``origin`` is that of `aiorate.CalendarWindow`.

    Raises ValueError for any other name, and for a rate that the strategy refuses.
    """
    if name.lower() == "calendarwindow":
        return aiorate.CalendarWindow(rate, "UTC", origin=origin)
    for known, build in _BUILDERS.items():
        if known.lower() == name.lower():
            return build(rate)
    raise ValueError(f"{name!r} is not a strategy; there are {', '.join(NAMES)}.")


def _burst(rate: Rate) -> int:
    """The permits of a tenth of a second."""
    return max(1, rate.permits_in(NS_PER_SECOND // 10))


def _all_of(rate: Rate) -> Scheduler:
    """The rate's permits in any period, and inside it at most twice the rate."""
    twice = aiorate.Rate(2 * rate.permits, Fraction(rate.period_ns, NS_PER_SECOND))
    return aiorate.AllOf(aiorate.SlidingWindow(rate), aiorate.TokenBucket(twice, burst=_burst(rate)))


def _warming_up(rate: Rate) -> Scheduler:
    """Warm after a second, or after ten requests at a slow rate."""
    return aiorate.SmoothWarmingUp(rate, warmup=Fraction(max(NS_PER_SECOND, 10 * rate.interval_ns), NS_PER_SECOND))


_BUILDERS: dict[str, Callable[[Rate], Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TicksAccumulator": aiorate.TicksAccumulator,
    "BurstCompensation": aiorate.BurstCompensation,
    "BurstRatio": lambda rate: aiorate.BurstRatio(rate, ratio=1.5),
    "SmoothBursty": aiorate.SmoothBursty,
    "SmoothWarmingUp": _warming_up,
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=_burst(rate)),
    "SlidingWindow": aiorate.SlidingWindow,
    "AllOf": _all_of,
}
NAMES = (*_BUILDERS, "CalendarWindow")
