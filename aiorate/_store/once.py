"""Requests with ``max_wait=0``, or less than an answer takes: they wait in line for one answer of the store, and are refused after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._tree.limit import outcome_of
from aiorate._tree.questions import above_wait
from aiorate._tree.refusals import Refusals

if TYPE_CHECKING:
    from typing import Any

    from aiorate._errors import WaitTooLong
    from aiorate._schedulers.amounts import Permits
    from aiorate._store.outage import Outage
    from aiorate._store.pool import Pool
    from aiorate._tree.limit import Answer
    from aiorate._tree.line import Ticket
    from aiorate._tree.node import Node
    from aiorate._tree.refusals import Admission

__all__ = ["AskOnce", "Once", "OneAnswer"]

_LONGEST_NS = 900_000_000  # that an answer is waited for


class OneAnswer(Refusals):
    """A request that waits for one answer of the store, and its errors; ``limit`` is its ``max_wait`` in ns."""

    __slots__ = ("asked", "limit")

    def __init__(self, limit: int, call: str = "acquire") -> None:
        super().__init__(call)
        self.limit: int = limit
        self.asked: bool = False
        """Whether a question counted the request: its answer is on its way, or has come."""

    def overdue(self, permits: Permits, limit: int, more: int | None) -> WaitTooLong:
        return self.would_wait(permits, self.limit, more)


class Once:
    """Those of one limit that are in line, where other requests may stand too. ``slack`` is in ns."""

    __slots__ = ("_node", "_pool", "_slack", "outage", "waiting")

    def __init__(self, node: Node, pool: Pool, slack: int) -> None:
        self._node, self._pool, self._slack = node, pool, slack
        self.waiting: dict[Ticket, OneAnswer] = {}
        """By ticket."""
        self.outage: Outage | None = None
        """Of the store."""

    def ask(self, ticket: Ticket, answer: OneAnswer) -> None:
        """That request, which is in line, waits for one answer of the store; for none if it does not answer at present."""
        self.waiting[ticket] = answer
        if not self._coming or (self.outage is not None and self.outage.began is not None):
            self.refuse()

    @property
    def _coming(self) -> bool:
        """Whether an answer is on its way that may have slots for the next request."""
        return self._pool.asked_at is not None and not self._node.closed and self._node.held_at is None

    def recheck(self) -> None:
        """Ask for the next request, whatever the store said last."""
        self._pool.look_at = None

    def answered(self) -> None:
        """The store has answered: refuse those that it did not grant. It is asked again for those that no question has counted."""
        if self.waiting:
            self.refuse(coming=any(not each.asked for each in self.waiting.values()) and self._asks_on())

    def _asks_on(self) -> bool:
        """Have the store asked for the line, unless the first in it has its slots and will be granted in the loop's next iteration."""
        node, pool, first = self._node, self._pool, self._node.first()
        if first is None or node.held_at is not None:
            return False
        now, permits = node.now(), first[1] if isinstance(first, tuple) else first.stood
        if pool.peek(permits, now) <= now:
            return True
        self.recheck()
        pool.want(now)
        return self._coming

    def refuse(self, coming: bool = False) -> None:
        """Refuse the requests that had their answer, or get none, and are not due within the slack.

        ``coming``: an answer is on its way, or will be, for those that no question has counted.
        """
        if not self.waiting:
            return
        node, pool, now = self._node, self._pool, self._node.now()
        first = node.first()
        held = node.held_at is not None or (isinstance(first, tuple) and above_wait(node, first[1]) != 0)
        due = 0 if held else pool.due_by(now + self._slack, now)
        over: list[tuple[Ticket, Permits, int, Refusals]] = []
        for ticket, permits, _ in node.line:
            answer = self.waiting.get(ticket)
            need = permits if pool.unit and isinstance(permits, int) else 1
            if answer is None or need <= due or (coming and not answer.asked):
                due -= need
            elif outcome_of(ticket) is None:
                over.append((ticket, permits, answer.limit, answer))
        if over:
            node.expire(over)


class AskOnce:
    """A request with ``max_wait=0``, or ``limit`` ns, which is less than an answer takes; ``call`` is the public method."""

    __slots__ = ("_call", "_limit", "_node", "_once", "_ticket")

    def __init__(self, node: Node, once: Once, limit: int, call: str) -> None:
        self._node, self._once, self._limit, self._call = node, once, limit, call
        self._ticket: Ticket | None = None

    def decide(self, permits: Permits, limit: int | None, most: Admission | None, *rest: Any) -> Answer:
        """As `Tree.request`; a request that gets in line waits for one answer of the store, and for no longer than a second."""
        self._once.recheck()
        node = self._node
        answer = node.tree.request(node, permits, limit, most, *rest)
        ticket = answer[0]
        if ticket is not None and not ticket.done():
            self._ticket, once = ticket, OneAnswer(self._limit, self._call)
            if node.tree.loop is not None:
                node.tree.limit_wait(node, ticket, permits, answer[2], _LONGEST_NS, once)
            self._once.ask(ticket, once)
        return answer

    def forget(self) -> None:
        """The request was decided, or its caller has left."""
        if self._ticket is not None:
            self._once.waiting.pop(self._ticket, None)
