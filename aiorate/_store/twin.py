"""The script in Python: for a file, for a process in an outage, and for tests. Its function is read as Python, so it answers the same."""

from __future__ import annotations

from itertools import chain
from math import floor, sqrt
from re import sub
from typing import TYPE_CHECKING, Any

from aiorate._rate import Rate
from aiorate._store.script import ASSIGN, Answer, numbers_of, row
from aiorate._store.slots import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction

    from aiorate._store.script import Question


def take_now(
    every: float, burst: int, n: int, told: Sequence[float] | None, value: Sequence[float] | None, now: float
) -> tuple[tuple[bool, float] | None, tuple[float, ...] | None, float]:
    """`answer_of` in closed form for the most frequent question: ``n`` slots of one rate, now or not at all.

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


_names: dict[str, Any] = {"max": max, "min": min, "floor": floor, "sqrt": sqrt, "unpack": lambda table, i, j: table[i : j + 1]}
_code = ASSIGN
for _lua, _python in {
    r" *--.*": "",
    r"\blocal ": "",
    r" (then|do)\b": ":",
    r"\belseif\b": "elif",
    r"\belse\b": "else:",
    r"\bend\b": "",
    r"~=": "!=",
    r"\bnil\b": "None",
    r"for (\w+) = (.+), (.+):": r"for \1 in range(\2, \3 + 1):",
    r"\{([^}]+)\}": r"[None, \1]",  # tables count from 1; those that grow are dicts
    r"#(\w+)": r"len(\1)",
}.items():
    _code = sub(_lua, _python, _code)
exec(f"def assign(now, w, kept, told, same):\n{_code}", _names)
_assign: Callable[..., Any] = _names["assign"]


def answer_of(now: float, asked: Question, kept: Sequence[float] | None, told: Sequence[float] | None, same: bool) -> tuple[Answer, float]:
    """What the script answers; and after how many us the value is at rest: a new one would say the same.

    ``kept`` is the value, ``told`` what the client was told last, ``same`` whether nobody has asked since.
    """
    found = _assign(now, [None, *numbers_of(asked), None], kept and [None, *kept], told and [None, *told], same)
    if found is None:  # the question named no present window
        return Answer("", [now], 0.0, 0, 0.0, []), 0.0
    head, states, keep, wait, place, seat, out = found
    runs = [(int(n), place, starts) for n, place, *starts in map(dict.values, out.values())]
    return Answer("", [*head[1:], *chain(*[state[1:] for state in states.values()])], wait, place, seat, runs), keep


class Local:
    """A store for this process alone, with a ``share`` of the limits. It begins without a burst."""

    __slots__ = ("_value", "parts", "spent")

    def __init__(self, parts: Sequence[Part], share: Fraction) -> None:
        own, of = share.as_integer_ratio()
        rates = [Rate._exactly(part.rate.permits * own, part.rate.period_ns * of) for part in parts]
        bursts = [part.burst * own // of if part.calendar is None else 1 for part in parts]  # windows are paced, too
        self.parts: tuple[Part, ...] = tuple(map(Part, rates, bursts))
        self._value: list[float] | None = None
        self.spent: list[int] = [0] * len(parts)  # of each dimension

    def ask(self, question: Question, reading: int) -> Answer:
        limits = [row(part, 0 if self._value else part.burst - 1) for part in self.parts]
        answer, _ = answer_of(reading / 1000, question._replace(pause=-1, took=-1, limits=limits), self._value, None, False)
        self._value = answer.numbers
        for (n, _, _), (_, need) in zip(answer.runs, question.runs, strict=False):
            self.spent = [own + int(n * of) for own, of in zip(self.spent, need, strict=True)]
        return answer
