"""Rate limiting for asyncio: exact, fair, and safe to cancel.

>>> limiter = Limiter("100/s")
>>> await limiter.acquire()       # or: async with limiter: ...
"""

from typing import TYPE_CHECKING

from aiorate.clock import Clock
from aiorate.errors import LimiterClosed, LimiterError, LineFull, WaitTooLong
from aiorate.limiter import Limiter
from aiorate.rate import Rate, RateSpec
from aiorate.schedulers import (
    AllOf,
    BurstCompensation,
    BurstRatio,
    CalendarWindow,
    Scheduler,
    SlidingWindow,
    SmoothBursty,
    SmoothWarmingUp,
    TicksAccumulator,
    TokenBucket,
    TokenPool,
)

if TYPE_CHECKING:
    from aiorate.statistics import Slot, Statistics

__all__ = [
    "AllOf",
    "BurstCompensation",
    "BurstRatio",
    "CalendarWindow",
    "Clock",
    "Limiter",
    "LimiterClosed",
    "LimiterError",
    "LineFull",
    "Rate",
    "RateSpec",
    "Scheduler",
    "SlidingWindow",
    "Slot",
    "SmoothBursty",
    "SmoothWarmingUp",
    "Statistics",
    "TicksAccumulator",
    "TokenBucket",
    "TokenPool",
    "WaitTooLong",
]


def __getattr__(name: str) -> object:
    if name in ("Slot", "Statistics"):  # dataclasses takes longer to import than the rest of aiorate
        from aiorate import statistics

        return getattr(statistics, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
