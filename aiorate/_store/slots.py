"""Slots: instants at which so much may be used, as a store assigned them, and what it said is left. Exact, and without a clock."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from aiorate._rate import Rate, ceil_div

if TYPE_CHECKING:
    from aiorate._schedulers.calendar_window import CalendarWindow


US, MS = 1_000, 1_000_000  # ns
MOST_NS = 10**19  # 317 years: the longest duration that a store can count


class Part(NamedTuple):
    """One dimension of a limit in a store: a bucket, or with a ``calendar`` so many permits in each window."""

    rate: Rate
    burst: int
    calendar: CalendarWindow | None = None

    def __str__(self) -> str:
        if self.calendar is not None:
            return f"{self.calendar.rate} in {self.calendar._tz}"
        return f"{self.rate}" if self.burst == 1 else f"{self.rate} burst {self.burst}"

    @property
    def every_us(self) -> float:
        """How far permits are apart, in us; 0: it is a window."""
        return 0.0 if self.calendar is not None else self.rate.period_ns / (self.rate.permits * 1000)

    def time_of(self, permits: int) -> int:
        """In ns, rounded up."""
        return ceil_div(permits * self.rate.period_ns, self.rate.permits)


class Level(NamedTuple):
    """What the store said last of a dimension: instants in ns."""

    full: int  # when the bucket is full again, if nobody takes anything
    used: int = 0  # of a window: permits that are taken
    ends: int = 0  # when it ends; 0: it is a bucket

    def due(self, part: Part, permits: int, now: int) -> int:
        """When so many more have been taken, each as soon as it is due."""
        if not self.ends:
            return max(self.full, now) - part.time_of(part.burst - permits)
        windows = (self.used + permits - 1) // part.burst  # that are used up before
        return now if windows < 1 or now >= self.ends else self.ends + (windows - 1) * part.rate.period_ns

    def standing(self, part: Part, in_hand: int, now: int) -> tuple[int, int]:
        """How many permits are free, with those in hand, and when there is one more."""
        if self.ends:
            return (max(part.burst - self.used, 0), self.ends) if now < self.ends else (part.burst, now)
        begin = self.full - part.time_of(part.burst)  # when it would be empty
        free = max((now - begin + 1) * part.rate.permits // part.rate.period_ns, 0)
        left = min(free + in_hand, part.burst)
        return left, now if left >= part.burst else begin + part.time_of(free + 1)


UNKNOWN = Level(-MOST_NS)  # the store has said nothing: it may be full
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


def check_memory(call: str, rate: Rate, burst: int) -> None:
    """Raise ValueError unless a store can count how long that burst, or debt, takes to come back."""
    if burst * rate.period_ns > MOST_NS * rate.permits:
        raise ValueError(f"{call}: {burst} at {rate} takes longer than 317 years to come back.")
