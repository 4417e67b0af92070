"""Permits in hand that nobody uses: they go back to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND
from aiorate._store.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._loops.clock import Handle
    from aiorate._store.ledger import Ledger
    from aiorate._store.place import Timers
    from aiorate._tree.node import Node

__all__ = ["Spare"]


class Spare:
    """Has them go back at once, or once nobody has used them within the lease. ``tell`` has the store asked."""

    __slots__ = ("_ledger", "_node", "_tell", "_timer")

    def __init__(self, node: Node, ledger: Ledger, tell: Callable[[], None]) -> None:
        self._node: Node = node
        self._ledger: Ledger = ledger
        self._tell: Callable[[], None] = tell
        self._timer: Handle | None = None

    def look(self, timers: Timers | None) -> None:
        """The store has answered, or there was nothing to ask."""
        ledger, node = self._ledger, self._node
        if not ledger.keeps or not ledger.scheduler.in_hand:
            return
        if ledger.spare(Crowd(node), node.timeline.now()):
            self._tell()
        elif ledger.lease and self._timer is None and timers is not None:
            self._timer = timers.call_later(ledger.lease / NS_PER_SECOND, self._on_lease)

    def _on_lease(self) -> None:
        self._timer = None
        self._tell()

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
