"""Switches a limiter from the store to the fallback of its policy when an outage outlasts the grace, and back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate._events import Event
from aiorate._rate import NS_PER_SECOND, ns_to_seconds

if TYPE_CHECKING:
    from aiorate._loops.clock import Handle
    from aiorate._schedulers.supplied import Supplied
    from aiorate._store.outage import Outage
    from aiorate._store.place import Timers
    from aiorate._tree.node import Node

__all__ = ["FallbackSwitch"]


class FallbackSwitch:
    """Has the timer for the end of the grace, and says in events what changed."""

    __slots__ = ("_node", "_outage", "_scheduler", "_timer")

    def __init__(self, node: Node, scheduler: Supplied, outage: Outage) -> None:
        self._node: Node = node
        self._scheduler: Supplied = scheduler
        self._outage: Outage = outage
        self._timer: Handle | None = None

    def no_answer(self, began: int, cause: BaseException) -> None:
        """A question of that reading got no answer."""
        scheduler = self._scheduler
        self._outage.failed(began, cause)
        if self._outage.degraded:
            scheduler.unanswered()  # to hear whether slots are still wanted
            if scheduler.fallback is None:
                scheduler.fallback = self._outage.fallback
                self._node.changed()
        else:
            self._look()  # requests that do not wait were refused all through the grace, and set no timer

    def await_end_of_grace(self, timers: Timers | None) -> None:
        """Set the timer, if there is an outage and the grace is not over."""
        due = self._outage.due
        if self._timer is None and due is not None and timers is not None:
            seconds = max(due - self._node.timeline.read(), 0) / NS_PER_SECOND
            self._timer = timers.call_later(seconds, partial(self._on_grace, timers))

    def _on_grace(self, timers: Timers) -> None:
        self._timer = None
        if not self._look():
            self.await_end_of_grace(timers)  # a timer may be early

    def _look(self) -> bool:
        """Switch to the fallback if the grace is over. Returns whether it is."""
        node, outage = self._node, self._outage
        fallback = outage.over(node.timeline.read(), node.timeline.now())
        if fallback is None:
            return False
        self.cancel()
        self._scheduler.fallback = fallback
        node.tell(Event("degraded", node.name, source=f"{outage.why}; on_unavailable={outage.policy!r}"))
        node.changed()
        return True

    def nobody_waits(self) -> None:
        """There is nothing to ask: an outage within the grace does not matter."""
        if not self._outage.degraded:
            self._outage.forget()
            self.cancel()

    def restore(self, ns: int) -> None:
        """The store can be reached again, after it was degraded for ``ns``."""
        self.cancel()
        self._scheduler.fallback = None
        if ns:
            self._node.tell(Event("restored", self._node.name, seconds=ns_to_seconds(ns)))

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
