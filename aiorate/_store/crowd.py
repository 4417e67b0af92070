"""Who waits for a limit in a store: its own callers, and the first of each limit below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._tree.line import StandIn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.line import Ticket
    from aiorate._tree.node import Node

__all__ = ["Crowd"]


_BELOW: Ticket = StandIn(False)  # of the first of a limit below


class Crowd:
    """The requests for that node: the first one first, the others in about the order of service."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def first(self) -> tuple[Ticket, Permits] | None:
        """The next to serve, and its permits; None: nobody waits."""
        first = self._node.first()
        return None if first is None else (first[0], first[1]) if isinstance(first, tuple) else (_BELOW, first.stood)

    def __iter__(self) -> Iterator[tuple[Ticket, Permits]]:
        for _, limit in self._node.queue.below():
            yield _BELOW, limit.stood
        for ticket, permits, _ in self._node.queue.line:
            yield ticket, permits

    def __len__(self) -> int:
        queue = self._node.queue
        return len(queue.line) + (0 if queue.turns is None else queue.turns.length)

    def __bool__(self) -> bool:
        return self._node.first() is not None
