"""The line of a limit that other lines share: their first requests take turns, by weight, with the callers that ask the limit directly.

Those callers are one flow of weight 1, in order of arrival. Knows nothing of rates, time or how a waiter is woken.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from aiorate.schedulers.dimensions import Amounts
from aiorate.waiting.fair_queue import FairQueue, Flow
from aiorate.waiting.line import Line
from aiorate.waiting.passes import Pass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiorate.waiting.line import Request, Ticket

    Rehearsed = tuple[Ticket | None, int, int]  # as a Request; without a ticket: many requests, or a new one

__all__ = ["AnyLine", "FairLine", "Order", "amount_of"]

_ONE_BY_ONE = 32  # requests of each kind that a rehearsal looks at


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

    def head(self, most: int) -> list[Request]:
        """The first requests, at most ``most``."""
        order = self.order(None, most).all()
        return [(ticket, permits, since) for ticket, permits, since in islice(order, max(most, 0)) if ticket is not None]

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

    def order(self, flow: Flow | None, most: int = _ONE_BY_ONE) -> Order:
        """The order of service, for a rehearsal of requests of that flow; None: of a direct caller. It names ``most`` of each kind."""
        queue, copies = self._queue.rehearse(most)
        for known in (self._flow, flow):
            if known is not None and known not in copies:
                copies[known] = queue.copy_of(known, self._queue)
        direct, rest = copies[self._flow], self._permits
        for each, (_, permits, _) in queue.requests():
            if each is not direct:
                rest -= permits
        head = self._line.head(most)
        if direct.number and not (head and head[0][0] is self._first):
            queue.leave(direct)  # cancelled
        chain: list[Rehearsed] = [*head]
        more = self._line.rest(head)
        if more:
            chain.append((None, more, 0))
        return Order(queue, direct, direct if flow is None else copies[flow], chain, rest)

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


class Order:
    """The requests in a fair line in the order in which they are going to be served, as far as that is known now."""

    __slots__ = ("_chain", "_direct", "_mine", "_queue", "_rest")

    def __init__(self, queue: FairQueue[Rehearsed], direct: Flow, mine: Flow, chain: list[Rehearsed], rest: int) -> None:
        self._queue = queue
        self._direct = direct
        self._mine = mine
        self._chain = deque(chain)  # of direct callers
        self._rest = rest  # the permits of passes that are not looked at one by one
        if not direct.number:
            self._next()

    @property
    def stands(self) -> bool:
        """Whether a request of the line below stands here."""
        return self._mine is not self._direct and self._mine.number > 0

    def next(self) -> Rehearsed | None:
        """What is served next if the line below asks for nothing; None: nothing is, or its own request. `skip` has it served."""
        found = self._queue.first()
        return None if found is None or (found[0] is self._mine and self._mine is not self._direct) else found[1]

    def skip(self) -> None:
        """What is next is served."""
        found = self._queue.first()
        assert found is not None  # it was named just now
        self._serve(found[0])

    def standing(self) -> Iterator[Rehearsed]:
        """What is served until the request of the line below that stands here is served, which comes last."""
        yield from self._until(None)

    def before(self, permits: int) -> Iterator[Rehearsed]:
        """What is served before the flow's next request, of that many permits."""
        mine = None, permits, 0
        if self._mine is self._direct:
            self._chain.append(mine)
            if not self._direct.number:
                self._next()
        else:
            if self._mine.number:  # which the new one passes
                self._queue.leave(self._mine)
            self._queue.join(self._mine, amount_of(permits), mine)
        yield from self._until(mine)

    def all(self) -> Iterator[Rehearsed]:
        """What is served if no other request joins."""
        yield from self._until((None, 0, 0))

    def _until(self, mine: Rehearsed | None) -> Iterator[Rehearsed]:
        while True:
            found = self._queue.first()
            if found is None:
                return
            flow, request = found
            share = self._queue.share(flow)
            self._serve(flow)
            if request is mine:
                yield from self._others(share - amount_of(request[1]))
                return
            yield request
            if mine is None and flow is self._mine:
                return

    def _serve(self, flow: Flow) -> None:
        self._queue.grant(flow)
        if flow is self._direct:
            self._chain.popleft()
            self._next()

    def _others(self, share: int) -> Iterator[Rehearsed]:
        """Where many stand in line: as many of the others as get ``share`` permits."""
        if self._rest and not self._queue.length:
            ahead = self._rest if amount_of(self._rest) <= share or isinstance(self._rest, Amounts) else max(share, 0)
            self._rest -= ahead
            yield None, ahead, 0

    def _next(self) -> None:
        """The next of the direct callers stands in the queue."""
        if self._chain:
            self._queue.join(self._direct, amount_of(self._chain[0][1]), self._chain[0])


AnyLine = Line | FairLine
