"""The waiting line: requests in order of arrival, each with a ticket that says what became of it.

Cut out once, because order and cancellation are hard. Knows nothing of rates, time or how a waiter is woken.
As in trio's ParkingLot and anyio's CapacityLimiter: no request passes a line, and one that leaves it leaves no hole.
"""

from __future__ import annotations

from asyncio import CancelledError, InvalidStateError
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Grant", "Line", "Outcome", "Request", "Ticket", "outcome_of"]

# For when the request was scheduled, the instant of the grant (its receipt), and the clock's reading then.
Grant = tuple[int, int, int]
# An error is a result, not an exception: asyncio logs "exception was never retrieved" for abandoned futures.
Outcome = Grant | BaseException
_SMALL = 32
_AT_ONCE = 64  # requests that one question may count
_FIRST = 1 << 30  # the first question is answered exactly


class Ticket(Protocol):
    """What a waiter holds: as much of `asyncio.Future` as it takes to say what became of the request."""

    def done(self) -> bool:
        """Whether its owner has nothing to wait for any more."""
        ...

    def cancelled(self) -> bool:
        """Whether its owner is being cancelled, but has not run since."""
        ...

    def result(self) -> Outcome:
        """The outcome. Raises InvalidStateError or CancelledError if it was not decided."""
        ...

    def set_result(self, outcome: Outcome, /) -> None:
        """Decide it, and let its owner go on."""
        ...


Request = tuple[Ticket, int, int]  # its permits, and the instant since when it stands in line


def outcome_of(ticket: Ticket) -> Outcome | None:
    """What became of it; None: nothing yet, or nothing before its owner was cancelled."""
    try:
        return ticket.result()
    except (InvalidStateError, CancelledError):
        return None


class Line:
    """Requests in order. Leaving from the middle takes amortised constant time, and keeps nothing of the waiter alive.

    Ticket, permits, since; ticket, permits, since; and so on in one queue: with an object for each request, serving 100 000 waiters
    takes 17 to 36 % longer, because garbage collection looks at each of them again and again.
    """

    __slots__ = ("_absent", "_countable", "_gone", "_queue", "total")

    def __init__(self) -> None:
        self.total: int = 0
        """The permits of all who wait."""
        self._queue: deque[Ticket | int] = deque()
        self._countable = _FIRST
        self._gone = 0  # entries in the queue whose owner has left; negative: popped entries whose owner has not left yet
        self._absent: set[Ticket] = set()  # those that left without being done

    def __len__(self) -> int:
        """How many wait, those included that were cancelled but have not run since."""
        return len(self._queue) // 3 - self._gone

    def count(self) -> int:
        """How many wait and have not been cancelled.

        A long line is not counted again for every question. Those who were cancelled may then still be included until they have run.
        """
        self._countable += _AT_ONCE
        length = len(self)
        if self._countable < length:
            return length
        self._countable = 0
        return sum(not ticket.cancelled() for ticket, _, _ in self)

    def head(self, most: int) -> list[Request]:
        """The first of them, so many at most."""
        found: list[Request] = []
        if most < 1 or self.first() is None:  # which drops those before it who wait no more
            return found
        entries = iter(self._queue)
        left = most + _SMALL
        for request in zip(entries, entries, entries, strict=True):
            ticket: Ticket = request[0]  # type: ignore[assignment]
            left -= 1
            if not (ticket.done() or (self._absent and ticket in self._absent)):
                found.append(request)  # type: ignore[arg-type]
                if len(found) == most:
                    return found
            elif left < 1:  # too many holes
                self._keep([entry for request in self for entry in request])
                return self.head(most)
        return found

    def rest(self, head: list[Request]) -> int:
        """The permits of all who wait, less those of the first."""
        rest = self.total
        for _, permits, _ in head:
            rest -= permits
        return rest

    def __bool__(self) -> bool:
        return bool(self._queue) and self.first() is not None

    def __iter__(self) -> Iterator[Request]:
        entries = iter(list(self._queue))
        for request in zip(entries, entries, entries, strict=True):
            ticket: Ticket = request[0]  # type: ignore[assignment]
            if not (ticket.done() or (self._absent and ticket in self._absent)):
                yield request  # type: ignore[misc]

    def first(self) -> Request | None:
        """The next to be served; None: nobody waits."""
        queue = self._queue
        while queue:
            ticket: Ticket = queue[0]  # type: ignore[assignment]
            if not (ticket.done() or (self._absent and ticket in self._absent)):
                return ticket, queue[1], queue[2]  # type: ignore[return-value]
            del queue[0], queue[0], queue[0]
            self._gone -= 1
            self._absent.discard(ticket)
        return None

    def join(self, ticket: Ticket, permits: int, since: int) -> None:
        """Stand at the end."""
        self._queue.extend((ticket, permits, since))
        self.total += permits

    def pop_first(self) -> Request | None:
        """Let the first go; returns the next."""
        queue = self._queue
        self.total -= queue[1]  # type: ignore[operator]
        del queue[0], queue[0], queue[0]  # not popleft(): a signal handler may raise after a call, and leave a part of a request
        if not queue:
            return None
        if not (self._absent or queue[0].done()):  # type: ignore[union-attr]
            return queue[0], queue[1], queue[2]  # type: ignore[return-value]  # as in first(), for most
        return self.first()

    def leave(self, ticket: Ticket, permits: int) -> None:
        """Go without having been served."""
        self.total -= permits
        self._countable += _AT_ONCE
        if not ticket.done():
            # Closed, not cancelled. The ticket must not be decided: that would wake an owner that can no longer run.
            self._absent.add(ticket)
        self._gone += 1
        if self._gone > _SMALL and 6 * self._gone > len(self._queue):
            # More holes than requests: close up, so that those who gave up cost nothing while the first waits for long.
            self._keep([entry for request in self for entry in request])

    def clear(self) -> list[Ticket]:
        """Send everybody away; returns them in order."""
        tickets: list[Ticket] = []
        for ticket, permits, _ in self:
            tickets.append(ticket)
            self.total -= permits
        self._gone += len(tickets)
        self._keep([])
        return tickets

    def recount(self) -> None:
        """Count anew, where a request may have been decided and not let go of."""
        self._keep([entry for request in self for entry in request])
        self._gone = 0
        self.total = 0
        for _, permits, _ in self:
            self.total += permits

    def _keep(self, entries: list[Ticket | int]) -> None:
        self._gone -= (len(self._queue) - len(entries)) // 3
        self._queue = deque(entries)
        self._absent.clear()
