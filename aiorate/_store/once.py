"""Requests with ``max_wait=0``, or less than an answer takes: they wait in line for one answer of the store, and are refused after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._tree.limit import outcome_of
from aiorate._tree.questions import above_wait
from aiorate._tree.refusals import Refusals

if TYPE_CHECKING:
    from typing import Any

    from aiorate._errors import WaitTooLong
    from aiorate._store.pool import Pool
    from aiorate._store.session import StoreSession
    from aiorate._tree.limit import Answer
    from aiorate._tree.line import Ticket
    from aiorate._tree.max_waiting import Admission
    from aiorate._tree.node import Node

__all__ = ["AskOnce", "OneAnswer", "refuse"]

_LONGEST_NS = 900_000_000  # that an answer is waited for


class OneAnswer(Refusals):
    """A request that waits for one answer of the store, and its errors; ``limit`` is its ``max_wait`` in ns."""

    __slots__ = ("asked", "limit")

    def __init__(self, limit: int, call: str = "acquire") -> None:
        super().__init__(call)
        self.limit: int = limit
        self.asked: bool = False
        """Whether a question counted the request: its answer is on its way, or has come."""

    def named(self, permits: int) -> str:
        return super().named(permits) if type(permits) is int else f"{self._call}()"  # amounts have names of their dimensions

    def overdue(self, permits: int, limit: int, more: int | None) -> WaitTooLong:
        return self.would_wait(permits, self.limit, more)


def refuse(node: Node, pool: Pool, once: dict[Ticket, OneAnswer], slack: int, coming: bool) -> None:
    """Refuse the requests that had their answer, or get none, and are not due within the slack.

    ``coming``: an answer is on its way, or will be, for those that no question has counted.
    """
    now = node.timeline.now()
    first = node.queue.first()
    held = node.timeline.held_at is not None or (isinstance(first, tuple) and above_wait(node, first[1]) != 0)
    due = 0 if held else pool.due_by(now + slack, now)
    over: list[tuple[Ticket, int, int, Refusals]] = []
    for ticket, permits, _ in node.queue.line:
        answer = once.get(ticket)
        need = permits if pool.unit else 1
        if answer is None or need <= due or (coming and not answer.asked):
            due -= need
        elif outcome_of(ticket) is None:
            over.append((ticket, permits, answer.limit, answer))
    if over:
        node.expire(over)


class AskOnce:
    """One such request, of ``limit`` ns; ``call`` is the public method."""

    __slots__ = ("_call", "_limit", "_node", "_session", "_ticket")

    def __init__(self, node: Node, session: StoreSession, limit: int, call: str) -> None:
        self._node, self._session, self._limit, self._call = node, session, limit, call
        self._ticket: Ticket | None = None

    def decide(self, permits: int, limit: int | None, most: Admission | None, *rest: Any) -> Answer:
        """As `Tree.request`; a request that gets in line waits for one answer of the store, and for no longer than a second."""
        self._session.recheck()
        node = self._node
        answer = node.tree.request(node, permits, limit, most, *rest)
        ticket = answer[0]
        if ticket is not None and not ticket.done():
            self._ticket, once = ticket, OneAnswer(self._limit, self._call)
            if node.tree.agenda is not None:
                node.tree.agenda.limit_wait(node, ticket, permits, answer[2], _LONGEST_NS, once)
            self._session.ask_once(ticket, once)
        return answer

    def forget(self) -> None:
        """The request was decided, or its caller has left."""
        if self._ticket is not None:
            self._session.forget_once(self._ticket)
