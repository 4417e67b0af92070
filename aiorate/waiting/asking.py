"""The meter of a strategy that is no straight line: each grab asks the scheduler for one permit."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from aiorate.meter import FAR

if TYPE_CHECKING:
    from aiorate.schedulers.interface import Scheduler
    from aiorate.waiting.clock import ReadClock

__all__ = ["AskingMeter"]


class AskingMeter:
    """As `aiorate.meter.Meter`, which says what its members mean."""

    __slots__ = ("_scheduler", "grabs", "offset", "read", "since", "try_until", "until")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.until: int = 0
        self.try_until: int = 0
        self.offset: int = 0
        self.since: int = FAR
        self.read: ReadClock = monotonic_ns
        self.grabs: int = 0

    def grab(self, trying: bool = False) -> bool:
        """Take one permit if the scheduler grants it and the meter is open."""
        until = self.try_until if trying else self.until
        if not until:
            return False
        now = self.read() - self.offset
        if now >= until or self._scheduler.take(1, now, None if now < self.since else self.since) > now:
            return False
        self.grabs += 1
        return True
