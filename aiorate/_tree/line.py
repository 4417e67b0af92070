"""Who waits at one limit: its own requests in order of arrival, each with a ticket that holds its outcome, and the limits below.

Each limit below stands here in place of its own first request, and takes turns with the line, whose first is one flow of several then.
Knows nothing of rates or time, nor who wakes a waiter.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aiorate._schedulers.amounts import first_of
from aiorate._tree.fair_queue import FairQueue, Flow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiorate._loops.loop import Ticket
    from aiorate._schedulers.amounts import Permits


N = TypeVar("N")

_SMALL = 32
_COUNTED = 256  # limits below that a question counts


class Line(Generic[N]):
    """Requests in order, and turns among them and the limits below. Leaving from the middle takes amortised constant time."""

    __slots__ = ("_gone", "_own", "_queue", "head", "total", "turns")

    def __init__(self) -> None:
        self.total: Permits = 0  # permits of all its own requests
        self.turns: FairQueue[N | None] | None = None
        """The limits below, and None for the first request; None: nobody shares this limit."""
        self.head: Ticket | None = None
        """The first request: among the turns or, without these, for which the timer is set."""
        self._own = Flow(1)  # of the requests, among the turns
        self._queue: deque[Ticket] = deque()
        self._gone = 0  # requests in the queue that have left, less those that were popped and have yet to leave

    # Its own requests.

    def __len__(self) -> int:
        """One that is cancelled counts until its task has run."""
        return len(self._queue) - self._gone

    def __iter__(self) -> Iterator[Ticket]:
        for ticket in list(self._queue):
            if not (ticket.left or ticket.done()):
                yield ticket

    def first_request(self) -> Ticket | None:
        """The first of its own."""
        queue = self._queue
        while queue:
            ticket = queue[0]
            if not (ticket.left or ticket.done()):
                return ticket
            queue.popleft()
            self._gone -= 1
        return None

    def join(self, ticket: Ticket) -> None:
        self._queue.append(ticket)
        self.total += ticket.wanted

    def leave(self, ticket: Ticket) -> None:
        """Remove a request that was not served. Closed, not cancelled, it must not be decided: its owner can no longer run."""
        ticket.left = True
        self.total -= ticket.wanted
        self._gone += 1
        if self._gone > _SMALL and 2 * self._gone > len(self._queue):
            # More holes than requests: close up, so that cancelled requests cost nothing during a long wait of the first.
            left = deque([each for each in list(self._queue) if not each.left])  # one that is being granted is taken out by that
            self._gone -= len(self._queue) - len(left)
            self._queue = left

    # The first of all.

    @property
    def is_waited_in(self) -> bool:
        """Whether anybody waits here, or a limit below."""
        return self.head is not None or (self.turns is not None and self.turns.length > 0)

    @property
    def waiting(self) -> int:
        """The requests that wait. Every limit below whose first stands here counts as one."""
        return len(self) + (0 if self.turns is None else self.turns.length - (self._own.number > 0))

    def first(self) -> Ticket | N | None:
        """Who is next: a request, or a limit below whose first stands here."""
        request, turns, own = self.first_request(), self.turns, self._own
        if turns is None:
            self.head = request
            return request
        if request is not self.head:
            if own.number:
                turns.leave(own)
            self.head = request
            if request is not None:
                turns.join(own, first_of(request.wanted), None)
        found = turns.first()
        if found is None:
            turns.forget()
            return None
        return request if found[1] is None else found[1]

    def grant(self, flow: Flow | None = None) -> None:
        """The first request of that limit below is granted; None: its own."""
        if flow is None:
            self.total -= self._queue.popleft().wanted
            self.head, flow = None, self._own
        if self.turns is not None:
            self.turns.grant(flow)

    # The limits below.

    def share(self) -> None:
        """Have those below take turns with the line from now on."""
        self.turns, self.head = FairQueue(), None

    def join_below(self, flow: Flow, permits: Permits, limit: N) -> None:
        assert self.turns is not None  # since it is shared
        self.turns.join(flow, first_of(permits), limit)

    def leave_below(self, flow: Flow) -> None:
        assert self.turns is not None
        self.turns.leave(flow)

    def below(self) -> list[N]:
        """The limits below whose first stands here."""
        return [] if self.turns is None else [each for _, each in self.turns.requests() if each is not None]

    def ahead(self, ahead: Permits, flow: Flow | None = None) -> list[Ticket | N]:
        """Who is served before a request with so many permits ``ahead`` of it in its own flow: a limit's below, or the line's."""
        if self.turns is None or not self.turns.length:
            return []
        before = self.turns.before(self._own if flow is None else flow, first_of(ahead), _COUNTED)
        return [each for request in before if (each := self.head if request is None else request) is not None]


NOBODY: Line[Any] = Line()
"""That of all limits for which nobody has ever waited; never joined."""
