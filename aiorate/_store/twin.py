"""The script in Python, line by line, with the same numbers: for a file, for a process in an outage, and for tests."""

from __future__ import annotations

from itertools import chain
from math import floor, sqrt
from typing import TYPE_CHECKING

from aiorate._rate import Rate
from aiorate._store.script import HEAD, MOST, OF_RATE, OF_WINDOW, Answer, row
from aiorate._store.slots import Part

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from aiorate._store.script import Question


def take_now(
    every: float, burst: int, n: int, told: Sequence[float] | None, value: Sequence[float] | None, now: float
) -> tuple[tuple[bool, float] | None, tuple[float, ...] | None, float]:
    """`Answering` in closed form for the most frequent question: ``n`` slots of one rate, now or not at all.

    Returns whether they are granted and in how many us the bucket is full, or None if it takes the script; the new value, or None if it
    stays; and after how many us it is at rest.
    """
    life, written, hush, _, _, latest, _, count, ahead, full = value or (now, now, *[0.0] * 8)
    if hush > 0 or (told is not None and (told[0] != life or told[7] > count)):  # a pause, or the client knows more
        return None, None, 0.0
    passed = max(now - written, 0.0)
    ahead, full = (ahead - passed, full - passed) if ahead > passed else (0.0, 0.0)
    if ahead - (burst - 1) * every + (n - 1) * every > 0:
        return (False, ahead), None, 0.0
    more = ahead + n * every
    new = (life, now, 0.0, 0.0, 0.0, max(latest - passed, 0.0), -1.0, count + 1, more, full)
    return (True, more), new, max(more, (burst - 1) * every)


