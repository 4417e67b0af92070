"""Slots: instants at which so much may be used, as a store assigned them to this process, and what it said is left. Exact; no clock."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from aiorate._rate import Rate, ceil_div

if TYPE_CHECKING:
    from aiorate._schedulers.calendar_window import CalendarWindow


US, MS = 1_000, 1_000_000  # ns
MOST_NS = 10**19
"""317 years: the longest duration that a store can count."""


class Part(NamedTuple):
    """One dimension of a limit in a store: a bucket, or with a ``calendar`` so many permits in each window."""

    rate: Rate
    burst: int
    calendar: CalendarWindow | None = None

    def __str__(self) -> str:
        if self.calendar is not None:
            return self.calendar._described
        return f"{self.rate}" if self.burst == 1 else f"{self.rate} burst {self.burst}"

    @property
    def every_us(self) -> float:
        """How far permits are apart, in us; 0: they are those of a window."""
        return 0.0 if self.calendar is not None else self.rate.period_ns / (self.rate.permits * 1000)

    def edges(self, unix: int) -> list[int]:
        """The edges of its window at that Unix time, and of the next two, in ns."""
        assert self.calendar is not None
        edges = self.calendar._edges(unix - 2 * self.rate.period_ns, 8)
        place = max([i for i, edge in enumerate(edges) if edge <= unix], default=0)
        return edges[place : place + 4]

    def time_of(self, permits: int) -> int:
        """How many ns so many permits take, rounded up."""
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
        used, ends = self._window(part, now)
        later = ceil_div(used + permits, part.burst) - 2
        return now if later < 0 else ends + later * part.rate.period_ns

    def standing(self, part: Part, in_hand: int, now: int) -> tuple[int, int]:
        """How many permits are free, with those in hand, and when there is one more."""
        if self.ends:
            used, ends = self._window(part, now)
            return max(part.burst - used, 0), ends
        begin = self.full - part.time_of(part.burst)  # when it would be empty
        free = max((now - begin + 1) * part.rate.permits // part.rate.period_ns, 0)
        left = min(free + in_hand, part.burst)
        return left, now if left >= part.burst else begin + part.time_of(free + 1)

    def _window(self, part: Part, now: int) -> tuple[int, int]:
        """What the window at ``now`` has used, as far as is known, and about when it ends."""
        passed = max((now - self.ends) // part.rate.period_ns + 1, 0)
        return max(self.used - passed * part.burst, 0), self.ends + passed * part.rate.period_ns


UNKNOWN = Level(-MOST_NS)
"""The store has said nothing: it may be full."""
Pace = tuple[int, int, int]
"""Since that instant, so many permits in so many ns."""
Found = tuple[int, "Run | None", int, tuple[int, ...]]
"""When slots for a request are due; the last run of these, or None if there are not enough; how many they are; what is too much."""


class Run:
    """``n`` slots of the same ``amounts``: each is due once all paces have it, and lapses ``late`` ns after that."""

    __slots__ = ("amounts", "due", "i", "late", "n", "paces", "places")

    def __init__(self, amounts: tuple[int, ...], n: int, late: int, paces: list[Pace], places: tuple[int, int] = (-1, -1)) -> None:
        self.amounts, self.late = amounts, late
        self.i, self.n = 0, n
        """The index of the next slot, and how many are left."""
        self.paces: list[Pace] = paces
        self.places: tuple[int, int] = places
        """The dimensions for which the first waited, and the others; -1: none."""
        self.due: int = self.at(0)
        """When the next slot is due."""

    def at(self, i: int) -> int:
        """When the slot with that index is due."""
        at = -MOST_NS
        for start, permits, ns in self.paces:
            own = start - (-i * ns // permits)
            if own > at:
                at = own
        return at

    def by(self, instant: int) -> int:
        """How many of these are due by that instant."""
        return bisect_right(range(self.i, self.i + self.n), instant, key=self.at) if instant >= self.due else 0

    def lapsed(self, now: int) -> int:
        """How many of these have lapsed."""
        return self.by(now - self.late - 1)

    def shift(self, ns: int) -> None:
        """Have all be due earlier by so many ns."""
        self.paces = [(start - ns, permits, period) for start, permits, period in self.paces]
        self.due -= ns


class Hand:
    """The slots in hand, in order. Those that have lapsed stay until somebody asks."""

    __slots__ = ("count", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        """In the order in which they fall due."""
        self.count: int = 0
        """Slots, including those that have lapsed."""

    def add(self, *runs: Run) -> None:
        """Add slots."""
        self.runs += runs
        self.count += sum([run.n for run in runs])
        self.runs.sort(key=attrgetter("due"))

    def clear(self) -> list[Run]:
        """Give up all slots. Returns them."""
        runs, self.runs, self.count = self.runs, [], 0
        return runs

    def remove(self, count: int) -> None:
        """Remove the first ones."""
        self.count -= count
        while count:
            run = self.runs[0]
            if count < run.n:
                run.i, run.n = run.i + count, run.n - count
                run.due = run.at(run.i)
                return
            del self.runs[0]
            count -= run.n

    def last_due(self) -> int:
        """When the last slot is due."""
        return max([run.at(run.i + run.n - 1) for run in self.runs], default=0)

    def find(self, need: tuple[int, ...], skip: int = 0) -> Found:
        """The next slots after ``skip`` others that have these amounts."""
        runs = self.runs
        if not skip and runs and runs[0].amounts == need:  # as most are
            return runs[0].due, runs[0], 1, ()
        at, count, lacks = 0, 0, need
        for run in runs:
            if skip >= run.n:
                skip -= run.n
                continue
            of_use = max([ceil_div(lack, of) for lack, of in zip(lacks, run.amounts, strict=True) if of and lack > 0], default=run.n)
            these = min(of_use, run.n - skip)
            at, count = max(at, run.at(run.i + skip + these - 1)), count + these
            lacks, skip = tuple([lack - these * of for lack, of in zip(lacks, run.amounts, strict=True)]), 0
            if max(lacks) <= 0:
                return at, run, count, tuple([-lack for lack in lacks])
        return at, None, 0, ()

    def amounts(self, dimensions: int, now: int) -> list[int]:
        """The sum of each dimension, but for slots that have lapsed."""
        left = [(run.n - run.lapsed(now), run.amounts) for run in self.runs]
        return [sum([count * amounts[j] for count, amounts in left]) for j in range(dimensions)]


def check_memory(call: str, rate: Rate, burst: int) -> None:
    """Raise ValueError unless a store can count how long that burst, or debt, takes to come back."""
    if burst * rate.period_ns > MOST_NS * rate.permits:
        raise ValueError(f"{call}: {burst} at {rate} takes longer than 317 years to come back.")
