"""The waiting line: tickets in order of arrival, each of which says whether its permits were granted.

Cut out once, because order and cancellation are hard. Knows nothing of rates, time or how a waiter is woken.
As in trio's ParkingLot and anyio's CapacityLimiter: nobody passes a line, and who leaves it leaves no hole.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

__all__ = ["Line", "Ticket"]

_SMALL = 32
_NOBODY: deque[Ticket] = deque()  # of all lines that nobody ever joined: an empty deque takes as much as all the rest of a limiter

WAITING, GRANTED, FAILED, GONE = range(4)


class Ticket(Protocol):
    """One request in line. The driver only wakes, the ticket decides: whoever waits goes by its ``state``.

    Each driver makes tickets of its own kind, with the slots of `FIELDS` and what it needs to find the one who waits.
    """

    permits: int
    since: int
    """The limiter's time since when it stands in line."""
    asked: int
    """The clock's reading when it joined."""
    state: int
    """WAITING, then GRANTED, FAILED or GONE."""
    error: BaseException
    """Why it failed."""
    at: int
    """For when it was scheduled, once granted."""
    granted_at: int
    """When it was granted."""
    waited: int
    """Nanoseconds from being asked to being granted, pauses included."""
    mark: int
    """How many permits had been taken once it was granted, its own included."""

    def wait(self) -> Awaitable[None]:
        """What to await until it is decided."""
        ...

    def wake(self) -> None:
        """It is decided: let the one who waits run."""
        ...


FIELDS = ("permits", "since", "asked", "state", "error", "at", "granted_at", "waited", "mark")


class Line:
    """Tickets in order. Leaving from the middle takes amortised constant time, and keeps nothing of the waiter alive."""

    __slots__ = ("_gone", "_tickets")

    def __init__(self) -> None:
        self._tickets = _NOBODY
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
        if self._tickets is _NOBODY:
            self._tickets = deque()
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
