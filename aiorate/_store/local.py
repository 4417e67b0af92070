"""A store of this process alone, by the script's twin: for an outage of the one that processes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._rate import Rate
from aiorate._store.script import Answer
from aiorate._store.slots import Part
from aiorate._store.twin import Answering

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from aiorate._store.script import Question


class Local:
    """It has a ``share`` of the limits, and begins without a burst."""

    __slots__ = ("_value", "parts", "spent")

    def __init__(self, parts: Sequence[Part], share: Fraction) -> None:
        self.parts: tuple[Part, ...] = tuple([_part(part, share) for part in parts])
        """Its limits: a window is paced, too."""
        self._value: list[float] | None = None
        self.spent: list[int] = [0] * len(parts)
        """Of each dimension."""

    def ask(self, question: Question, runs: Sequence[tuple[int, tuple[int, ...]]], reading: int) -> Answer:
        """The answer to that question."""
        w: list[float] = [*question._replace(took=-1), len(self.parts)]
        for part in self.parts:
            w += [part.every_us, part.burst, 0 if self._value else part.burst - 1, 0, 0, 0, 0]
        for n, need in runs:
            w += [n, *need]
        answering = Answering(reading / 1000, w, self._value, None, False)
        self._value = answering.value
        granted = [(int(n), place, dues) for n, place, dues in answering.runs]
        for (n, _, _), (_, need) in zip(granted, runs, strict=False):
            self.spent = [own + n * of for own, of in zip(self.spent, need, strict=True)]
        return Answer("local", self._value, answering.wait, answering.place, answering.seat, granted)


def _part(part: Part, share: Fraction) -> Part:
    rate = Rate.exactly(part.rate.permits * share.numerator, part.rate.period_ns * share.denominator)
    return Part(rate, 1 if part.calendar is not None else max(part.burst * share.numerator // share.denominator, 1))
