"""Histories of schedulers, on which the laws of `aiorate.testing.laws` are tried. They use only the Scheduler interface."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st

from aiorate.meter import FAR
from aiorate.rate import NS_PER_SECOND, Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiorate.schedulers.interface import Scheduler

__all__ = ["BACK", "DAY", "GIVING_BACK", "History", "Step", "Trial", "any_steps", "same_future", "steps"]

DAY = 86_400 * NS_PER_SECOND


class Step(NamedTuple):
    """A step of a history: time passes, then something is done with some permits."""

    does: str
    """The action, such as ``"take"``."""
    size: int
    """The permits; 0: the most that are allowed at once, -1: one less."""
    gap: tuple[int, str]
    """The time: a number and its unit."""


_SIZES = (1, 2, 3, 0, -1, 7)
_FORWARD = (
    *((n, "ns") for n in (0, 0, 0, 1)),
    *((n, "after due") for n in (0, -1, 1)),
    *((n, "quarters") for n in (1, 3, 4, 5, 11, 40, 40)),
    *((n, "periods") for n in (1, 3)),
    *((n, "days") for n in (1, 104, 365)),
)
BACK = ((-1, "ns"), (-1, "quarters"), (-6, "quarters"), (-1, "periods"), (-1, "days"))
# The changes of "set rate", by size: a fraction (numerator, denominator) of the permits, and a multiple of the period.
_CHANGES = {1: (1, 2, 1), 2: (1, 1, 4), 3: (3, 1, 1), 0: (100, 1, 1), -1: (1, 1, 1), 7: (10, 1, 7)}
GIVING_BACK = ("give back", "give back first", "swap first", "swap half", "refund")
_DOES = ("take", "take", "grab", "take all", "take late", *GIVING_BACK, "set rate")


def _lists(gaps: tuple[tuple[int, str], ...]) -> st.SearchStrategy[list[Step]]:
    """Short and long lists, because hypothesis by itself prefers about five steps."""
    step = st.sampled_from([Step(*step) for step in product(_DOES, _SIZES, gaps)])
    return st.lists(step, max_size=8) | st.lists(step, min_size=8, max_size=20)


steps: st.SearchStrategy[list[Step]] = _lists(_FORWARD)
any_steps: st.SearchStrategy[list[Step]] = _lists(_FORWARD + BACK)


class History:
    """A scheduler and the calls made to it."""

    def __init__(self, scheduler: Scheduler, base: int = 0, lines: list[str] | None = None) -> None:
        self.scheduler: Scheduler = scheduler
        self.base: int = base
        """The instant at which it began."""
        self.now: int = base
        self.lines: list[str] = [] if lines is None else lines
        """The calls and their answers, as text."""
        self.answers: list[int] = []
        """The answers of the scheduler, in ns since ``base``."""
        self.events: list[tuple[int, int, int]] = []
        """Grants and refunds: (epoch, instant, permits). The permits of a refund are negative."""
        self.held: list[int] = []
        """The places, in ``events``, of grants whose permits have not all come back."""
        self.epochs: int = 0
        """The number of changes of the rate."""
        self.late_by: int = 0
        """The longest time in line (ns) of a grant since the last change of the rate."""
        self.largest: int = 1
        """The largest grant since the last change of the rate."""
        self.peek(1)  # the first instant given starts the schedule

    def fork(self) -> History:
        """A copy, which can go on in another way."""
        return deepcopy(self)

    def run(self, steps: Iterable[Step], *without: str) -> History:
        """Do the steps, except those whose action is in ``without``."""
        for does, size, gap in steps:
            if does in without:
                continue
            permits = self.permits(size)
            self.pass_time(gap, permits)
            if does == "take all":
                self.take_all(permits)
            elif does == "grab":
                self.grab()
            elif does == "take":
                self.take(permits)
            elif does == "take late":
                self.take(permits, self.now - self.catch_up * (1 + size % 2) // 2)
            elif does == "set rate":
                num, den, periods = _CHANGES[size]
                self.set_rate(max(1, self.scheduler.rate.permits * num // den), periods)
            elif self.held:
                place = 0 if "first" in does else len(self.held) // 2 if "half" in does else -1
                self.give_back(permits, place, receipt=does != "refund")
                if "swap" in does:  # another request takes them
                    self.take_all(permits)
        return self

    def take_all(self, permits: int) -> None:
        """Take as long as there are permits, at most twelve times."""
        for _ in range(12):
            permits = permits if self.take(permits) else permits // 2 or 1

    def permits(self, size: int) -> int:
        """The permits of a step's size, at most as many as can be granted at once."""
        most = self.scheduler.max_permits
        if size < 1:
            size += (self.scheduler.bound(1) or 10) if most is None else most
        return max(1, size if most is None else min(size, most))

    @property
    def catch_up(self) -> int:
        """The longest time in line of these histories, in ns."""
        return self.scheduler.rate.period_ns * 3 // (2 * self.scheduler.rate.permits)

    def pass_time(self, gap: tuple[int, str], permits: int = 1) -> None:
        """Let the time of a step pass. ``permits`` are those of the request that it may wait for."""
        count, unit = gap
        rate = self.scheduler.rate
        if unit == "after due":
            self.now = max(self.now, self.peek(permits) + count)
        elif unit == "quarters":
            self.now += count * rate.period_ns // (4 * rate.permits)
        else:
            self.now += count * {"ns": 1, "periods": rate.period_ns, "days": DAY}[unit]

    def peek(self, permits: int, now: int | None = None) -> int:
        """The scheduler's answer."""
        now = self.now if now is None else now
        return self._told(f"peek({permits}, {now})", self.scheduler.peek(permits, now))

    def due(self, permits: int, now: int | None = None) -> int:
        """The instant at which a request made now is granted."""
        return max(self.peek(permits, now), self.now if now is None else now)

    def take(self, permits: int, since: int | None = None, now: int | None = None) -> bool:
        """Take permits; whether they were granted."""
        now = self.now if now is None else now
        call = f"take({permits}, {now}{'' if since is None else f', since={since}'})"
        granted = self._told(call, self.scheduler.take(permits, now, since)) <= now
        if granted:
            self.late_by = max(self.late_by, 0 if since is None else now - since)
            self.largest = max(self.largest, permits)
            self.held.append(len(self.events))
            self.events.append((self.epochs, now, permits))
        return granted

    def grab(self) -> bool:
        """Take one permit as a limiter does: by the scheduler's meter, or by `take` where that refuses. It is never given back."""
        meter, granted = self.scheduler.meter, False
        if meter is not None:
            meter.read, meter.until = (lambda: self.now), FAR
            granted = meter.grab()
            meter.until = 0
        self.lines.append(f"grab at {self.now} -> {granted}")
        if not granted:
            at = self.scheduler.take(1, self.now)
            self.lines.append(f"take(1, {self.now}) -> {at}")
            granted = at <= self.now
        if granted:
            self.events.append((self.epochs, self.now, 1))
        return granted

    def give_back(self, permits: int, place: int, receipt: bool = True) -> None:
        """Give back permits of the grant at that place of ``held``. By receipt, they count as never granted."""
        event = self.held[place]
        epoch, instant, taken = self.events[event]
        permits = min(permits, taken)
        if taken == permits:
            del self.held[place]
        if receipt:
            self.lines.append(f"give_back({permits}, {self.now}, taken={instant})")
            self.scheduler.give_back(permits, self.now, instant)
            self.events[event] = epoch, instant, taken - permits
        else:
            self.lines.append(f"give_back({permits}, {self.now})")
            self.scheduler.give_back(permits, self.now)
            self.events.append((self.epochs, self.now, -permits))

    def charge(self, permits: int) -> None:
        """Charge permits."""
        self.lines.append(f"charge({permits}, {self.now})")
        self.scheduler.charge(permits, self.now)

    def stock(self) -> int:
        """The scheduler's answer."""
        ready = self.scheduler.stock(self.now)
        self.lines.append(f"stock({self.now}) -> {ready}")
        return ready

    def set_rate(self, permits: int, periods: int = 1) -> bool:
        """Change the rate; whether the scheduler allows it. Some have only their members' rates, or allow certain periods only."""
        rate = Rate(permits, Fraction(self.scheduler.rate.period_ns * periods, NS_PER_SECOND))
        self.lines.append(f"set_rate({rate}, {self.now})")
        try:
            self.scheduler.set_rate(rate, self.now)
        except (ValueError, RuntimeError):
            return False
        self.epochs += 1
        self.late_by, self.largest = 0, 1
        return True

    def _told(self, call: str, answer: int) -> int:
        self.lines.append(f"{call} -> {answer}")
        self.answers.append(answer - self.base)
        return answer

    def check_bound(self) -> None:
        """Assert that no window since the last change of the rate holds more than the bound."""
        events = [(instant, permits) for epoch, instant, permits in self.events if epoch == self.epochs]
        instants = sorted({instant for instant, permits in events if permits > 0})
        for place, first in enumerate(instants):
            for last in instants[place:]:
                bound = self.scheduler.bound(last - first + 1 + self.late_by, self.largest)
                if bound is not None:
                    kept = _most_kept(events, first, last)
                    assert kept <= bound, f"{kept} permits from {first} to {last}, and bound() says {bound}"