class Answering:
    """One run of the script. ``kept`` is the value, ``told`` what the client was told last, ``same`` whether nobody has asked since."""

    def __init__(self, now: float, asked: Question, kept: Sequence[float] | None, told: Sequence[float] | None, same: bool) -> None:
        self.now, self.asked, self.seat = now, asked, asked.seat
        age, took = asked.age, asked.took
        if told and kept and told[0] == kept[0] and told[7] <= kept[7]:
            told = None
        self.tail = not asked.gone or same
        life, written, hush, claim, lasts, latest, near, count = (kept or (now, now, 0, 0, 0, 0, took, 0))[:8]
        self.passed = max(0, now - written)
        self.still = min(hush - self.passed, 0) if hush > 0 else -1e18
        hush, self.lasts, self.latest = hush - self.passed, lasts - self.passed, max(latest - self.passed, 0)
        if took >= 0:
            near = took if near < 0 else min(took, near + self.passed / 4)
        if told:
            hush, self.latest = max(hush, told[2] - age), max(self.latest, told[5] - age)
        if asked.pause >= 0:
            hush = max(hush, asked.pause) if asked.pause > 0 else 0
        self.hush = min(max(hush, 0), MOST)
        self.claim: float = claim if self.lasts > 0 else 0
        self.lasts = max(self.lasts, 0)
        self.trip = max(took, 0)
        self.horizon = max(asked.horizon, self.trip)
        if near >= 0:
            self.horizon = sqrt(max(asked.horizon, near) * self.horizon)
        self.lag = min(asked.horizon, 25_000) if asked.reach < MOST and any(limit[2] < 0 for limit in asked.limits) else 0
        self.wait: float = 0.0  # how long the first request that got nothing has to wait, ...
        self.place: int = 0  # ... and for which dimension, counted from 1
        self.runs: list[tuple[int, int, list[float]]] = []  # see `Answer`
        self.states: list[list[float]] = []  # of each dimension; empty if the question named no present window
        at = HEAD
        for limit in asked.limits:
            of = slice(at, at + (OF_RATE if limit[0] > 0 else OF_WINDOW))
            read, at = self._rate if limit[0] > 0 else self._window, of.stop
            self.states.append(read(limit, kept and kept[of], told and told[of]))
        begin, room = 0.0, dict[int, float]()
        for want, amounts in asked.runs if all(self.states) else ():
            n, last = self._run(want, amounts, begin, room)
            if asked.within < 0:
                if n < want:
                    break
                begin = last
        head = [life, now, self.hush, self.claim, self.lasts, self.latest, near, count + 1]
        self.answer = Answer("", [*head, *chain(*self.states)], self.wait, self.place, self.seat, self.runs)

    @property
    def keep(self) -> float:
        """After how many us it is at rest: a new value would say the same."""
        lasting = [
            max(s[0], self.hush + (burst - 1) * every) if every > 0 else s[2] - self.now + (s[2] - s[1]) * max(1, s[0] / burst)
            for (every, burst, *_), s in zip(self.asked.limits, self.states, strict=True)
        ]
        return max(self.hush, *lasting)

    def _rate(self, limit: Sequence[float], had: Sequence[float] | None, heard: Sequence[float] | None) -> list[float]:
        (every, burst, more), ahead, full = limit[:3], 0.0, 0.0
        if had:
            ahead, full = max(had[0] - self.passed, min(had[0], (burst - 1) * every) + self.still), had[1] - self.passed
        if heard and heard[0] - self.asked.age > ahead:
            ahead = heard[0] - self.asked.age + (0 if had else self.horizon)
        if ahead <= 0:
            ahead = full = 0.0
        if more > 0:
            ahead += more * every
        if more < 0 and -self.asked.oldest >= full and self.tail:
            ahead = max(ahead + more * every, 0)
        return [min(ahead, MOST), full]

    def _window(self, limit: Sequence[float], had: Sequence[float] | None, heard: Sequence[float] | None) -> list[float]:
        now, (_, burst, more, *edges) = self.now, limit
        place = next((i for i in (1, 2, 3) if edges[i] > now), 0)
        if not place or edges[place - 1] > now:
            return []
        begins, to, ended = edges[place - 1], edges[place], had[2] if had else 0
        s: list[float] = [0, begins, to, 0, 0, 0, 0, 0]
        if had and now < ended <= edges[3] + (to - begins):
            s = [*had]
        elif had and ended > now:
            s[0] = had[0]
        elif had:
            s[0] = max(0, had[0] - burst * max(1, floor((to - ended) / (to - begins) + 0.5)))
            if ended == begins:
                s[5:] = had[3], begins + had[4], floor(burst / max(had[3], 1))
        elif heard and heard[2] > now:
            s[5:] = 1, now + 1_000_000, burst
        if heard and heard[2] == s[2]:
            s[0] = max(s[0], heard[0])
        if more > 0:
            s[0] = min(s[0] + more, MOST)
        if more < 0 and now - self.asked.oldest >= s[1]:
            s[0] = max(0, s[0] + more)
        if self.seat == s[1] and s[5] > 0:
            s[5], self.seat = s[5] - 1, 0
        return s

    def _run(self, want: float, amounts: Sequence[float], begin: float, room: dict[int, float]) -> tuple[float, float]:
        """Returns how many it granted, and when the last of these is due."""
        first, n, self.place = max(begin, self.hush), want, 0
        dims = [
            (j, a, every, burst, self.states[j]) for j, (a, (every, burst, *_)) in enumerate(zip(amounts, self.asked.limits, strict=True))
        ]
        steps = [a * every for _, a, every, _, _ in dims]
        slacks = [(burst - min(a, burst)) * every for _, a, every, burst, _ in dims]
        for j, step in enumerate(steps):
            if step > 0 and self.states[j][0] - slacks[j] > first:
                first, self.place = self.states[j][0] - slacks[j], j + 1
        if self.hush > 0:
            n, self.wait = 0, max(self.wait, first)
        starts = [max(s[0], first - self.lag) - slacks[j] if steps[j] > 0 else first for j, _, _, _, s in dims]
        for j, a, every, burst, s in dims:
            if steps[j] > 0 and self.asked.within >= 0:
                if (late := starts[j] + (want - 1) * steps[j]) > self.asked.within:
                    n, self.wait = 0, max(self.wait, late)
            elif steps[j] > 0:
                if j not in room:
                    room[j] = self.horizon * min(1, self.horizon / first) if first > 0 else max(self.horizon, steps[j]) - starts[j]
                n = min(n, max(floor(room[j] / steps[j]), 0 if self.runs else min(n, 1)))
            elif a > 0 and every == 0:
                n = self._of_window(j, want, n, first, a, burst, s)
        other = self.claim not in (0, self.asked.client)
        if self.asked.within >= 0:
            if n < want or first > self.asked.within or other:
                n, self.wait = 0, max(self.wait, first, 1)
        elif n > 0 and not self.runs:
            if other or first > max(self.latest, self.hush) + self.asked.reach:
                n, self.wait = 0, max(first, 1)
                if not other:
                    self.claim, self.lasts = self.asked.client, 1_000_000 + 2 * self.trip
            elif self.claim == self.asked.client:
                self.claim = self.lasts = 0
        if n <= 0 and self.asked.within < 0:
            return n, 0.0
        last = max([first, *[starts[j] + (n - 1) * step for j, step in enumerate(steps) if step > 0]])
        self.runs.append((int(n), self.place, [first, *[starts[j] for j, _, every, _, _ in dims if every > 0]]))
        for j, a, every, _, s in dims if n > 0 else ():
            if steps[j] > 0:
                s[0] = min(max(starts[j] + n * steps[j], last - self.lag - slacks[j] + steps[j]) + slacks[j], MOST)
                room[j] = room.get(j, 0.0) - n * steps[j]
            elif every == 0:
                s[0] += n * a
        if n > 0:
            self.latest = min(max(self.latest, last), MOST)
        return n, last

    def _of_window(self, j: int, want: float, n: float, first: float, amount: float, burst: float, s: list[float]) -> float:
        closes, held = s[2] - self.now, self.now < s[6]
        over = closes <= self.trip + self.asked.margin
        left = 0 if over or first > 0 else burst - s[0] - (s[5] * s[7] if held else 0)
        n = max(min(n, floor(left / amount)), 0)
        if n < want:
            later = closes if over else min(first if first > 0 else s[6] - self.now if held else closes, closes)
            if self.asked.within < 0 or n < 1:
                self.place, self.wait = j + 1, max(0 if self.asked.within < 0 else self.wait, later)
            if self.asked.within < 0 and later == closes and self.seat != s[2]:
                s[3], s[4], self.seat = s[3] + 1, max(s[4], 2 * self.trip + 50_000), s[2]
        return n


class Local:
    """A store for this process alone, with a ``share`` of the limits. It begins without a burst."""

    __slots__ = ("_value", "parts", "spent")

    def __init__(self, parts: Sequence[Part], share: Fraction) -> None:
        self.parts: tuple[Part, ...] = tuple([_part(part, share) for part in parts])  # windows are paced, too
        self._value: list[float] | None = None
        self.spent: list[int] = [0] * len(parts)  # of each dimension

    def ask(self, question: Question, reading: int) -> Answer:
        corrected = [row(part, 0 if self._value else part.burst - 1) for part in self.parts]
        answer = Answering(reading / 1000, question._replace(pause=-1, took=-1, limits=corrected), self._value, None, False).answer
        self._value = answer.numbers
        for (n, _, _), (_, need) in zip(answer.runs, question.runs, strict=False):
            self.spent = [own + int(n * of) for own, of in zip(self.spent, need, strict=True)]
        return answer


def _part(part: Part, share: Fraction) -> Part:
    rate = Rate._exactly(part.rate.permits * share.numerator, part.rate.period_ns * share.denominator)
    return Part(rate, 1 if part.calendar is not None else max(part.burst * share.numerator // share.denominator, 1))
