"""Rate limiting for asyncio and trio: exact, fair, and safe to cancel.

>>> limiter = Limiter("100/s")
>>> await limiter.acquire()       # or: async with limiter: ...
"""

from importlib import import_module
from typing import TYPE_CHECKING

from aiorate.errors import EngineUnavailable, LimiterClosed, LimiterError, LineFull, WaitTooLong
from aiorate.limiter import SCOPES, Limiter
from aiorate.rate import Rate
from aiorate.waiting.clock import Clock

if TYPE_CHECKING:
    from aiorate.budget import Budget, Lease
    from aiorate.events import Event
    from aiorate.keyed import KeyedLimiter
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
    from aiorate.slots import Slot
    from aiorate.spec import RateSpec
    from aiorate.statistics import Statistics

__all__ = [
    "AllOf",
    "Budget",
    "BurstCompensation",
    "BurstRatio",
    "CalendarWindow",
    "Clock",
    "EngineUnavailable",
    "Event",
    "KeyedLimiter",
    "Lease",
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


def _spans_process(limiter: Limiter, clock: Clock | None, precise: bool) -> None:
    from aiorate.process import ProcessLimiter

    ProcessLimiter.adopt(limiter, clock, precise)


SCOPES["process"] = _spans_process

# Names that not every program needs are imported at their first use.
_WHERE = {
    "Budget": "budget",
    "Event": "events",
    "KeyedLimiter": "keyed",
    "Lease": "budget",
    "RateSpec": "spec",
    "Slot": "slots",
    "Statistics": "statistics",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"aiorate.{_WHERE.get(name, 'schedulers')}"), name)
    globals()[name] = value
    return value
