"""The meter of a strategy without a straight line: each grab asks the scheduler for one permit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._meter import PureMeter

if TYPE_CHECKING:
    from aiorate._schedulers.interface import Scheduler

__all__ = ["AskingMeter"]


class AskingMeter(PureMeter):
    """A meter without a line."""

    __slots__ = ("_scheduler",)
    grabs: int

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def grab(self, trying: bool = False, /) -> bool:
        """Take one permit if the scheduler grants it and the meter is open."""
        until = self.try_until if trying else self.until
        if not until:
            return False
        now = self.read() - self.offset
        if now >= until or self._scheduler.take(1, now, None if now < self.since else self.since) > now:
            return False
        self.grabs += 1
        return True
