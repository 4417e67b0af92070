"""Rate limiting for asyncio and trio: exact, fair, and safe to cancel.

>>> limiter = Limiter("100/s")
>>> await limiter.acquire()       # or: async with limiter: ...
"""

from importlib import import_module
from typing import TYPE_CHECKING

from aiorate._errors import EngineUnavailable, LimiterClosed, LimiterError, LineFull, WaitTooLong
from aiorate._limiters.limiter import Limiter
from aiorate._loops.loop import Clock
from aiorate._rate import Rate
from aiorate._schedulers.interface import Scheduler
from aiorate._schedulers.token_bucket import TokenBucket
from aiorate._schedulers.token_pool import TokenPool

if TYPE_CHECKING:
    from aiorate._events import Event, Waited
    from aiorate._limiters.budget import Budget, KeyedBudget, Lease
    from aiorate._limiters.keyed import KeyedLimiter
    from aiorate._limiters.slots import Slot
    from aiorate._limiters.statistics import Statistics
    from aiorate._schedulers.all_of import AllOf
    from aiorate._schedulers.calendar_window import CalendarWindow
    from aiorate._schedulers.smooth import SmoothBursty, SmoothWarmingUp
    from aiorate._schedulers.ticks import BurstCompensation, BurstRatio, TicksAccumulator
    from aiorate._schedulers.window import SlidingWindow
    from aiorate._spec import RateSpec

__all__ = [
    "AllOf",
    "Budget",
    "BurstCompensation",
    "BurstRatio",
    "CalendarWindow",
    "Clock",
    "EngineUnavailable",
    "Event",
    "KeyedBudget",
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
    "Waited",
]


# Names that not every program needs are imported at their first use.
_WHERE = {
    "_events": ("Event", "Waited"),
    "_limiters.budget": ("Budget", "KeyedBudget", "Lease"),
    "_limiters.keyed": ("KeyedLimiter",),
    "_limiters.slots": ("Slot",),
    "_limiters.statistics": ("Statistics",),
    "_schedulers.all_of": ("AllOf",),
    "_schedulers.calendar_window": ("CalendarWindow",),
    "_schedulers.smooth": ("SmoothBursty", "SmoothWarmingUp"),
    "_schedulers.ticks": ("BurstCompensation", "BurstRatio", "TicksAccumulator"),
    "_schedulers.window": ("SlidingWindow",),
    "_spec": ("RateSpec",),
}


if not TYPE_CHECKING:  # a checker would take any name for one that exists

    def __getattr__(name: str) -> object:
        for module, names in _WHERE.items():
            if name in names:
                value = globals()[name] = getattr(import_module(f"aiorate.{module}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
