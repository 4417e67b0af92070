"""Notices: the events that a limiter logs, and passes to ``on_event``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._events import Event
    from aiorate._tree.tree import Tree

__all__ = ["Notices"]


class Notices:
    """Events of one limiter. ``name`` is its name."""

    __slots__ = ("_skipped", "name", "on_event")

    def __init__(self, name: str | None) -> None:
        self.name: str | None = name
        self.on_event: Callable[[Event], object] | None = None
        self._skipped = 0  # permits of which no event has told yet

    def tell(self, event: Event, tree: Tree) -> None:
        """Log the event and call ``on_event``, once no decision is half made: the callback may use the limiter."""
        from aiorate._events import emit

        tree.after(partial(emit, event, self.on_event))

    def skipped(self, permits: int, tree: Tree) -> None:
        """Tell of skipped permits in the next iteration of the loop: the callback may change the limiter, which is deciding now."""
        if not self._skipped and tree.loop is not None:
            tree.loop.post(partial(self._tell_of_skipped, tree))
        self._skipped += permits

    def forget(self) -> None:
        """Drop the permits skipped until now, of which no event has told."""
        self._skipped = 0

    def _tell_of_skipped(self, tree: Tree) -> None:
        permits, self._skipped = self._skipped, 0
        if permits:
            from aiorate._events import Event

            self.tell(Event("skipped", self.name, permits=permits), tree)
