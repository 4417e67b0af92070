"""A group: limiters that are used by turns, as those of many keys are. Knows nothing of rates, keys or who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.waiting.loops import view_of

if TYPE_CHECKING:
    from aiorate.waiting.clock import Clock
    from aiorate.waiting.view import EventLoop

__all__ = ["Group"]


class Group:
    """The limiters of one group."""

    __slots__ = ()

    def loop(self, native: object, clock: Clock | None, precise: bool) -> EventLoop:
        """The view of the running loop."""
        return view_of(native, clock, precise)
