"""Slots: instants at which so much may be used, as a store assigned them, and what it said is left. Exact, and without a clock."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from aiorate._rate import ceil_div
from aiorate._schedulers.interface import Scheduler

if TYPE_CHECKING:
    from aiorate._rate import Rate
    from aiorate._schedulers.calendar_window import CalendarWindow
    from aiorate._schedulers.interface import Standing


US, MS = 1_000, 1_000_000  # ns
MOST_NS = 10**19  # 317 years: the longest duration that a store can count
Limited = tuple["Rate", "int | None", "CalendarWindow | None"]  # what a `Part` is made of


class Part(Scheduler):
    """One dimension of a limit in a store: a bucket, or with a ``calendar`` so many permits in each window; and what the store said last.

    As a dimension of a budget it grants everything, because the pool grants only what was booked.
    """

    __slots__ = ("burst", "calendar", "ends", "full", "max_permits", "rate", "used")
    books_since: bool = False

    def __init__(self, rate: Rate, burst: int | None = None, calendar: CalendarWindow | None = None) -> None:
        """A ``burst`` of None is that of a rate without one: requests may be larger."""
        self.rate, self.max_permits, self.calendar = rate, burst, calendar
        self.burst: int = burst or 1
        self.forget()

    def forget(self) -> None:
        """As if the store had said nothing: it may be full."""
        self.full: int = -MOST_NS  # when the bucket is full again, if nobody takes anything
        self.used: int = 0  # of a window: permits that are taken
        self.ends: int = -MOST_NS  # and when it ends

    @property
    def every_us(self) -> float:
        """How far permits are apart, in us; 0: it is a window."""
        return 0.0 if self.calendar is not None else self.rate.period_ns / (self.rate.permits * 1000)

    def time_of(self, permits: int) -> int:
        """In ns, rounded up."""
        return ceil_div(permits * self.rate.period_ns, self.rate.permits)

    def due(self, permits: int, now: int) -> int:
        """When so many more have been taken, each as soon as it is due."""
        if self.calendar is None:
            return max(self.full, now) - self.time_of(self.burst - permits)
        windows = (self.used + permits - 1) // self.burst  # that are used up before
        return now if windows < 1 or now >= self.ends else self.ends + (windows - 1) * self.rate.period_ns

    def take(self, permits: int, now: int, *_: object, **__: object) -> int:
        return now

    def _nothing(self, *_: object, **__: object) -> None:
        """The pool counts."""

    peek = take
    give_back = charge = set_rate = bound = _nothing

    def available(self, now: int) -> int:
        return self._standings(now)[0][2]

    def _standings(self, now: int, in_hand: int = 0) -> list[Standing]:
        """With permits that are ``in_hand`` and due."""
        if self.calendar is not None:
            left, at = (max(self.burst - self.used, 0), self.ends) if now < self.ends else (self.burst, now)
        else:
            begin = self.full - self.time_of(self.burst)  # when it would be empty
            free = max((now - begin + 1) * self.rate.permits // self.rate.period_ns, 0)
            left = min(free + in_hand, self.burst)
            at = now if left >= self.burst else begin + self.time_of(free + 1)
        return [(self.burst, self.rate, left, at)]

    def _shift(self, ns: int) -> None:
        self.full -= ns
        self.ends -= ns

    def __repr__(self) -> str:
        if self.calendar is not None:
            return f"{self.calendar.rate} in {self.calendar._tz}"
        return f"{self.rate}" if self.burst == 1 else f"{self.rate} burst {self.burst}"


Pace = tuple[int, int, int]  # since that instant, so many permits in so many ns
Found = tuple[int, "Run | None", int, tuple[int, ...]]
"""When slots for a request are due; the last run of these, None if there are not enough; how many they are; what is too much."""


class Run:
    """``n`` slots of the same ``amounts``: each is due once all paces have it, and lapses ``late`` ns after that."""

    __slots__ = ("amounts", "due", "i", "late", "n", "paces", "places")

    def __init__(self, amounts: tuple[int, ...], n: int, late: int, paces: list[Pace], places: tuple[int, int] = (-1, -1)) -> None:
        self.amounts, self.late, self.paces = amounts, late, paces
        self.i, self.n = 0, n  # the index of the next slot, and how many are left
        self.places: tuple[int, int] = places  # the dimensions for which the first waited, and the others; -1: none
        self.due: int = self.at(0)  # when the next slot is due

    def at(self, i: int) -> int:
        at = -MOST_NS
        for start, permits, ns in self.paces:
            own = start - (-i * ns // permits)
            if own > at:
                at = own
        return at

    def by(self, instant: int) -> int:
        """How many are due by that instant."""
        return bisect_right(range(self.i, self.i + self.n), instant, key=self.at) if instant >= self.due else 0

    def lapsed(self, now: int) -> int:
        return self.by(now - self.late - 1)

    def shift(self, ns: int) -> None:
        self.paces = [(start - ns, permits, period) for start, permits, period in self.paces]
        self.due -= ns
