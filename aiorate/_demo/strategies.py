"""Every strategy by its name, for a given rate, with parameters that show its purpose."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

import aiorate
from aiorate.calendar_rate import CalendarRate
from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate import Rate, Scheduler

__all__ = ["NAMES", "code", "default_burst", "make"]


def make(name: str, rate: Rate, *, origin: int | None = None, burst: int | None = None) -> Scheduler:
    """The strategy of that name, in upper or lower case. ``origin`` is that of `aiorate.CalendarWindow`, ``burst`` of a TokenBucket.

    Raises ValueError for any other name, and for a rate that the strategy refuses.
    """
    if isinstance(rate, CalendarRate) and name.lower() != "calendarwindow":
        aiorate.Rate.parse(str(rate))  # which says what to write
    if burst is not None and name.lower() == "tokenbucket":
        return aiorate.TokenBucket(rate, burst=burst)
    if name.lower() == "calendarwindow":
        return aiorate.CalendarWindow(rate, "UTC", origin=origin)
    for known, build in _BUILDERS.items():
        if known.lower() == name.lower():
            return build(rate)
    raise ValueError(f"{name!r} is not a strategy; there are {', '.join(NAMES)}.")


def code(name: str, rate: Rate, burst: int | None = None) -> str:
    """The Python expression that makes the strategy."""
    arguments = {
        "BurstRatio": ", ratio=1.5",
        "CalendarWindow": ", 'UTC'",
        "SmoothWarmingUp": f", warmup={_shown(_warmup(rate))}",
        "TokenBucket": f", burst={default_burst(rate) if burst is None else burst}",
    }
    if name == "AllOf":
        return f"AllOf({code('SlidingWindow', rate)}, {code('TokenBucket', _twice(rate), default_burst(rate))})"
    return f"{name}({str(rate)!r}{arguments.get(name, '')})".replace("'", '"')


def _shown(number: Fraction) -> str:
    return format(Decimal(number.numerator) / number.denominator, "f")


def default_burst(rate: Rate) -> int:
    """The permits of a tenth of a second."""
    return max(1, rate.permits_in(NS_PER_SECOND // 10))


def _all_of(rate: Rate) -> Scheduler:
    """The rate's permits in any period, and inside it at most twice the rate."""
    return aiorate.AllOf(aiorate.SlidingWindow(rate), aiorate.TokenBucket(_twice(rate), burst=default_burst(rate)))


def _twice(rate: Rate) -> Rate:
    return aiorate.Rate(2 * rate.permits, Fraction(rate.period_ns, NS_PER_SECOND))


def _warming_up(rate: Rate) -> Scheduler:
    """Warm after a second, or after ten requests at a slow rate."""
    return aiorate.SmoothWarmingUp(rate, warmup=_warmup(rate))


def _warmup(rate: Rate) -> Fraction:
    return Fraction(max(NS_PER_SECOND, 10 * rate.interval_ns), NS_PER_SECOND)


_BUILDERS: dict[str, Callable[[Rate], Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TicksAccumulator": aiorate.TicksAccumulator,
    "BurstCompensation": aiorate.BurstCompensation,
    "BurstRatio": lambda rate: aiorate.BurstRatio(rate, ratio=1.5),
    "SmoothBursty": aiorate.SmoothBursty,
    "SmoothWarmingUp": _warming_up,
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=default_burst(rate)),
    "SlidingWindow": aiorate.SlidingWindow,
    "AllOf": _all_of,
}
NAMES = (*_BUILDERS, "CalendarWindow")
