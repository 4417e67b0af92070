"""The script in Python: the store of one process in an outage, and of tests. The same words in and out, and the same numbers.

It follows the script line by line, so that one can be read beside the other.
"""

from __future__ import annotations

from math import floor, sqrt
from struct import Struct
from typing import TYPE_CHECKING

from aiorate._store.script import FORM, HEAD, MOST, OF_RATE, OF_WINDOW

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Twin"]


class Twin:
    """One key of a store."""

    def __init__(self) -> None:
        self.text: str = ""
        """Its value."""

    def ask(self, now: float, packed: bytes, remembered: str) -> str:
        """The answer to a question when the server's clock reads ``now``. Raises ValueError for a value of another kind of limit."""
        w = Struct(f"<{len(packed) // 8}d").unpack(packed)
        return _Answering(self, now, w, remembered).answer()


class _Answering:
    """One run of the script."""

    def __init__(self, twin: Twin, now: float, w: Sequence[float], remembered: str) -> None:
        self.twin, self.now, self.w, self.remembered = twin, now, w, remembered
        self.kind = remembered.split(" ", 2)[1]
        self.pause, self.horizon, self.reach, self.within, self.age, self.client = w[:6]
        self.oldest, self.took, self.seat, self.gone, self.margin, dims = w[6:12]
        self.dims: int = int(dims)
        self.limits = [w[12 + 7 * j : 19 + 7 * j] for j in range(self.dims)]
        self.state: list[list[float]] = []

    def answer(self) -> str:
        kept = self._read(self.twin.text)
        if self.twin.text and kept is None:
            raise ValueError("WRONGTYPE the key has another kind of limit, or something else")
        told = self._read(self.remembered) if self.remembered != self.twin.text else None
        if told and kept and told[0] == kept[0] and told[7] <= kept[7]:
            told = None
        self._times(kept, told)
        offset = HEAD
        for j, (every, *_) in enumerate(self.limits):
            size = OF_RATE if every > 0 else OF_WINDOW
            had = kept[offset : offset + size] if kept else None
            heard = told[offset : offset + size] if told else None
            if every > 0:
                self._rate(j, had, heard)
            elif not self._window(j, had, heard):
                return f"{self.now:.0f}; clock"
            offset += size
        out = self._grant()
        head = f"{FORM} {self.kind} {self.life:.0f} {self.now:.0f} {self.hush:.17g} {self.claim:.0f} {self.lasts:.17g} {self.latest:.17g}"
        words = [f"{self.near:.17g}", f"{kept[7] + 1 if kept else 1:.0f}"]
        for (every, *_), state in zip(self.limits, self.state, strict=True):
            words += [f"{each:.17g}" for each in state] if every > 0 else [f"{state[0]:.17g}", *[f"{each:.0f}" for each in state[1:]]]
        self.twin.text = f"{head} {' '.join(words)}"
        return f"{self.twin.text}; {self.wait:.3f} {self.place:.0f} {self.seat:.0f}{''.join(out)}"

    def _read(self, text: str) -> list[float] | None:
        form, _, rest = text.partition(" ")
        kind, _, words = rest.partition(" ")
        numbers = [float(each) for each in words.split(" ")] if form == FORM and kind == self.kind and words else []
        size = HEAD + sum(OF_RATE if every > 0 else OF_WINDOW for every, *_ in self.limits)
        return numbers if len(numbers) == size else None

    def _times(self, kept: list[float] | None, told: list[float] | None) -> None:
        self.kept, self.tail = kept is not None, not self.gone or self.twin.text == self.remembered
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

    def _rate(self, j: int, had: list[float] | None, heard: list[float] | None) -> None:
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

    def _window(self, j: int, had: list[float] | None, heard: list[float] | None) -> bool:
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

    def _grant(self) -> list[str]:
        self.begin, self.wait, self.place = 0.0, 0.0, 0
        self.most: dict[int, float] = {}
        self.had: dict[int, float] = {}
        out: list[str] = []
        size = 1 + self.dims
        for k in range(12 + 7 * self.dims, len(self.w), size):
            want, *amounts = self.w[k : k + size]
            n = self._one(want, amounts, out)
            if n < want and self.within < 0:
                break
        return out

    def _one(self, want: float, amounts: list[float], out: list[str]) -> float:
        """Answer one run."""
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
                    n = self._of_rate(j, want, n, first, steps[j], starts[j], bool(out))
            elif a > 0:
                n = self._of_window(j, want, n, first, a)
        n = self._claim(want, n, first, bool(out))
        if n > 0:
            last = max([first, *[starts[j] + (n - 1) * steps[j] for j in range(self.dims) if steps[j] > 0]])
            words = f" {n:.0f} {self.place:.0f} {first:.3f}"
            for j, state in enumerate(self.state):
                if self.limits[j][0] <= 0:
                    state[0] = state[0] + n * amounts[j]
                    continue
                words += f" {starts[j] if steps[j] > 0 else first:.3f}"
                if steps[j] > 0:
                    state[0] = min(max(starts[j] + n * steps[j], last - self.lag - slacks[j] + steps[j]) + slacks[j], MOST)
                    if j in self.had:
                        self.had[j] += n * steps[j]
            out.append(words)
            self.latest = min(max(self.latest, last), MOST)
            if self.within < 0:
                self.begin = last
        elif self.within >= 0:
            out.append(" 0")
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
