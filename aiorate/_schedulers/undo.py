"""Undoing: permits taken at the latest instant can be given back without a trace, one take after the other.

A take leaves a record: the state before it and the number of permits. Takes that only add permits to the one before share its
record. Takes at one instant are a group, and it makes no difference which request holds which permits of it.
Knows nothing of what a state means, of clocks, loops or waiters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._schedulers.interface import Scheduler, check_give_back

if TYPE_CHECKING:
    from aiorate._rate import Rate

__all__ = ["Undoing"]

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
        """Keep the record of a take. ``joins``: it only adds permits to the take before, if that is of the same instant."""
        latest = self._latest
        if latest is not None and latest[0] == record[0]:
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
