"""What schedulers keep of their latest takes, so that these come back without a trace; and the meter that takes single permits.

A take leaves a record: the state before it and the number of permits. Takes that only add permits to the one before share its
record. Takes at one instant are a group, and it makes no difference which request holds which permits of it.
A grab of a meter is a take of one permit. Before the scheduler itself does anything that depends on the takes before it, it collects
what the grabs came to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._meter import NO_LINE
from aiorate._schedulers.interface import Scheduler, check_give_back

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from aiorate._meter import Meter
    from aiorate._rate import Rate

__all__ = ["Metered", "Undoing"]

_NONE: list[tuple[int, ...]] = []  # shared by all schedulers with a single record; never changed


class Undoing(Scheduler):
    """A scheduler that keeps records of the takes at its latest instant. The subclass defines `undo`."""

    __slots__ = ("_latest", "older_takes", "rate")

    rate: Rate
    _latest: tuple[int, ...] | None
    """The record of the latest take: its instant first, then what the subclass needs, then its permits."""
    older_takes: list[tuple[int, ...]]
    """The records before it that are of the same instant. Records of another instant here are not used."""

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Undo the takes at ``taken``, if they are the latest. An older slot is lost, because it has delayed later requests."""
        check_give_back(permits, now, taken)
        if taken is not None:
            self.undo_takes(permits, taken)

    def forget_takes(self) -> None:
        """Make all earlier takes permanent."""
        self._latest, self.older_takes = None, _NONE

    def note_take(self, record: tuple[int, ...], *, joins: bool) -> None:
        """Keep the record of one more take at the instant of the latest. ``joins``: it only adds permits to that."""
        latest = self._latest
        assert latest is not None
        if joins:
            record = (*latest[:-1], latest[-1] + record[-1])
        else:
            if not self.older_takes or self.older_takes[-1][0] != record[0]:
                self.older_takes = []
            self.older_takes.append(latest)
        self._latest = record

    def collect(self) -> None:
        """Heed what was taken otherwise than by `take`, if the subclass has another way."""

    def undo_takes(self, permits: int, taken: int) -> int:
        """Undo takes at that instant, the latest first, until ``permits`` are back. Returns the number that could not be undone."""
        self.collect()
        while permits:
            record = self._latest
            if record is None or record[0] != taken or not self.stands(record):
                break
            kept = max(record[-1] - permits, 0)
            permits -= record[-1] - kept
            # The record first, so that an interrupt in between loses permits instead of giving them twice.
            if kept:
                self._latest = (*record[:-1], kept)
            else:
                older = self.older_takes
                self._latest = older.pop() if older and older[-1][0] == taken else None
            self.undo(record, kept)
        return permits

    def stands(self, record: tuple[int, ...]) -> bool:
        """Whether the state is still as that take left it."""
        return True

    def undo(self, record: tuple[int, ...], kept: int) -> None:
        """Return to the state before the record's takes, and take ``kept`` of its permits again."""
        raise NotImplementedError


class Metered(Undoing):
    """The subclass keeps the instant of its next permit in `line`, in ticks, and sets ``metered_take = take`` below its own `take`.

    Its records are the instant of the take, the next permit before it, the first that was taken, what the subclass needs, and the
    number of permits.
    """

    __slots__ = ("line",)
    line: Meter
    """The next permit. A grab does what ``take(1, now)`` does, or nothing."""

    @property
    def _meter(self) -> Meter | None:
        """The line, unless it is not straight, or a subclass or an attribute takes permits in another way."""
        return self.line if self.take == self.metered_take and self.line.numbers != NO_LINE else None

    metered_take: Callable[..., int] = Undoing.take

    def collect(self) -> None:
        """Heed the grabs since the last call."""
        last, cut, peak = self.line.collect()
        if last is not None and self.line.due is not None:
            latest = self._latest
            if latest is not None and latest[0] == last and not cut:  # all of them were at that instant
                self._latest = (*latest[:-1], (self.line.due - latest[2]) // self.rate.ticks[1])
            else:
                self.forget_takes()
            self.heed(last, cut, peak)

    def heed(self, last: int, cut: int, peak: int) -> None:
        """Follow grabs, the latest at ``last``, that lost ``cut`` ticks and found at most ``peak`` idle ones."""

    def __getstate__(self) -> object:
        self.collect()  # the copy of a meter begins without grabs
        return object.__getstate__(self)

    def __copy__(self) -> Self:
        from copy import deepcopy

        return deepcopy(self)
