"""The script in Python, and the same numbers: for a file, for a process in an outage, and for tests.

It follows the script line by line, so that one can be read beside the other.
"""

from __future__ import annotations

from itertools import chain
from math import floor, sqrt
from typing import TYPE_CHECKING

from aiorate._rate import Rate
from aiorate._store.script import HEAD, MOST, OF_RATE, OF_WINDOW, Answer, numbers_of, row
from aiorate._store.slots import Part

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from aiorate._store.script import Question


def take_now(
    every: float, burst: int, n: int, told: tuple[float, ...] | None, value: tuple[float, ...] | None, now: float
) -> tuple[tuple[bool, float] | None, tuple[float, ...] | None, float]:
    """`Answering` in closed form for the most frequent question: ``n`` slots of one rate, now or not at all.

    Returns whether they are granted and in how many us the bucket is full, or None if it takes the script; the new value, or None if it
    stays; and after how many us it says nothing any more.
    """
    life, count, latest, ahead, full = now, 1.0, 0.0, 0.0, 0.0
    if told is not None and (value is None or value[0] != told[0] or value[7] < told[7]):
        return None, None, 0.0  # the client knows more
    if value is not None:
        life, written, hush, _, _, latest, _, count, ahead, full = value
        if hush > 0:
            return None, None, 0.0
        passed = max(now - written, 0.0)
        latest, count, ahead, full = max(latest - passed, 0.0), count + 1, ahead - passed, full - passed
        if ahead <= 0:
            ahead = full = 0.0
    if ahead - (burst - 1) * every + (n - 1) * every > 0:
        return (False, ahead), None, 0.0
    more = ahead + n * every
    return (True, more), (life, now, 0.0, 0.0, 0.0, latest, -1.0, count, more, full), max(more, (burst - 1) * every)


