"""Who waits at one limit: the requests of its own line, and the limits below, each in place of its own first request.

With limits below, the first of the line is one of several flows that take turns. Knows nothing of rates, or of how a waiter is woken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aiorate._schedulers.amounts import first_of
from aiorate._tree.fair_queue import FairQueue, Flow
from aiorate._tree.line import Line

if TYPE_CHECKING:
    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.line import Request, Ticket

__all__ = ["NOBODY", "Queue"]

N = TypeVar("N")

_COUNTED = 256  # limits below that a question counts


class Queue(Generic[N]):
    """A line, and turns among it and the limits below. Made when somebody first waits, or others share the limit."""

    __slots__ = ("_own", "head", "line", "turns")

    def __init__(self) -> None:
        self.line: Line = Line()
        """Those who wait here, other than the first of the limits below."""
        self.turns: FairQueue[Request | N] | None = None
        """The limits below, and the first of the line; None: nobody shares this limit."""
        self.head: Ticket | None = None
        """The first of the line: among the turns or, without these, for which the timer is set."""
        self._own = Flow(1)  # of the line, among the turns

    def share(self) -> None:
        """Have those below take turns with the line from now on."""
        self.turns, self.head = FairQueue(), None

    @property
    def is_waited_in(self) -> bool:
        """Whether somebody waits here, or a limit below does."""
        return self.head is not None or (self.turns is not None and self.turns.length > 0)

    @property
    def waiting(self) -> int:
        """The requests that wait. Every limit below whose first stands here counts as one."""
        return self.line.count() + (0 if self.turns is None else self.turns.length - (self._own.number > 0))

    def first(self) -> Request | N | None:
        """Who is next: a request, or a limit below whose first stands here; None: nobody."""
        request, turns, own = self.line.first(), self.turns, self._own
        if turns is None:
            self.head = None if request is None else request[0]
            return request
        ticket = None if request is None else request[0]
        if ticket is not self.head:
            if own.number:
                turns.leave(own)
            self.head = ticket
            if request is not None:
                turns.join(own, first_of(request[1]), request)
        found = turns.first()
        if found is None:
            turns.forget()
            return None
        return found[1]

    def join_below(self, flow: Flow, permits: Permits, limit: N) -> bool:
        """Add the first of a limit below; returns whether it may be the next."""
        assert self.turns is not None  # since it is shared
        self.turns.join(flow, first_of(permits), limit)
        return self.turns.may_be_first(flow)

    def leave_below(self, flow: Flow) -> None:
        """The first of a limit below waits here no longer."""
        assert self.turns is not None
        self.turns.leave(flow)

    def below(self) -> list[tuple[Flow, N]]:
        """The limits below whose first stands here, in no order."""
        return [] if self.turns is None else [(flow, each) for flow, each in self.turns.requests() if not isinstance(each, tuple)]

    def grant(self, flow: Flow | None = None) -> None:
        """The first request of that limit below is granted; None: that of the line."""
        if flow is None:
            self.line.pop_first()
            self.head, flow = None, self._own
        if self.turns is not None:
            self.turns.grant(flow)

    def remove_first(self) -> None:
        """Take the first request out of the line."""
        if self.turns is not None and self._own.number:
            self.turns.leave(self._own)
        self.head = None
        self.line.pop_first()

    def ahead(self, ahead: Permits, flow: Flow | None = None) -> list[Request | N]:
        """Those who are served before a request with so many permits ``ahead`` of it in its own flow: a limit's below, or the line's."""
        if self.turns is None or not self.turns.length:
            return []
        return self.turns.before(self._own if flow is None else flow, first_of(ahead), _COUNTED)

    def clear(self) -> list[Ticket]:
        """Nobody waits any more; returns the tickets of the line."""
        self.head = None
        if self.turns is not None:
            for flow, _ in self.turns.requests():
                flow.number = 0
            self.turns = FairQueue()
        return self.line.clear()


NOBODY: Queue[Any] = Queue()
"""That of all limits for which nobody has ever waited; never joined."""
