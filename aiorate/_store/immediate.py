"""Requests with ``max_wait=0``: they wait for one answer of the store. Says what to ask for them, and refuses them after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._schedulers.amounts import count_of
from aiorate._store.crowd import Crowd
from aiorate._tree.limit import outcome_of
from aiorate._tree.questions import above_wait
from aiorate._tree.refusals import Refusals

if TYPE_CHECKING:
    from typing import Any

    from aiorate._errors import WaitTooLong
    from aiorate._schedulers.amounts import Permits
    from aiorate._schedulers.supplied import Supplied
    from aiorate._store.session import StoreSession
    from aiorate._tree.limit import Answer
    from aiorate._tree.line import Ticket
    from aiorate._tree.node import Node
    from aiorate._tree.refusals import Admission

__all__ = ["AskOnce", "Immediate", "OneAnswer"]


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
        return self.would_wait(permits, limit, more)


class Immediate:
    """The requests with ``max_wait=0`` in a limiter's line, where other requests may stand too. ``slack`` is in ns."""

    __slots__ = ("_node", "_scheduler", "_slack", "have", "unit", "waiting")

    def __init__(self, node: Node, scheduler: Supplied, slack: int) -> None:
        self._node: Node = node
        self._scheduler: Supplied = scheduler
        self._slack: int = slack
        self.waiting: dict[Ticket, OneAnswer] = {}
        """Those that are in line."""
        self.unit: int = 1
        """The size of a request: slots are useful in multiples of it."""
        self.have: int = 0
        """The slots of an incomplete multiple that are in hand already."""

    def __bool__(self) -> bool:
        return bool(self.waiting)

    @property
    def any_unasked(self) -> bool:
        """Whether there are requests that no question has counted."""
        return any(not patience.asked for patience in self.waiting.values())

    def ask(self, line: Crowd, ready: int, most: int, alone: bool) -> int:
        """Count requests for a question. Returns the permits to ask for on behalf of these requests alone, or 0.

        0 if other requests stand in line, or if ``alone`` is False because slots are booked ahead anyway: then slots that these
        requests leave are useful to others. Otherwise a slot that comes too late would lapse, and so would the slots of a request
        that has only a part of what it needs. So the question counts the first requests of one size, and says that size. Of a crowd,
        it counts those that ask for ``most`` permits together, the ``ready`` ones included.
        """
        requests = [(ticket, count_of(permits)) for ticket, permits in line if not ticket.cancelled()]
        alone = alone and all(ticket in self.waiting for ticket, _ in requests)
        wanted, unit = 0, requests[0][1] if requests else 1
        for ticket, permits in requests:
            if (alone and permits != unit) or (wanted and wanted + permits > most):
                break
            if ticket in self.waiting:
                self.waiting[ticket].asked = True
            wanted += permits
        if not alone:
            return 0
        self.unit, self.have = unit, ready % unit
        return wanted

    def refuse(self, coming: bool = False) -> None:
        """Refuse the requests that had their answer, or get none, and are not due within the slack.

        ``coming``: an answer is on its way, or will be, for those that no question has counted.
        """
        if not self.waiting:
            return
        node, now = self._node, self._node.timeline.now()
        first = Crowd(node).first()
        held = node.timeline.held_at is not None or (first is not None and above_wait(node, first[1]) != 0)
        due = 0 if held else self._scheduler.due_by(now + self._slack, now)
        over: list[tuple[Ticket, Permits, int, Refusals]] = []
        for ticket, permits in Crowd(node):
            patience = self.waiting.get(ticket)
            if patience is None or count_of(permits) <= due or (coming and not patience.asked):
                due -= count_of(permits)
            elif outcome_of(ticket) is None:
                over.append((ticket, permits, patience.limit, patience))
        if over:
            node.expire(over)


class AskOnce:
    """One request with ``max_wait=0``, or less than ``limit`` ns, which is less than an answer takes; ``call`` is the public method."""

    __slots__ = ("_call", "_limit", "_node", "_session", "_ticket")

    def __init__(self, node: Node, session: StoreSession, limit: int, call: str) -> None:
        self._node: Node = node
        self._session: StoreSession = session
        self._limit: int = limit
        self._call: str = call
        self._ticket: Ticket | None = None

    def decide(self, permits: Permits, limit: int | None, most: Admission | None, *rest: Any) -> Answer:
        """As `Tree.request`; a request that gets in line waits for one answer of the store."""
        self._session.recheck()
        answer = self._node.tree.request(self._node, permits, limit, most, *rest)
        ticket, session = answer[0], self._session
        if ticket is not None and not ticket.done():
            self._ticket = ticket
            session.immediate.waiting[ticket] = OneAnswer(self._limit, self._call)
            if not session.coming:
                session.immediate.refuse()
        return answer

    def forget(self) -> None:
        """The request was decided, or its caller has left."""
        ticket = self._ticket
        if ticket is not None:
            self._session.immediate.waiting.pop(ticket, None)
