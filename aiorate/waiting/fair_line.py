"""The line of a limit that other lines share: their first requests take turns, by weight, with the callers that ask the limit directly.

Those callers are one flow of weight 1, in order of arrival. Knows nothing of rates, time or how a waiter is woken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.schedulers.dimensions import Amounts
from aiorate.waiting.fair_queue import FairQueue, Flow
from aiorate.waiting.line import Line
from aiorate.waiting.passes import Pass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiorate.waiting.line import Request, Ticket

__all__ = ["AnyLine", "FairLine", "amount_of"]

_COUNTED = 256  # requests of other lines that a question counts


def amount_of(permits: int) -> int:
    """The permits that count for a share: of a budget, its first dimension."""
    return permits.of[0] if isinstance(permits, Amounts) else permits


class FairLine:
    """As `Line`, but in order of turns. ``line`` is the line until now."""

    __slots__ = ("_first", "_flow", "_line", "_permits", "_queue")

    def __init__(self, line: Line | None = None) -> None:
        self._line = Line() if line is None else line  # of the direct callers
        self._flow = Flow(1)
        self._first: Ticket | None = None  # of the direct callers, which stands in the queue
        self._permits = 0  # of all passes
        self._queue: FairQueue[Request] = FairQueue()
        self._stand()

    @property
    def total(self) -> int:
        """The permits of all waiting requests."""
        return self._line.total + self._permits

    def __len__(self) -> int:
        """The number of waiting requests, cancelled ones included until their tasks have run."""
        return len(self._line) + self._passes

    def count(self) -> int:
        """The number of waiting requests that have not been cancelled. See `Line.count`."""
        return self._line.count() + self._passes

    def __bool__(self) -> bool:
        return self.first() is not None

    def __iter__(self) -> Iterator[Request]:
        """The requests, those of other lines first."""
        for flow, request in self._queue.requests():
            if flow is not self._flow and not request[0].done():
                yield request
        yield from self._line

    def first(self) -> Request | None:
        """The next request to serve; None: nobody waits."""
        while True:
            found = self._queue.first()
            if found is None:
                return None
            flow, request = found
            if not request[0].done():
                return request
            self._queue.leave(flow)
            if flow is self._flow:  # cancelled
                self._stand()
            else:
                self._permits -= request[1]

    def join(self, ticket: Ticket, permits: int, since: int) -> bool:
        """Add a request. Returns whether it may be the next to serve."""
        if isinstance(ticket, Pass):
            self._permits += permits
            self._queue.join(ticket.flow, permits if type(permits) is int else amount_of(permits), (ticket, permits, since))
            return self._queue.may_be_first(ticket.flow)
        self._line.join(ticket, permits, since)
        if self._flow.number:
            return False
        self._stand()
        return self._queue.may_be_first(self._flow)

    def grant(self, ticket: Ticket) -> None:
        """Remove a request that was granted."""
        if isinstance(ticket, Pass):
            self._permits -= ticket.permits
            self._queue.grant(ticket.flow)
        else:
            self._queue.grant(self._flow)
            self._line.pop_first()
            self._stand()

    def pop_first(self) -> Request | None:
        """Remove the first request, which has failed; returns the next."""
        found = self._queue.first()
        assert found is not None  # it was named just now
        flow, request = found
        self._queue.leave(flow)
        if flow is self._flow:
            self._line.pop_first()
            self._stand()
        else:
            self._permits -= request[1]
        return self.first()

    def leave(self, ticket: Ticket, permits: int) -> None:
        """Remove a request that was not served."""
        if isinstance(ticket, Pass):
            self._permits -= permits
            self._queue.leave(ticket.flow)
            return
        self._line.leave(ticket, permits)
        if ticket is self._first:
            if self._flow.number:
                self._queue.leave(self._flow)
            self._stand()

    def clear(self) -> list[Ticket]:
        """Remove every request; returns their tickets."""
        tickets = [request[0] for flow, request in self._queue.requests() if flow is not self._flow and not request[0].done()]
        self._restart([])
        return tickets + self._line.clear()

    def recount(self) -> None:
        """Count again, after an interrupt: a request may have been decided and not removed. All flows start again as equals."""
        self._line.recount()
        self._restart([request for flow, request in self._queue.requests() if flow is not self._flow and not request[0].done()])

    def forget(self) -> None:
        """Nobody waits, and no request comes at once: what was served until now counts no longer."""
        self._queue.forget()

    @property
    def own_total(self) -> int:
        """The permits of the direct callers that wait."""
        return self._line.total

    def before(self, flow: Flow | None) -> int:
        """The permits of requests of other lines that are served before the next of that line; None: of the direct callers.

        At most those of the first `_COUNTED` are counted, so that a question costs the same however many stand here.
        """
        mine = self._flow if flow is None else flow
        permits = 0
        for request in self._queue.before(mine, _COUNTED):
            if not request[0].done():
                permits += request[1]
        return permits

    @property
    def _passes(self) -> int:
        return self._queue.length - (self._flow.number > 0)

    def _stand(self) -> None:
        """Have the first of the direct callers stand in the queue."""
        request = self._line.first()
        self._first = None if request is None else request[0]
        if request is not None:
            self._queue.join(self._flow, amount_of(request[1]), request)

    def _restart(self, requests: list[Request]) -> None:
        self._queue = FairQueue()
        self._flow.number = self._permits = 0
        for ticket, permits, since in requests:
            assert isinstance(ticket, Pass)
            self._permits += permits
            self._queue.join(ticket.flow, amount_of(permits), (ticket, permits, since))
        self._stand()


AnyLine = Line | FairLine
