"""What the views of single event loops have in common: the watch for whether the loop runs its other tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._loops.turnstile import LOOP_CHECK_NS

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiorate._loops.turnstile import Turnstile

__all__ = ["OneLoop"]


class OneLoop:
    """A part of an `EventLoop` that stands for one loop, with its turnstile. ``check_after`` is as there."""

    __slots__ = ("check_after", "turnstile")

    def __init__(self, turnstile: Turnstile, check_after: int) -> None:
        self.turnstile: Turnstile = turnstile
        self.check_after: int = check_after

    def watch(self, now: int) -> bool:
        """Whether the loop is starved at the reading ``now``. Watches it from then on."""
        held_for = self.turnstile.held_for()
        self.check_after = now - held_for + LOOP_CHECK_NS
        return held_for >= LOOP_CHECK_NS

    def turn(self) -> Awaitable[object]:
        return self.turnstile.wait()

    def room(self, resuming: int) -> int:
        return self.turnstile.room(resuming)
