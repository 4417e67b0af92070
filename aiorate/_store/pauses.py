"""A pause of all processes, as one limiter follows it. It waits here, and may be ended by another process."""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND
from aiorate._store.crowd import Crowd
from aiorate._tree.changes import on_pause_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._loops.clock import Handle
    from aiorate._store.place import Timers
    from aiorate._tree.node import Node

__all__ = ["SharedPause"]

_US = 1_000  # ns
_RECHECK_SECONDS = 1.0  # how often a process in which a request waits asks whether a pause goes on


class SharedPause:
    """Keeps a limiter's timeline in step with the store. ``tell`` has the store asked."""

    __slots__ = ("_node", "_tell", "_timer", "on", "rechecks")

    def __init__(self, node: Node, tell: Callable[[], None]) -> None:
        self._node: Node = node
        self._tell: Callable[[], None] = tell
        self._timer: Handle | None = None
        self.on: bool = False
        """Whether the store pauses all processes."""
        self.rechecks: bool = False
        """Whether the next question asks for nothing else than whether the pause goes on."""

    def follow(self, us: float, unsaid: bool) -> None:
        """The store pauses all processes for ``us``; 0: it does not. ``unsaid``: it has not heard of the latest pause."""
        timeline = self._node.timeline
        if us > 0:
            self.on = True
            ns, until = ceil(us * _US), timeline.paused_until
            if not unsaid and until is not None and until > timeline.read() + ns:
                timeline.resume()  # a longer one, which another process has ended
            timeline.pause(ns, partial(on_pause_end, self._node, timeline.now()))
        elif not unsaid:
            self.on = False
            timeline.resume()

    def recheck_later(self, timers: Timers) -> None:
        """A request waits for the end of the pause: ask in a second, and again, whether it goes on."""
        timeline = self._node.timeline
        until = timeline.paused_until
        if self.on and self._timer is None and until is not None and until - timeline.read() > _RECHECK_SECONDS * NS_PER_SECOND:
            self._timer = timers.call_later(_RECHECK_SECONDS, self._recheck)

    def _recheck(self) -> None:
        self._timer = None
        if Crowd(self._node) and self._node.timeline.paused:
            self.rechecks = True
            self._tell()

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
