"""The waiting line: tickets in order of arrival, each of which says whether its permits were granted.

Cut out once, because order and cancellation are hard. Knows nothing of rates, time or how a waiter is woken.
As in trio's ParkingLot and anyio's CapacityLimiter: nobody passes a line, and who leaves it leaves no hole.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Line", "Ticket"]

_SMALL = 32

WAITING, GRANTED, FAILED, GONE = range(4)


class Ticket:
    """One request in line. The driver only wakes, the ticket decides: whoever waits goes by its ``state``."""

    __slots__ = ("asked", "at", "error", "granted_at", "mark", "permits", "seat", "since", "state", "waited")

    at: int
    """For when it was scheduled, once granted."""
    granted_at: int
    """When it was granted."""
    mark: int
    """How many permits had been taken then, its own included."""
    waited: int
    """Nanoseconds from being asked to being granted, pauses included."""

    def __init__(self, permits: int, since: int, asked: int) -> None:
        self.permits = permits
        self.since = since
        """The limiter's time since when it stands in line."""
        self.asked = asked
        """The clock's reading when it joined."""
        self.state = WAITING
        self.error: BaseException | None = None
        self.seat: Any = None
        """Where the driver finds the one who waits."""

    def grant(self, at: int, now: int, reading: int, mark: int) -> None:
        """Its permits are taken."""
        self.at = at
        self.granted_at = now
        self.waited = reading - self.asked
        self.mark = mark
        self.state = GRANTED


class Line:
    """Tickets in order. Leaving from the middle takes amortised constant time, and keeps nothing of the waiter alive."""

    __slots__ = ("_gone", "_tickets")

    def __init__(self) -> None:
        self._tickets: deque[Ticket] = deque()
        self._gone = 0

    def __len__(self) -> int:
        return len(self._tickets) - self._gone

    def __iter__(self) -> Iterator[Ticket]:
        return (ticket for ticket in self._tickets if not ticket.state)

    def first(self) -> Ticket | None:
        """Who is next; None: nobody waits."""
        tickets = self._tickets
        while tickets:
            if not tickets[0].state:
                return tickets[0]
            tickets.popleft()
            self._gone -= 1
        return None

    def join(self, ticket: Ticket) -> None:
        """Stand at the end."""
        self._tickets.append(ticket)

    def serve(self) -> Ticket | None:
        """Let the first go; returns who is next."""
        tickets = self._tickets
        tickets.popleft()
        if not self._gone:
            return tickets[0] if tickets else None
        return self.first()

    def leave(self, ticket: Ticket) -> None:
        """Go without having been served."""
        ticket.state = ticket.state or GONE
        ticket.seat = None
        self._gone += 1
        if self._gone > _SMALL and 2 * self._gone > len(self._tickets):
            # More holes than tickets: close up, so that those who gave up cost nothing while the first waits for long.
            self._tickets = deque(self)
            self._gone = 0

    def clear(self) -> list[Ticket]:
        """Send everybody away; returns them in order."""
        tickets = list(self)
        self._tickets.clear()
        self._gone = 0
        return tickets
