"""Schedulers: pure state machines in whole nanoseconds. See `aiorate.schedulers.interface` for what they promise."""

from aiorate.schedulers.all_of import AllOf
from aiorate.schedulers.interface import Scheduler
from aiorate.schedulers.smooth import SmoothBursty, SmoothWarmingUp
from aiorate.schedulers.ticks import BurstCompensation, BurstRatio, TicksAccumulator
from aiorate.schedulers.token_bucket import TokenBucket
from aiorate.schedulers.token_pool import TokenPool
from aiorate.schedulers.window import CalendarWindow, SlidingWindow

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
