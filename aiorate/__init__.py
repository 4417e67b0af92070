"""Rate limiting for asyncio: exact, fair, and safe to cancel.

>>> limiter = Limiter("100/s")
>>> await limiter.acquire()       # or: async with limiter: ...
"""

from typing import TYPE_CHECKING

from aiorate.clock import Clock
from aiorate.errors import LimiterClosed, LimiterError, LineFull, WaitTooLong
from aiorate.limiter import Limiter
from aiorate.rate import Rate
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
from aiorate.spec import RateSpec

if TYPE_CHECKING:
    from aiorate.slots import Slot
    from aiorate.statistics import Statistics

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
    # dataclasses takes longer to import than the rest of aiorate.
    if name == "Slot":
        from aiorate.slots import Slot

        return Slot
    if name == "Statistics":
        from aiorate.statistics import Statistics

        return Statistics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