def _most_kept(events: list[tuple[int, int]], first: int, last: int) -> int:
    """Permits granted from ``first`` to ``last``, less those refunded between two grants of that window."""
    kept = most = 0
    for instant, permits in events:
        if permits < 0 or first <= instant <= last:
            kept = max(0, kept + permits)
            most = max(most, kept)
    return most


class Trial(NamedTuple):
    """The material of a law: a factory of schedulers, and the steps of two histories. Time goes back only in ``before``."""

    factory: Callable[[], Scheduler]
    before: list[Step]
    after: list[Step]
    told: list[str]

    def begin(self) -> History:
        """A scheduler with a past."""
        return History(self.factory(), 0, self.told).run(self.before)

    def fresh(self, base: int = 0) -> History:
        """A scheduler without one."""
        return History(self.factory(), base, self.told)

    @property
    def sizes(self) -> list[Step]:
        """Steps whose sizes and gaps a law may use. There is always at least one."""
        return self.after or [Step("take", 1, (0, "ns")), Step("take", 2, (4, "quarters"))]


def same_future(one: History, other: History, then: Iterable[Step]) -> None:
    """Assert that both schedulers give the same answers from now on."""
    one.answers, other.answers = [], []
    shift = other.base - one.base
    for step in (*then, Step("take all", 1, (0, "ns"))):
        one.run([step])
        other.run([step])
        for permits in (1, one.permits(0)):
            one.peek(permits)
            other.peek(permits)
        assert one.now + shift == other.now
        assert one.answers == other.answers, f"one answers {one.answers[-3:]}, its twin {other.answers[-3:]}"