class Answering:
    """One run of the script, in numbers: ``w`` are its arguments, ``kept`` is the value, and ``told`` what the client was told last.

    ``same``: what it was told is the value.
    """

    def __init__(self, now: float, w: Sequence[float], kept: Sequence[float] | None, told: Sequence[float] | None, same: bool) -> None:
        pause, self.horizon, self.reach, self.within, self.age, self.client, self.oldest, took, self.seat, gone, self.margin, dims = w[:12]
        self.now, self.limits = now, [w[at : at + 7] for at in range(12, 12 + 7 * int(dims), 7)]
        if told and kept and told[0] == kept[0] and told[7] <= kept[7]:
            told = None
        self.tail, self.passed = not gone or same, max(0, now - kept[1]) if kept else 0
        self.life, self.hush, self.claim, self.lasts, self.latest, self.near, self.count = now, 0.0, 0.0, 0.0, 0.0, took, 1.0
        if kept:
            self.life, self.hush, self.claim, self.lasts = kept[0], kept[2] - self.passed, kept[3], kept[4] - self.passed
            self.latest, self.near, self.count = max(kept[5] - self.passed, 0), kept[6], kept[7] + 1
            if took >= 0:
                self.near = took if self.near < 0 else min(took, self.near + self.passed / 4)
        self.still = min(self.hush, 0) if kept and kept[2] > 0 else -1e18
        if told:
            self.hush, self.latest = max(self.hush, told[2] - self.age), max(self.latest, told[5] - self.age)
        if pause >= 0:
            self.hush = max(self.hush, pause) if pause > 0 else 0
        self.hush = min(max(self.hush, 0), MOST)
        if self.lasts <= 0:
            self.claim = self.lasts = 0
        self.lag = min(self.horizon, 25_000) if self.reach < MOST and any(limit[2] < 0 for limit in self.limits) else 0
        self.trip = max(took, 0)
        far = max(self.horizon, self.trip)
        self.horizon = sqrt(max(self.horizon, self.near) * far) if self.near >= 0 else far
        self.lost = 0 if kept else self.horizon
        self.wait: float = 0.0  # how long the first request that got nothing has to wait, ...
        self.place: int = 0  # ... and for which dimension, counted from 1
        self.runs: list[tuple[int, int, list[float]]] = []  # see `Answer`
        self._told: bool = self.within < 0 or pause >= 0 or told is not None or any(limit[2] for limit in self.limits)
        self.state: list[list[float]] = self._states(kept, told)
        """Of each dimension; empty if the question named no window of the present."""
        if self.state:
            self._grant(w)

    @property
    def answer(self) -> Answer:
        """What the client hears."""
        head = [self.life, self.now, self.hush, self.claim, self.lasts, self.latest, self.near, self.count]
        return Answer("", [*head, *chain(*self.state)], self.wait, self.place, self.seat, self.runs)

    @property
    def keep(self) -> float:
        """After how many us a new value would say the same. -1: it is the same, as requests were refused and nothing was told."""
        if not self._told and not any(run[0] for run in self.runs):
            return -1.0
        keep = self.hush
        for (every, burst, *_), (used, *window) in zip(self.limits, self.state, strict=True):
            if every > 0:
                keep = max(keep, used, self.hush + (burst - 1) * every)
            else:
                began, ends = window[:2]
                keep = max(keep, ends - self.now + (ends - began) * max(1, used / burst))
        return keep

    def _states(self, kept: Sequence[float] | None, told: Sequence[float] | None) -> list[list[float]]:
        states: list[list[float]] = []
        at = HEAD
        for every, burst, more, *edges in self.limits:
            read, size = (self._rate, OF_RATE) if every > 0 else (self._window, OF_WINDOW)
            of = slice(at, at + size)
            states.append(read(every, burst, more, edges, kept and kept[of], told and told[of]))
            at += size
        return states if all(states) else []

    def _rate(
        self, every: float, burst: float, more: float, _: Sequence[float], had: Sequence[float] | None, heard: Sequence[float] | None
    ) -> list[float]:
        ahead, full = 0.0, 0.0
        if had:
            ahead, full = max(had[0] - self.passed, min(had[0], (burst - 1) * every) + self.still), had[1] - self.passed
        if heard and heard[0] - self.age > ahead:
            ahead = heard[0] - self.age + self.lost
        if ahead <= 0:
            ahead = full = 0.0
        if more > 0:
            ahead += more * every
        if more < 0 and -self.oldest >= full and self.tail:
            ahead = max(ahead + more * every, 0)
        return [min(ahead, MOST), full]

    def _window(
        self, _: float, burst: float, more: float, edges: Sequence[float], had: Sequence[float] | None, heard: Sequence[float] | None
    ) -> list[float]:
        now, place = self.now, next((i for i in (1, 2, 3) if edges[i] > self.now), 0)
        if not place or edges[place - 1] > now:
            return []
        begins, to = edges[place - 1], edges[place]
        used, began, ends, seats, patience, due, hold, share = 0.0, begins, to, 0.0, 0.0, 0.0, 0.0, 0.0
        if had and now < had[2] <= edges[3] + (to - begins):
            used, began, ends, seats, patience, due, hold, share = had
        elif had and had[2] > now:
            used = had[0]
        elif had:
            used = max(0, had[0] - burst * max(1, floor((to - had[2]) / (to - begins) + 0.5)))
            if had[2] == begins:
                due, hold, share = had[3], begins + had[4], floor(burst / max(had[3], 1))
        elif heard and heard[2] > now:
            due, hold, share = 1, now + 1_000_000, burst
        if heard and heard[2] == ends:
            used = max(used, heard[0])
        if more > 0:
            used = min(used + more, MOST)
        if more < 0 and now - self.oldest >= began:
            used = max(0, used + more)
        if self.seat == began and due > 0:
            due, self.seat = due - 1, 0
        return [used, began, ends, seats, patience, due, hold, share]

    def _grant(self, w: Sequence[float]) -> None:
        """Answer one run after the other."""
        size, begin = 1 + len(self.limits), 0.0
        room: dict[int, float] = {}
        for at in range(12 + 7 * len(self.limits), len(w), size):
            want, *amounts = w[at : at + size]
            n, last = self._one(want, amounts, begin, room)
            if self.within < 0:
                if n < want:
                    return
                begin = last

    def _one(self, want: float, amounts: list[float], begin: float, room: dict[int, float]) -> tuple[float, float]:
        """Answer one run. Returns how many it granted, and when the last of these is due."""
        first, n, self.place = max(begin, self.hush), want, 0
        steps = [a * limit[0] for a, limit in zip(amounts, self.limits, strict=True)]
        slacks = [(burst - min(a, burst)) * every for a, (every, burst, *_) in zip(amounts, self.limits, strict=True)]
        for j, step in enumerate(steps):
            if step > 0 and self.state[j][0] - slacks[j] > first:
                first, self.place = self.state[j][0] - slacks[j], j + 1
        starts = [max(state[0], first - self.lag) - slack for state, slack in zip(self.state, slacks, strict=True)]
        if self.hush > 0:
            n, self.wait = 0, max(self.wait, first)
        for j, a in enumerate(amounts):
            if steps[j] > 0 and self.within >= 0:
                if (late := starts[j] + (want - 1) * steps[j]) > self.within:
                    n, self.wait = 0, max(self.wait, late)
            elif steps[j] > 0:
                if j not in room:
                    room[j] = self.horizon * min(1, self.horizon / first) if first > 0 else max(self.horizon, steps[j]) - starts[j]
                n = min(n, max(floor(room[j] / steps[j]), 0 if self.runs else min(n, 1)))
            elif a > 0 and self.limits[j][0] <= 0:
                n = self._of_window(j, want, n, first, a)
        n = self._claim(want, n, first)
        if n <= 0:
            if self.within >= 0:
                self.runs.append((0, 0, []))
            return n, 0.0
        last = max([first, *[start + (n - 1) * step for start, step in zip(starts, steps, strict=True) if step > 0]])
        dues = [first]
        for j, (state, step) in enumerate(zip(self.state, steps, strict=True)):
            if self.limits[j][0] <= 0:
                state[0] += n * amounts[j]
                continue
            dues.append(starts[j] if step > 0 else first)
            if step > 0:
                state[0] = min(max(starts[j] + n * step, last - self.lag - slacks[j] + step) + slacks[j], MOST)
            if j in room:
                room[j] -= n * step
        self.runs.append((int(n), self.place, dues))
        self.latest = min(max(self.latest, last), MOST)
        return n, last

    def _of_window(self, j: int, want: float, n: float, first: float, amount: float) -> float:
        state = self.state[j]
        used, _, ends, seats, patience, due, hold, share = state
        closes, held = ends - self.now, self.now < hold
        over = closes <= self.trip + self.margin
        left = 0 if over or first > 0 else self.limits[j][1] - used - (due * share if held else 0)
        n = max(min(n, floor(left / amount)), 0)
        if n < want:
            then = closes if over else min(first if first > 0 else hold - self.now if held else closes, closes)
            if self.within < 0 or n < 1:
                self.place, self.wait = j + 1, max(0 if self.within < 0 else self.wait, then)
            if self.within < 0 and then == closes and self.seat != ends:
                state[3], state[4], self.seat = seats + 1, max(patience, 2 * self.trip + 50_000), ends
        return n

    def _claim(self, want: float, n: float, first: float) -> float:
        """How many of a run are granted, where large requests have others leave room for them."""
        other = self.claim not in (0, self.client)
        if self.within >= 0:
            if n < want or first > self.within or other:
                n, self.wait = 0, max(self.wait, first, 1)
        elif n > 0 and not self.runs:
            if other or first > max(self.latest, self.hush) + self.reach:
                n, self.wait = 0, max(first, 1)
                if not other:
                    self.claim, self.lasts = self.client, 1_000_000 + 2 * self.trip
            elif self.claim == self.client:
                self.claim = self.lasts = 0
        return n


