"""Rate limiting for asyncio and trio: exact, fair, and safe to cancel.

>>> limiter = Limiter("100/s")
>>> await limiter.acquire()       # or: async with limiter: ...
"""

from importlib import import_module
from typing import TYPE_CHECKING

from aiorate.errors import EngineUnavailable, LimiterClosed, LimiterError, LineFull, WaitTooLong
from aiorate.limiter import Limiter
from aiorate.rate import Rate
from aiorate.waiting.clock import Clock

if TYPE_CHECKING:
    from aiorate.budget import Budget
    from aiorate.events import Event
    from aiorate.keyed import KeyedLimiter
    from aiorate.keyed_budget import KeyedBudget
    from aiorate.lease import Lease
    from aiorate.schedulers.all_of import AllOf
    from aiorate.schedulers.calendar_window import CalendarWindow
    from aiorate.schedulers.interface import Scheduler
    from aiorate.schedulers.sliding_window import SlidingWindow
    from aiorate.schedulers.smooth import SmoothBursty, SmoothWarmingUp
    from aiorate.schedulers.ticks import BurstCompensation, BurstRatio, TicksAccumulator
    from aiorate.schedulers.token_bucket import TokenBucket
    from aiorate.schedulers.token_pool import TokenPool
    from aiorate.slots import Slot
    from aiorate.spec import RateSpec
    from aiorate.statistics import Statistics
    from aiorate.waited import Waited

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
    "AllOf": "schedulers.all_of",
    "Budget": "budget",
    "BurstCompensation": "schedulers.ticks",
    "BurstRatio": "schedulers.ticks",
    "CalendarWindow": "schedulers.calendar_window",
    "Event": "events",
    "KeyedBudget": "keyed_budget",
    "KeyedLimiter": "keyed",
    "Lease": "lease",
    "RateSpec": "spec",
    "Scheduler": "schedulers.interface",
    "SlidingWindow": "schedulers.sliding_window",
    "Slot": "slots",
    "SmoothBursty": "schedulers.smooth",
    "SmoothWarmingUp": "schedulers.smooth",
    "Statistics": "statistics",
    "TicksAccumulator": "schedulers.ticks",
    "TokenBucket": "schedulers.token_bucket",
    "TokenPool": "schedulers.token_pool",
    "Waited": "waited",
}


if not TYPE_CHECKING:  # a checker would take any name for one that exists

    def __getattr__(name: str) -> object:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"aiorate.{_WHERE[name]}"), name)
        globals()[name] = value
        return value
