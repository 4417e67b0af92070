"""A limit's questions in the words of the script, and the script's answers in those of the pool: ns of this process.

The wall clock of this machine decides nothing. The store says what time it is, somewhere between question and answer: a permit of a
window is used only before the earliest instant here at which that may end.
"""

from __future__ import annotations

import os
from logging import getLogger
from math import ceil
from random import getrandbits
from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND
from aiorate._store.script import FORM, HEAD, MOST, OF_RATE, OF_WINDOW, Question, pack
from aiorate._store.slots import Level, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._store.demand import Demand, Runs, Terms
    from aiorate._store.pool import Pool
    from aiorate._store.script import Answer
    from aiorate._store.slots import Part

__all__ = ["Exchange"]

_logger = getLogger("aiorate")

_US = 1_000  # ns
_LONGEST_ANSWER_NS = NS_PER_SECOND  # a slower round trip counts as this
_LATEST_UNIX_NS = 10**19  # the year 2286


class Exchange:
    """What the store said last, and what is to be said to it."""

    __slots__ = ("_clock", "_demand", "_differs", "_edges", "_number", "_pool", "_seat", "_terms", "_told_at", "told")

    def __init__(self, pool: Pool, terms: Terms, demand: Demand) -> None:
        self._pool, self._terms, self._demand = pool, terms, demand
        self.told: str = ""
        """The value of the key, ..."""
        self._told_at: int = 0  # ... and the reading when it came
        self._number: tuple[int, int] = (0, 0)  # of this client, and its process
        self._seat: float = 0
        self._clock: int | None = None  # what the store's clock is ahead of readings; None: it has not said
        self._edges: tuple[object, list[int]] = (None, [])  # of windows; Unix times in ns, of that rate
        self._differs: bool = False  # whether the log was told that calendars differ

    def question(self, runs: Runs, whole: bool, reading: int, pause: float = -1.0, oldest: float = 0.0, gone: bool = False) -> Question:
        """What is asked for these requests, each of which is granted ``whole`` or not at all, or at any time; and what is told."""
        demand, slack = self._demand, self._terms.slack / _US
        far = demand.far(runs)
        if self._number[1] != os.getpid():
            self._number = getrandbits(48) + 1, os.getpid()
        age, took = (reading - self._told_at) / _US, demand.took / _US if demand.took else -1
        within = slack if whole else -1
        return Question(pause, far, demand.reach(far), within, age, self._number[0], oldest, took, self._seat, int(gone), slack)

    def words(self, question: Question, runs: Runs, reading: int) -> list[str | bytes]:
        """The script's arguments."""
        return [pack(question, self._rows(reading), runs), self.told or f"{FORM} {self._terms.kind}"]

    def heard(self, answer: Answer, sent_at: int, received: int) -> None:
        """Remember what the store said, between these readings."""
        took = max(min(received - sent_at, _LONGEST_ANSWER_NS), 1)
        demand = self._demand
        demand.took = self._pool.answer_ns = (3 * demand.took + took) // 4 if demand.took else took
        self._clock = int(answer.numbers[1 if answer.value else 0]) * _US - (sent_at + received) // 2
        if answer.value:
            self.told, self._told_at, self._seat = answer.value, received, answer.seat
        else:  # it is another time than was thought
            self._edges = None, []

    def _rows(self, reading: int) -> list[list[float]]:
        rows: list[list[float]] = []
        for part, more in zip(self._pool.parts, self._pool.corrections, strict=True):
            least = max(min(more, MOST), -MOST)
            if part.calendar is None:
                rows.append([part.rate.period_ns / (part.rate.permits * _US), part.burst, least, 0, 0, 0, 0])
            else:
                rows.append([0, part.burst, least, *[edge / _US for edge in self._windows(part, reading)]])
        return rows

    def _windows(self, part: Part, reading: int) -> list[int]:
        """The edges of the present window and of the next two; Unix times in ns."""
        calendar, period = part.calendar, part.rate.period_ns
        assert calendar is not None
        # Until the store has said what time it is, the machine's clock is as good a guess as any.
        present = min(max(calendar.origin + reading if self._clock is None else self._clock + reading, 3 * period), _LATEST_UNIX_NS)
        rate, edges = self._edges
        if rate != part.rate or not edges[0] <= present < edges[1]:
            edges = calendar.edges(present - 2 * period, 8)
            place = max([i for i, edge in enumerate(edges) if edge <= present], default=0)
            edges = edges[place : place + 4]
            self._edges = part.rate, edges
        return edges

    def _compare(self, part: Part, ends: float) -> None:
        """Tell the log if the window ends at an instant at which none does here."""
        edges = self._edges[1]
        if not self._differs and edges[0] <= ends * _US <= edges[-1] and ends * _US not in edges:
            self._differs = True
            assert part.calendar is not None
            _logger.warning(
                "a RedisLimiter of %s shares windows that end otherwise, at %d s of Unix time: another process of this name has another"
                " period, time zone or tzdata. The windows of whichever process asks first hold. Give all the same.",
                part.calendar.described,
                ends // 1_000_000,
            )

    def follow(self, answer: Answer, parts: Sequence[Part], now: int) -> None:
        """Note what the answer says of each dimension."""
        place, written, levels = HEAD, answer.numbers[1], []
        for part in parts:
            if part.calendar is None:
                levels.append(Level(now + ceil(answer.numbers[place] * _US)))
                place += OF_RATE
            else:
                used, _, ends = answer.numbers[place : place + 3]
                after = [edge for edge in self._edges[1] if edge > ends * _US]
                begins = [now + ceil((ends - written) * _US), *[now + edge - int(written) * _US for edge in after]]
                levels.append(Level(now, int(used), tuple(begins)))
                self._compare(part, ends)
                place += OF_WINDOW
        if not (len(levels) == 1 and parts != self._pool.parts and parts[0].calendar is not None):
            self._pool.levels = list(levels)

    def run(self, n: int, place: int, starts: list[float], need: tuple[int, ...], parts: Sequence[Part], now: int) -> Run:
        """Slots that begin so many us after ``now``: the first of them, and by each rate."""
        pool = self._pool
        first, *times = [now + ceil(us * _US) for us in starts]
        if len(parts) == 1:  # as most have
            rate = parts[0].rate
            step = rate.permits, rate.period_ns * need[0]
            return Run((1,) if pool.unit else need, n, first, times, (step,), pool.late_of(need), place - 1, 0)
        paced = [(at, of, j) for j, (at, of) in enumerate(zip(times, need, strict=True)) if of]
        steps = [(parts[j].rate.permits, parts[j].rate.period_ns * of) for _, of, j in paced]
        slowest = max(paced, key=lambda each: parts[each[2]].time_of(each[1]))[2]
        if pool.unit:  # single permits are as late as those of the rates that rule at the ends
            ends = [at + parts[j].time_of(n - 1) for at, _, j in paced]
            late = min(pool.late_of(need, times.index(max(times))), pool.late_of(need, ends.index(max(ends))))
        else:
            late = pool.late_of(need)
        return Run((1,) if pool.unit else need, n, first, [at for at, _, _ in paced], steps, late, place - 1, slowest)