class Local:
    """A store of this process alone, for an outage. It has a ``share`` of the limits, and begins without a burst."""

    __slots__ = ("_value", "parts", "spent")

    def __init__(self, parts: Sequence[Part], share: Fraction) -> None:
        self.parts: tuple[Part, ...] = tuple([_part(part, share) for part in parts])
        """Its limits: a window is paced, too."""
        self._value: list[float] | None = None
        self.spent: list[int] = [0] * len(parts)
        """Of each dimension."""

    def ask(self, question: Question, runs: Sequence[tuple[int, tuple[int, ...]]], reading: int) -> Answer:
        """The answer to that question."""
        corrected = [row(part, 0 if self._value else part.burst - 1) for part in self.parts]
        answer = Answering(reading / 1000, numbers_of(question._replace(took=-1), corrected, runs), self._value, None, False).answer
        self._value = answer.numbers
        for (n, _, _), (_, need) in zip(answer.runs, runs, strict=False):
            self.spent = [own + n * of for own, of in zip(self.spent, need, strict=True)]
        return answer


def _part(part: Part, share: Fraction) -> Part:
    rate = Rate._exactly(part.rate.permits * share.numerator, part.rate.period_ns * share.denominator)
    return Part(rate, 1 if part.calendar is not None else max(part.burst * share.numerator // share.denominator, 1))
