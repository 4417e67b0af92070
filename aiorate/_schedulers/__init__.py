"""Schedulers: pure state machines in whole nanoseconds. `aiorate._schedulers.interface` has their interface and its laws.

``start`` of a strategy is the instant (ns) from which its schedule runs; None: the first instant that it is given.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate._schedulers.all_of import AllOf
    from aiorate._schedulers.calendar_window import CalendarWindow
    from aiorate._schedulers.interface import Scheduler
    from aiorate._schedulers.sliding_window import SlidingWindow
    from aiorate._schedulers.smooth import SmoothBursty, SmoothWarmingUp
    from aiorate._schedulers.ticks import BurstCompensation, BurstRatio, TicksAccumulator
    from aiorate._schedulers.token_bucket import TokenBucket
    from aiorate._schedulers.token_pool import TokenPool

__all__ = [
    "AllOf",
    "BurstCompensation",
    "BurstRatio",
    "CalendarWindow",
    "Scheduler",
    "SlidingWindow",
    "SmoothBursty",
    "SmoothWarmingUp",
    "TicksAccumulator",
    "TokenBucket",
    "TokenPool",
]

_WHERE = {
    "AllOf": "all_of",
    "BurstCompensation": "ticks",
    "BurstRatio": "ticks",
    "CalendarWindow": "calendar_window",
    "Scheduler": "interface",
    "SlidingWindow": "sliding_window",
    "SmoothBursty": "smooth",
    "SmoothWarmingUp": "smooth",
    "TicksAccumulator": "ticks",
    "TokenBucket": "token_bucket",
    "TokenPool": "token_pool",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
