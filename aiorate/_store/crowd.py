"""Who waits for a limit in a store: its own callers, and the first of each limit below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._tree.line import StandIn
from aiorate._tree.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiorate._tree.line import Ticket

__all__ = ["Crowd"]


_BELOW: Ticket = StandIn(False)  # of the first of a limit below


class Crowd:
    """The requests for that node: the first one first, the others in about the order of service."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def first(self) -> tuple[Ticket, int] | None:
        """The next to serve, and its permits; None: nobody waits."""
        first = self._node.first()
        return None if first is None else (_BELOW, first.stood) if isinstance(first, Node) else (first[0], first[1])

    def __iter__(self) -> Iterator[tuple[Ticket, int]]:
        node = self._node
        if node.flows is not None:
            for _, each in node.flows.requests():
                if isinstance(each, Node):
                    yield _BELOW, each.stood
        for ticket, permits, _ in node.line:
            yield ticket, permits

    def __len__(self) -> int:
        return len(self._node.line) + (0 if self._node.flows is None else self._node.flows.length)

    def __bool__(self) -> bool:
        return self._node.first() is not None
