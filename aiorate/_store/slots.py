"""Slots: instants at which so much may be used, as a store assigned them to this process, and what it said is left. Exact; no clock."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from aiorate._rate import NS_PER_SECOND, Rate, ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        """The edges of the window at that Unix time, and of the next two, in ns; none: it has no calendar."""
        if self.calendar is None:
            return []
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

    def due(self, part: Part, own: int, ahead: int, unit: bool, now: int) -> int:
        """When a request for ``own`` permits is due, with others ahead of it that need so many. Slots are gathered if ``unit``."""
        if self.ends:
            used, ends = self._window(part, now)
            later = ceil_div(used + ahead + own, part.burst) - 2
            return now if later < 0 else ends + later * part.rate.period_ns
        room = part.burst - own if unit else part.burst - min(own, part.burst)
        full = max(self.full, now)
        return full + part.time_of(ahead) - part.time_of(room) if ahead >= 0 else full - part.time_of(room - ahead)

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


Step = tuple[int, int]
"""So many permits take so many ns."""


class Run:
    """``n`` slots of the same ``amounts``: the i-th is due once every rate has it, and lapses ``late`` ns after that.

    ``first`` is when the first is due, ``starts`` the same by each rate, and ``steps`` are how far they are apart by these.
    """

    __slots__ = ("amounts", "due", "first", "i", "late", "n", "places", "starts", "steps")

    def __init__(
        self, amounts: tuple[int, ...], n: int, first: int, starts: Sequence[int], steps: Sequence[Step], late: int, *places: int
    ) -> None:
        self.amounts, self.n, self.i = amounts, n, 0
        self.first: int = first
        self.starts: list[int] = list(starts)
        self.steps: Sequence[Step] = steps
        self.late: int = late
        self.places: tuple[int, ...] = places
        """The dimensions for which the first waited, and the others; -1: none."""
        self.due: int = self.at(0)
        """When the next slot is due."""

    def at(self, i: int) -> int:
        """When the slot with that index is due."""
        at = self.first
        for start, (permits, ns) in zip(self.starts, self.steps, strict=True):
            own = start - (-i * ns // permits)
            if own > at:
                at = own
        return at

    @property
    def left(self) -> int:
        """How many slots are left."""
        return self.n - self.i

    def by(self, instant: int) -> int:
        """How many of these are due by that instant."""
        return bisect_right(range(self.n), instant, self.i, key=self.at) - self.i

    def lapsed(self, now: int) -> int:
        """How many of these have lapsed."""
        return 0 if now <= self.due + self.late else self.by(now - self.late - 1)

    def needed(self, have: Sequence[int], need: Sequence[int]) -> int:
        """How many of these a request needs that has so much already; very many if they do not help."""
        lacks = [(each, of - own) for each, own, of in zip(self.amounts, have, need, strict=True) if each and of > own]
        return max([ceil_div(lack, each) for each, lack in lacks], default=MOST_NS)

    def skip(self, count: int) -> None:
        """Remove the first ``count``, and not all."""
        self.i += count
        self.due = self.at(self.i)


class Hand:
    """The slots in hand, in order. Those that have lapsed stay until somebody asks."""

    __slots__ = ("count", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        """In the order in which they fall due."""
        self.count: int = 0
        """Slots, including those that have lapsed."""

    def add(self, runs: list[Run]) -> None:
        """Add slots."""
        self.runs += runs
        self.count += sum([run.left for run in runs])
        self.runs.sort(key=_due)

    def clear(self) -> list[Run]:
        """Give up all slots. Returns them."""
        runs, self.runs, self.count = self.runs, [], 0
        return runs

    def remove(self, count: int) -> None:
        """Remove the first ones."""
        self.count -= count
        while count:
            run = self.runs[0]
            left = run.n - run.i
            if count < left:
                run.skip(count)
                return
            del self.runs[0]
            count -= left

    def lapsed(self, now: int) -> int:
        """How many slots have lapsed."""
        runs = self.runs
        return sum([run.lapsed(now) for run in runs]) if runs and now > runs[0].due + runs[0].late else 0

    def by(self, instant: int) -> int:
        """How many slots are due by that instant."""
        return sum([run.by(instant) for run in self.runs])

    def last_due(self) -> int:
        """When the last slot is due."""
        return max([run.at(run.n - 1) for run in self.runs], default=0)

    def due(self, need: Sequence[int], skip: int) -> tuple[int, Run | None]:
        """When the next slots after ``skip`` others have these amounts, and the last run of these; None: there are not enough."""
        runs = self.runs
        if not skip and runs and runs[0].amounts == need:  # as most are
            return runs[0].due, runs[0]
        at, have = 0, [0] * len(need)
        for run in self.runs:
            if skip >= run.left:
                skip -= run.left
                continue
            count = min(run.needed(have, need), run.left - skip)
            at = max(at, run.at(run.i + skip + count - 1))
            have = [own + count * of for own, of in zip(have, run.amounts, strict=True)]
            skip = 0
            if all(own >= of for own, of in zip(have, need, strict=True)):
                return at, run
        return at, None

    def amounts(self, dimensions: int, now: int) -> list[int]:
        """The sum of each dimension, but for slots that have lapsed."""
        left = [(run.left - run.lapsed(now), run.amounts) for run in self.runs]
        return [sum([count * amounts[j] for count, amounts in left]) for j in range(dimensions)]


def _due(run: Run) -> int:
    return run.due


def check_memory(call: str, rate: Rate, burst: int) -> None:
    """Raise ValueError unless a store can count how long that burst, or debt, takes to come back."""
    if burst * rate.period_ns > MOST_NS * rate.permits:
        most = MOST_NS * rate.permits // rate.period_ns
        allowed = f"At most {most} do not" if most else "A faster rate would not"
        raise ValueError(f"{call}: at {rate} that takes longer than 317 years to come back. {allowed}.")


def check_pause(ns: int) -> None:
    """Raise ValueError unless a store can count how long that pause takes."""
    if ns > MOST_NS:
        raise ValueError(f"pause({ns // NS_PER_SECOND}): a limit in a store is paused for at most 317 years.")
