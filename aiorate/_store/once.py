"""Requests with ``max_wait=0``, or less than an answer takes: they wait in line for one answer of the store, and are refused after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._tree.limit import outcome_of
from aiorate._tree.questions import above_wait
from aiorate._tree.refusals import Refusals

if TYPE_CHECKING:
    from aiorate._errors import WaitTooLong
    from aiorate._schedulers.amounts import Permits
    from aiorate._store.pool import Pool
    from aiorate._tree.line import Ticket
    from aiorate._tree.node import Node

__all__ = ["OneAnswer", "refuse"]


class OneAnswer(Refusals):
    """A request that waits for one answer of the store, and its errors; ``limit`` is its ``max_wait`` in ns."""

    __slots__ = ("asked", "limit")

    def __init__(self, limit: int, call: str = "acquire") -> None:
        super().__init__(call)
        self.limit: int = limit
        self.asked: bool = False
        """Whether a question counted the request: its answer is on its way, or has come."""

    def named(self, permits: Permits) -> str:
        return super().named(permits) if type(permits) is int else f"{self._call}()"  # amounts have names of their dimensions

    def overdue(self, permits: Permits, limit: int, more: int | None) -> WaitTooLong:
        return self.would_wait(permits, self.limit, more)


def refuse(node: Node, pool: Pool, once: dict[Ticket, OneAnswer], slack: int, coming: bool) -> None:
    """Refuse the requests that had their answer, or get none, and are not due within the slack.

    ``coming``: an answer is on its way, or will be, for those that no question has counted.
    """
    now = node.timeline.now()
    first = node.first()
    held = node.timeline.held_at is not None or (isinstance(first, tuple) and above_wait(node, first[1]) != 0)
    due = 0 if held else pool.due_by(now + slack, now)
    over: list[tuple[Ticket, Permits, int, Refusals]] = []
    for ticket, permits, _ in node.queue.line:
        answer = once.get(ticket)
        need = permits if pool.unit and isinstance(permits, int) else 1
        if answer is None or need <= due or (coming and not answer.asked):
            due -= need
        elif outcome_of(ticket) is None:
            over.append((ticket, permits, answer.limit, answer))
    if over:
        node.expire(over)
