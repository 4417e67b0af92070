"""The largest number of requests that may wait: for permits, and before that for places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.limit import Limit
    from aiorate._tree.refusals import Refusals

__all__ = ["Admission", "MaxWaiting"]


class Admission(Protocol):
    """What a request has to pass before it may wait."""

    def check(self, permits: Permits, refusals: Refusals) -> None:
        """Raise its error if it may not."""
        ...


class MaxWaiting:
    """At most ``most`` requests wait in the line of the node and in that of its ``places``."""

    __slots__ = ("_nodes", "most")

    def __init__(self, most: int, node: Limit, places: Limit | None = None) -> None:
        self.most: int = most
        self._nodes = (node,) if places is None else (node, places)

    def check(self, permits: Permits, refusals: Refusals) -> None:
        """Raise LineFull if ``most`` requests wait already. One that is being cancelled does not count."""
        lines = [node.queue.line for node in self._nodes]
        if sum(map(len, lines)) >= self.most and sum(line.count() for line in lines) >= self.most:
            self._nodes[0].counters.refused += 1
            raise refusals.full(permits, self.most)
