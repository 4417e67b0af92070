"""The waiting line: requests in order of arrival, each with a ticket that says what became of it.

Cut out once, because order and cancellation are hard. Knows nothing of rates, time or how a waiter is woken.
As in trio's ParkingLot and anyio's CapacityLimiter: nobody passes a line, and who leaves it leaves no hole.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Line", "Outcome", "Request", "Ticket"]

_SMALL = 32
_NOBODY: deque[Ticket | int] = deque()  # of all lines that nobody ever joined: an empty deque takes as much as all the rest of a limiter


class Ticket(Protocol):
    """What a waiter holds: as much of `asyncio.Future` as it takes to say what became of the request.

    The driver only wakes, the ticket decides. Done is who was decided, and who was cancelled and has yet to run.
    """

    def done(self) -> bool:
        """Whether nothing is to be decided any more."""
        ...

    def cancelled(self) -> bool:
        """Whether it is done without having been decided."""
        ...

    def result(self) -> Outcome:
        """The outcome, once decided."""
        ...

    def set_result(self, outcome: Outcome, /) -> None:
        """Decide it, and let the one who waits run."""
        ...


# The clock's reading at the grant, or why there is none: as a result, because an exception whose owner is gone is complained about.
Outcome = int | BaseException
Request = tuple[Ticket, int, int]  # its permits, and the limiter's time since when it stands in line


class Line:
    """Requests in order. Leaving from the middle takes amortised constant time, and keeps nothing of the waiter alive."""

    __slots__ = ("_absent", "_gone", "_queue", "head", "latest", "slots")

    def __init__(self) -> None:
        self.head: Ticket | None = None
        """Whom the driver is set for."""
        self.latest: tuple[Ticket, int] | None = None
        """Who was granted last, and what the limiter had granted in all by then."""
        self.slots: dict[Ticket, int] = {}
        """For when those are scheduled who want to know."""
        # Ticket, permits, since; and so on: an object for each would cost 100 000 waiters a tenth of all their time.
        self._queue = _NOBODY
        self._gone = 0  # how many in the queue have left; below 0: so many are out of it that have yet to leave
        self._absent: set[Ticket] | None = None  # who left without being done

    def __len__(self) -> int:
        return len(self._queue) // 3 - self._gone

    def __bool__(self) -> bool:
        return self.first() is not None

    def __iter__(self) -> Iterator[Request]:
        entries = iter(list(self._queue))
        for request in zip(entries, entries, entries, strict=True):
            if not request[0].done() and (self._absent is None or request[0] not in self._absent):  # type: ignore[union-attr]
                yield request  # type: ignore[misc]

    def first(self) -> Request | None:
        """Who is next; None: nobody waits."""
        queue = self._queue
        while queue:
            ticket: Ticket = queue[0]  # type: ignore[assignment]
            if not ticket.done() and (self._absent is None or ticket not in self._absent):
                return ticket, queue[1], queue[2]  # type: ignore[return-value]
            queue.popleft(), queue.popleft(), queue.popleft()
            self._gone -= 1
            if self._absent is not None:
                self._absent.discard(ticket)
                self._absent = self._absent or None
        return None

    def join(self, ticket: Ticket, permits: int, since: int) -> None:
        """Stand at the end."""
        if self._queue is _NOBODY:
            self._queue = deque()
        self._queue.extend((ticket, permits, since))

    def serve(self) -> Request | None:
        """Let the first go; returns who is next."""
        queue = self._queue
        pop = queue.popleft
        pop(), pop(), pop()
        if queue and self._absent is None and not queue[0].done():  # type: ignore[union-attr]
            return queue[0], queue[1], queue[2]  # type: ignore[return-value]
        return self.first()

    def leave(self, ticket: Ticket) -> None:
        """Go without having been served."""
        if not ticket.done():
            # Closed, not cancelled. Its ticket is not to be touched: that would wake what can no longer run.
            self._absent = self._absent or set()
            self._absent.add(ticket)
        self._gone += 1
        if self._gone > _SMALL and 6 * self._gone > len(self._queue):
            # More holes than requests: close up, so that those who gave up cost nothing while the first waits for long.
            self._keep([entry for request in self for entry in request])

    def clear(self) -> list[Ticket]:
        """Send everybody away; returns them in order."""
        tickets = [ticket for ticket, _, _ in self]
        self._gone += len(tickets)
        self._keep([])
        return tickets

    def _keep(self, entries: list[Ticket | int]) -> None:
        self._gone -= (len(self._queue) - len(entries)) // 3
        self._queue = deque(entries) if entries else _NOBODY
        self._absent = None
