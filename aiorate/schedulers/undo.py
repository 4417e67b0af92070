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
    """The records before it, of the same instant."""

    def forget_takes(self) -> None:
        """What was taken so far can no longer be undone."""
        self._latest, self.older_takes = None, _NONE

    def record_take(self, record: tuple[int, ...]) -> None:
        """Keep the record of a take that cannot share the one before."""
        latest = self._latest
        if latest is not None and latest[0] == record[0]:
            if self.older_takes is _NONE:
                self.older_takes = []
            self.older_takes.append(latest)
        elif self.older_takes is not _NONE:
            self.older_takes = _NONE
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
            self._latest = (*record[:-1], kept) if kept else self.older_takes.pop() if self.older_takes else None
            self.undo(record, kept)
        return permits

    def stands(self, record: tuple[int, ...]) -> bool:
        """Whether nothing has changed since that take."""
        return True

    def undo(self, record: tuple[int, ...], kept: int) -> None:
        """Return to the state before the record's takes, and take ``kept`` of its permits again."""
        raise NotImplementedError
