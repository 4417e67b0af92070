"""Room for so many at a time: the scheduler of `max_concurrency`, whose permits come back when somebody leaves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aiorate.rate import Rate
from aiorate.schedulers.interface import NOBODY_KNOWS, Scheduler, check_ask, check_give_back

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Room"]


class Room(Scheduler):
    """Grants what is free, and refuses until it is given back. Time changes nothing.

    In a child process after a fork it is empty: who is inside is inside in the parent, and leaves there.
    """

    __slots__ = ("_process", "holder", "max_permits", "rate", "used")

    books_since: bool = False

    def __init__(self, size: int) -> None:
        self.max_permits: int | None = size
        self.rate: Rate = Rate(size)  # of no meaning, but every scheduler has one
        self.used: int = 0
        self.holder: Callable[[], object | None] | None = None
        """Who has the only place, if there is one: a weak reference, since who is collected leaves."""
        self._process = os.getpid()
        self.receipts = True

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        check_ask("take()", permits, now, since, self.max_permits)
        at = self.peek(permits, now)
        if at <= now:
            self.used += permits
        return at

    def peek(self, permits: int, now: int) -> int:
        assert self.max_permits is not None
        if self._process != os.getpid():
            self._process, self.used, self.holder = os.getpid(), 0, None
        return now if self.used + permits <= self.max_permits else NOBODY_KNOWS

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Whoever leaves makes room."""
        check_give_back(permits, now, taken)
        self.holder = None
        self.used = max(0, self.used - permits)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Refused: a room has a size, and no rate."""
        raise RuntimeError("set_rate(): a limit of concurrency has no rate.")

    def lag(self, now: int) -> int:
        return 0

    def bound(self, window: int, largest: int = 1) -> int | None:
        """None: whoever is quick may leave and enter any number of times."""
        return None

    def __repr__(self) -> str:
        return f"{self.used} of {self.max_permits} places taken"
