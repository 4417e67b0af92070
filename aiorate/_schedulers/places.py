"""Places: the scheduler of `max_concurrency`. A permit is a place, which comes back when its holder leaves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aiorate._rate import Rate
from aiorate._schedulers.interface import NOBODY_KNOWS, Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._schedulers.interface import Standing


class Visit(int):
    """The permits of a request that also takes a place of each limiter on its way, and keeps it until it leaves."""

    __slots__ = ()


class Places(Scheduler):
    """Grants each `Visit` one free place, whatever it takes of the limit above. Other requests change nothing.

    In a child process after a fork all places are free, because their holders are in the parent and leave there.
    """

    __slots__ = ("_process", "holder", "rate", "size", "used")

    books_since: bool = False

    def __init__(self, size: int) -> None:
        self.size: int = size
        self.rate: Rate = Rate(size)  # without meaning, but every scheduler has one
        self.used: int = 0
        self.holder: Callable[[], object | None] | None = None
        """Of a single place: a weak reference to its holder, which leaves if it is collected."""
        self._process = os.getpid()

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at = self.peek(permits, now)
        if at <= now and isinstance(permits, Visit):
            self.used += 1
        return at

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        if self._process != os.getpid():
            self._process, self.used, self.holder = os.getpid(), 0, None
        return now if not isinstance(permits, Visit) or (self.used < self.size and not ahead) else NOBODY_KNOWS

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        if isinstance(permits, Visit):
            self.holder = None
            self.used = max(0, self.used - 1)

    def available(self, now: int) -> int:
        self.peek(1, now)
        return self.size - self.used

    def _standings(self, now: int) -> list[Standing]:
        return []

    def reset(self, now: int) -> None:
        """Free all places: nobody is left who could leave."""
        self.used, self.holder = 0, None

    def set_rate(self, rate: Rate, now: int) -> None:
        raise RuntimeError("set_rate(): a limit of concurrency has no rate.")

    def bound(self, window: int, largest: int = 1) -> int | None:
        """None: a place may be taken and left any number of times."""
        return None

    def __repr__(self) -> str:
        return f"{self.used} of {self.size} places taken"
