"""The waiting line: requests in order of arrival, each with a ticket that holds its outcome.

Knows nothing of rates, time or how a waiter is woken.
As in trio's ParkingLot and anyio's CapacityLimiter: no request passes a line, and one that leaves it leaves no hole.
"""

from __future__ import annotations

from asyncio import InvalidStateError
from collections import deque
from typing import TYPE_CHECKING, Any

from aiorate._loops.loop import Ticket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiorate._schedulers.amounts import Permits

__all__ = ["Line", "Request", "StandIn", "Ticket"]

_SMALL = 32
_AT_ONCE = 64  # requests that one question may count
_FIRST = 1 << 30  # the first question is answered exactly


class StandIn:
    """For where a ticket is expected: it has no outcome."""

    __slots__ = ("_done",)

    def __init__(self, done: bool) -> None:
        self._done = done

    def done(self) -> bool:
        return self._done

    def cancelled(self) -> bool:
        return False

    def result(self) -> Any:
        raise InvalidStateError

    def set_result(self, outcome: Any, /) -> None:
        """Never called."""


Request = tuple[Ticket, "Permits", int]  # its permits, and the instant since when it stands in line


class Line:
    """Requests in order. Leaving from the middle takes amortised constant time, and keeps nothing of the waiter alive.

    Ticket, permits, since; ticket, permits, since; and so on in one queue: with an object for each request, serving 100 000 waiters
    takes 17 to 36 % longer, because garbage collection looks at each of them again and again.
    """

    __slots__ = ("_absent", "_countable", "_gone", "_queue", "left", "total")

    def __init__(self) -> None:
        self.total: Permits = 0
        """The permits of all waiting requests."""
        self.left: int = 0
        """How often a request has left that was not served."""
        self._queue: deque[Ticket | Permits] = deque()
        self._countable = _FIRST
        self._gone = 0  # requests in the queue that have left, less those that were popped and have yet to leave
        self._absent: set[Ticket] = set()  # tickets that left without being done

    def __len__(self) -> int:
        """The number of waiting requests, cancelled ones included until their tasks have run."""
        return len(self._queue) // 3 - self._gone

    def count(self) -> int:
        """The number of waiting requests that have not been cancelled.

        A long line is not counted again for every question. Cancelled requests may then be included until their tasks have run.
        """
        self._countable += _AT_ONCE
        length = len(self)
        if self._countable < length:
            return length
        self._countable = 0
        return sum(not ticket.cancelled() for ticket, _, _ in self)

    def __bool__(self) -> bool:
        return bool(self._queue) and self.first() is not None

    def __iter__(self) -> Iterator[Request]:
        entries = iter(list(self._queue))
        for request in zip(entries, entries, entries, strict=True):
            ticket: Ticket = request[0]  # type: ignore[assignment]
            if not (ticket.done() or (self._absent and ticket in self._absent)):
                yield request  # type: ignore[misc]

    def first(self) -> Request | None:
        """The next request to serve; None: nobody waits."""
        queue = self._queue
        while queue:
            ticket: Ticket = queue[0]  # type: ignore[assignment]
            if not (ticket.done() or (self._absent and ticket in self._absent)):
                return ticket, queue[1], queue[2]  # type: ignore[return-value]
            del queue[0], queue[0], queue[0]
            self._gone -= 1
            self._absent.discard(ticket)
        return None

    def join(self, ticket: Ticket, permits: Permits, since: int) -> None:
        """Add a request at the end."""
        self._queue.extend((ticket, permits, since))
        self.total += permits

    def pop_first(self) -> None:
        """Remove the first request."""
        queue = self._queue
        self.total -= queue[1]  # type: ignore[operator]
        del queue[0], queue[0], queue[0]  # not popleft(): a signal handler may raise after a call, and leave a part of a request

    def leave(self, ticket: Ticket, permits: Permits) -> None:
        """Remove a request that was not served."""
        self.left += 1
        self.total -= permits
        self._countable += _AT_ONCE
        if not ticket.done():
            # Closed, not cancelled. The ticket must not be decided: that would wake an owner that can no longer run.
            self._absent.add(ticket)
        self._gone += 1
        if self._gone > _SMALL and 6 * self._gone > len(self._queue):
            # More holes than requests: close up, so that cancelled requests cost nothing during a long wait of the first.
            self._keep([entry for request in self for entry in request])

    def clear(self) -> list[Ticket]:
        """Remove every request; returns their tickets in order."""
        tickets: list[Ticket] = []
        for ticket, permits, _ in self:
            tickets.append(ticket)
            self.total -= permits
        self._gone += len(tickets)
        self._keep([])
        return tickets

    def _keep(self, entries: list[Ticket | Permits]) -> None:
        self._gone -= (len(self._queue) - len(entries)) // 3
        self._queue = deque(entries)
        self._absent.clear()
