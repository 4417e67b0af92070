"""The largest number of requests that may wait: for permits, and before that for places."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate.waiting.dispatcher import Dispatcher

__all__ = ["MaxWaiting"]


class MaxWaiting:
    """At most ``most`` requests wait in the line of the dispatcher and in that of ``places``, from where they go on to the first."""

    __slots__ = ("_dispatcher", "_places", "most")

    def __init__(self, most: int, dispatcher: Dispatcher, places: Dispatcher | None = None) -> None:
        self.most: int = most
        self._dispatcher = dispatcher
        self._places = places

    def reached(self) -> bool:
        """Whether ``most`` requests wait already. One that is being cancelled does not count."""
        line, places = self._dispatcher.line, self._places
        if places is None:
            return len(line) >= self.most and line.count() >= self.most
        self._dispatcher.look()
        resuming = places.waiters.resuming
        if len(line) + len(places.line) + resuming < self.most:
            return False
        return line.count() + places.line.count() + resuming >= self.most
