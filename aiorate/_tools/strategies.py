"""Every strategy by its name, for a rate as it is written on the command line, with parameters that show its purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiorate

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate import Scheduler


def make(name: str | None, rate: str, *, burst: int | None = None, origin: int | None = None) -> Scheduler:
    """Make the strategy of that name: a TokenPool by default, or a TokenBucket if there is a ``burst``.

    ``origin`` is that of a `CalendarWindow`. Raises ValueError for a rate that the strategy refuses, and for a burst that it lacks.
    """
    if burst is not None:
        if name not in (None, "TokenBucket"):
            raise ValueError(f"--burst is that of a TokenBucket; {name} has none.")
        return aiorate.TokenBucket(rate, burst=burst)
    if name == "CalendarWindow":
        return aiorate.CalendarWindow(rate, "UTC", origin=origin)  # of months too, which no other strategy has
    return _MAKERS[name or "TokenPool"](rate)


def _tenth(rate: str) -> int:
    """The permits of a tenth of a second."""
    return max(1, int(aiorate.Rate.of(rate).per_second / 10))


_MAKERS: dict[str, Callable[[str], Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=_tenth(rate)),
    "SlidingWindow": aiorate.SlidingWindow,
    "AllOf": lambda rate: aiorate.AllOf(aiorate.SlidingWindow(rate), aiorate.TokenBucket(rate, burst=_tenth(rate))),
    "TicksAccumulator": aiorate.TicksAccumulator,
    "BurstCompensation": aiorate.BurstCompensation,
    "BurstRatio": lambda rate: aiorate.BurstRatio(rate, ratio=1.5),
    "SmoothBursty": aiorate.SmoothBursty,
    # Warm after a second, or after ten requests at a slow rate.
    "SmoothWarmingUp": lambda rate: aiorate.SmoothWarmingUp(rate, warmup=max(1.0, 10 / aiorate.Rate.of(rate).per_second)),
}
NAMES = (*_MAKERS, "CalendarWindow")
