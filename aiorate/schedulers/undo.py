"""Undoing: what was taken at the latest instant can be given back without a trace, one take after the other.

A take leaves a record: the state before it and the number of permits. Takes that only add permits to the one before share its
record. Takes at one instant are a group, and it makes no difference which request holds which permits of it.
Knows nothing of what a state means, of clocks, loops or waiters.
"""

from __future__ import annotations

from aiorate.schedulers.interface import Scheduler

__all__ = ["Undoing"]

_NONE: list[tuple[int, ...]] = []  # shared by all that hold a single record; never changed


class Undoing(Scheduler):
    """A scheduler that keeps records of the takes at its latest instant. The subclass defines `undo`."""

    __slots__ = ("_latest", "older_takes")

    _latest: tuple[int, ...] | None
    """The record of the latest take: its instant first, then what the subclass needs, then its permits."""
    older_takes: list[tuple[int, ...]]
    """The records before it, if they are of the same instant; else they are of no use."""

    def forget_takes(self) -> None:
        """What was taken so far can no longer be undone."""
        self._latest, self.older_takes = None, _NONE

    def record_take(self, record: tuple[int, ...]) -> None:
        """Keep the record of a take that cannot share the one before, which is of the same instant."""
        if self._latest is not None:
            if not self.older_takes or self.older_takes[-1][0] != record[0]:
                self.older_takes = []
            self.older_takes.append(self._latest)
        self._latest = record

    def undo_takes(self, permits: int, taken: int) -> int:
        """Undo takes at that instant, the latest first, until so many permits are back. Returns how many could not be undone."""
        while permits:
            record = self._latest
            if record is None or record[0] != taken or not self.stands(record):
                break
            kept = max(record[-1] - permits, 0)
            permits -= record[-1] - kept
            # First, so that an interrupt in between loses permits and gives none twice.
            if kept:
                self._latest = (*record[:-1], kept)
            else:
                older = self.older_takes
                self._latest = older.pop() if older and older[-1][0] == taken else None
            self.undo(record, kept)
        return permits

    def stands(self, record: tuple[int, ...]) -> bool:
        """Whether nothing has changed since that take."""
        return True

    def undo(self, record: tuple[int, ...], kept: int) -> None:
        """Return to the state before the record's takes, and take ``kept`` of its permits again."""
        raise NotImplementedError
