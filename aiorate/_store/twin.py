"""The script in Python, and the same numbers: for a file, for a process in an outage, and for tests.

It follows the script line by line, so that one can be read beside the other.
"""

from __future__ import annotations

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
        self.now, self.w = now, w
        self.pause, self.horizon, self.reach, self.within, self.age, self.client = w[:6]
        self.oldest, self.took, self.seat, gone, self.margin, dims = w[6:12]
        self.dims: int = int(dims)
        self.tail: bool = not gone or same
        self.limits = [w[12 + 7 * j : 19 + 7 * j] for j in range(self.dims)]
        self.state: list[list[float]] = []
        """Of each dimension."""
        self.runs: list[tuple[float, int, list[float]]] = []
        """Of each run: how many requests it granted, the dimension that they waited for, and when the first is due, by each rate too."""
        self.wait: float = 0.0
        """How long the first request that got nothing has to wait, ..."""
        self.place: int = 0
        """... and for which dimension, counted from 1."""
        if told and kept and told[0] == kept[0] and told[7] <= kept[7]:
            told = None
        self._restores = told is not None
        self._times(kept, told)
        self.decided: bool = self._limits(kept, told)
        """Whether the question named a window of the present."""
        if self.decided:
            self._grant()

    @property
    def value(self) -> list[float]:
        """The new value."""
        numbers = [self.life, self.now, self.hush, self.claim, self.lasts, self.latest, self.near, self.count]
        for state in self.state:
            numbers += state
        return numbers

    @property
    def answer(self) -> Answer:
        """What the client hears."""
        return Answer("", self.value, self.wait, self.place, self.seat, [(int(n), place, dues) for n, place, dues in self.runs])

    @property
    def keep(self) -> float:
        """After how many us a new value would say the same."""
        keep: float = self.hush
        for (every, burst, *_), state in zip(self.limits, self.state, strict=True):
            if every > 0:
                keep = max(keep, state[0], self.hush + (burst - 1) * every)
            else:
                used, began, ends, *_ = state
                keep = max(keep, ends - self.now + (ends - began) * max(1, used / burst))
        return keep

    @property
    def changes(self) -> bool:
        """Whether the value has to be kept: it need not be if requests were refused and nothing was told."""
        if self.within < 0 or self.pause >= 0 or self._restores or any(run[0] for run in self.runs):
            return True
        return any(limit[2] for limit in self.limits)

    def _limits(self, kept: Sequence[float] | None, told: Sequence[float] | None) -> bool:
        offset = HEAD
        for j, (every, *_) in enumerate(self.limits):
            size = OF_RATE if every > 0 else OF_WINDOW
            had = kept[offset : offset + size] if kept else None
            heard = told[offset : offset + size] if told else None
            if every > 0:
                self._rate(j, had, heard)
            elif not self._window(j, had, heard):
                return False
            offset += size
        return True

    def _times(self, kept: Sequence[float] | None, told: Sequence[float] | None) -> None:
        self.kept: bool = kept is not None
        self.count: float = kept[7] + 1 if kept else 1
        passed = max(0, self.now - kept[1]) if kept else 0
        self.passed = passed
        self.life, self.hush, self.claim, self.lasts, self.latest, self.near = self.now, 0.0, 0.0, 0.0, 0.0, self.took
        if kept:
            self.life, self.hush, self.claim, self.lasts = kept[0], kept[2] - passed, kept[3], kept[4] - passed
            self.latest, self.near = max(kept[5] - passed, 0), kept[6]
            if self.took >= 0:
                self.near = self.took if self.near < 0 else min(self.took, self.near + passed / 4)
        self.still = min(self.hush, 0) if kept and kept[2] > 0 else -1e18
        if told:
            self.hush, self.latest = max(self.hush, told[2] - self.age), max(self.latest, told[5] - self.age)
        if self.pause >= 0:
            self.hush = max(self.hush, self.pause) if self.pause > 0 else 0
        self.hush = min(max(self.hush, 0), MOST)
        if self.lasts <= 0:
            self.claim = self.lasts = 0
        backs = self.reach < MOST and any(more < 0 for _, _, more, *_ in self.limits)
        self.lag = min(self.horizon, 25_000) if backs else 0
        self.trip = trip = max(self.took, 0)
        far = max(self.horizon, trip)
        self.horizon = sqrt(max(self.horizon, self.near) * far) if self.near >= 0 else far

    def _rate(self, j: int, had: Sequence[float] | None, heard: Sequence[float] | None) -> None:
        every, burst, more = self.limits[j][:3]
        ahead, full = 0.0, 0.0
        if had:
            ahead, full = had[0] - self.passed, had[1] - self.passed
            ahead = max(ahead, min(had[0], (burst - 1) * every) + self.still)
        if heard and heard[0] - self.age > ahead:
            ahead = heard[0] - self.age + (0 if self.kept else self.horizon)
        if ahead <= 0:
            ahead = full = 0.0
        if more > 0:
            ahead = ahead + more * every
        if more < 0 and -self.oldest >= full and self.tail:
            ahead = max(ahead + more * every, 0)
        self.state.append([min(ahead, MOST), full])

    def _window(self, j: int, had: Sequence[float] | None, heard: Sequence[float] | None) -> bool:
        _, burst, more, *edges = self.limits[j]
        now, place = self.now, next((i for i in (1, 2, 3) if edges[i] > self.now), 0)
        if not place or edges[place - 1] > now:
            return False
        begins, to = edges[place - 1], edges[place]
        used, began, ends, seats, patience, due, hold, share = 0.0, begins, to, 0.0, 0.0, 0.0, 0.0, 0.0
        if had and had[2] > now and had[2] <= edges[3] + (to - begins):
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
        self.state.append([used, began, ends, seats, patience, due, hold, share])
        return True

    def _grant(self) -> None:
        self.begin: float = 0.0
        self.most: dict[int, float] = {}
        self.had: dict[int, float] = {}
        size = 1 + self.dims
        for k in range(12 + 7 * self.dims, len(self.w), size):
            want, *amounts = self.w[k : k + size]
            n = self._one(want, amounts)
            if n < want and self.within < 0:
                break

    def _one(self, want: float, amounts: list[float]) -> float:
        """Answer one run."""
        runs = self.runs
        first, n, self.place = max(self.begin, self.hush), want, 0
        steps, slacks, starts = [0.0] * self.dims, [0.0] * self.dims, [0.0] * self.dims
        for j, (a, (every, burst, *_)) in enumerate(zip(amounts, self.limits, strict=True)):
            if every > 0:
                steps[j], slacks[j] = a * every, (burst - min(a, burst)) * every
                if a > 0 and self.state[j][0] - slacks[j] > first:
                    first, self.place = self.state[j][0] - slacks[j], j + 1
        if self.hush > 0:
            n, self.wait = 0, max(self.wait, first)
        for j, a in enumerate(amounts):
            if self.limits[j][0] > 0:
                starts[j] = max(self.state[j][0], first - self.lag) - slacks[j]
                if a > 0:
                    n = self._of_rate(j, want, n, first, steps[j], starts[j], bool(runs))
            elif a > 0:
                n = self._of_window(j, want, n, first, a)
        n = self._claim(want, n, first, bool(runs))
        if n > 0:
            last = max([first, *[starts[j] + (n - 1) * steps[j] for j in range(self.dims) if steps[j] > 0]])
            dues = [first]
            for j, state in enumerate(self.state):
                if self.limits[j][0] <= 0:
                    state[0] = state[0] + n * amounts[j]
                    continue
                dues.append(starts[j] if steps[j] > 0 else first)
                if steps[j] > 0:
                    state[0] = min(max(starts[j] + n * steps[j], last - self.lag - slacks[j] + steps[j]) + slacks[j], MOST)
                    if j in self.had:
                        self.had[j] += n * steps[j]
            runs.append((n, self.place, dues))
            self.latest = min(max(self.latest, last), MOST)
            if self.within < 0:
                self.begin = last
        elif self.within >= 0:
            runs.append((0, 0, []))
        return n

    def _of_rate(self, j: int, want: float, n: float, first: float, step: float, start: float, follows: bool) -> float:
        if self.within >= 0:
            last = start + (want - 1) * step
            if last > self.within:
                n, self.wait = 0, max(self.wait, last)
            return n
        if j not in self.most:
            self.most[j] = self.horizon * min(1, self.horizon / first) if first > 0 else max(self.horizon, step) - start
            self.had[j] = 0
        return min(n, max(floor((self.most[j] - self.had[j]) / step), 0 if follows else min(n, 1)))

    def _of_window(self, j: int, want: float, n: float, first: float, amount: float) -> float:
        state = self.state[j]
        used, _, ends, seats, patience, due, hold, share = state
        closes, held, over = ends - self.now, self.now < hold, ends - self.now <= self.trip + self.margin
        left = self.limits[j][1] - used
        if held:
            left -= due * share
        if over or first > 0:
            left = 0
        n = max(min(n, floor(left / amount)), 0)
        if n < want:
            then = closes
            if not over and first > 0:
                then = min(first, closes)
            elif not over and held:
                then = min(hold - self.now, closes)
            if self.within < 0 or n < 1:
                self.place, self.wait = j + 1, max(0 if self.within < 0 else self.wait, then)
            if self.within < 0 and then == closes and self.seat != ends:
                state[3], state[4], self.seat = seats + 1, max(patience, 2 * self.trip + 50_000), ends
        return n

    def _claim(self, want: float, n: float, first: float, follows: bool) -> float:
        """How many of a run are granted, where large requests have others leave room for them."""
        other = self.claim not in (0, self.client)
        if self.within >= 0:
            if n < want or first > self.within or other:
                n, self.wait = 0, max(self.wait, first, 1)
        elif n > 0 and not follows:
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
        answering = Answering(reading / 1000, numbers_of(question._replace(took=-1), corrected, runs), self._value, None, False)
        answer = answering.answer
        self._value = answer.numbers
        for (n, _, _), (_, need) in zip(answer.runs, runs, strict=False):
            self.spent = [own + n * of for own, of in zip(self.spent, need, strict=True)]
        return answer


def _part(part: Part, share: Fraction) -> Part:
    rate = Rate.exactly(part.rate.permits * share.numerator, part.rate.period_ns * share.denominator)
    return Part(rate, 1 if part.calendar is not None else max(part.burst * share.numerator // share.denominator, 1))
