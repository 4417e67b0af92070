"""The largest number of requests that may wait: for permits, and before that for places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.refusals import Refusals

__all__ = ["Admission", "MaxWaiting"]


class Admission(Protocol):
    """What a request has to pass before it may wait."""

    def check(self, permits: int, refusals: Refusals) -> None:
        """Raise its error if it may not."""
        ...


class MaxWaiting:
    """At most ``most`` requests wait in the line of the dispatcher and in that of ``places``, from where they go on to the first."""

    __slots__ = ("_dispatcher", "_places", "most")

    def __init__(self, most: int, dispatcher: Dispatcher, places: Dispatcher | None = None) -> None:
        self.most: int = most
        self._dispatcher = dispatcher
        self._places = places

    def check(self, permits: int, refusals: Refusals) -> None:
        """Raise LineFull if ``most`` requests wait already. One that is being cancelled does not count."""
        if self._reached():
            self._dispatcher.counters.refused += 1
            raise refusals.full(permits, self.most)

    def _reached(self) -> bool:
        line, places = self._dispatcher.line, self._places
        if places is None:
            return len(line) >= self.most and line.count() >= self.most
        resuming = places.waiters.resuming
        if len(line) + len(places.line) + resuming < self.most:
            return False
        return line.count() + places.line.count() + resuming >= self.most
