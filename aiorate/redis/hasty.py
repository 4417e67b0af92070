"""Requests that wait for one answer of the store and no longer: ``max_wait=0``. Knows what to ask for them, and which are over then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.waiting.line import outcome_of

if TYPE_CHECKING:
    from aiorate.waiting.deadlines import Patience
    from aiorate.waiting.line import Line, Ticket

__all__ = ["Hasty"]


class Hasty:
    """Those of one line, which may have others among them."""

    __slots__ = ("_asked", "_patience", "have", "unit")

    def __init__(self) -> None:
        self._patience: dict[Ticket, Patience] = {}
        self._asked: set[Ticket] = set()  # for which an answer is under way, or came
        self.unit: int = 1
        """Slots are of use by so many at a time."""
        self.have: int = 0
        """How many of such a number are there already."""

    def __bool__(self) -> bool:
        return bool(self._patience)

    def add(self, ticket: Ticket, patience: Patience) -> None:
        """A request joined the line."""
        self._patience[ticket] = patience

    def remove(self, ticket: Ticket) -> None:
        """It is decided, or has left."""
        self._patience.pop(ticket, None)
        self._asked.discard(ticket)

    def clear(self) -> None:
        """They are another process's."""
        self._patience.clear()
        self._asked.clear()

    def ask(self, line: Line, ready: int, alone: bool) -> int:
        """The store is being asked on behalf of that line. Returns the permits to ask for, if that is for none but these; else 0.

        Slots that come too late lapse, and so do those of which only a part of a request could be served: ``alone`` says that
        nobody else would use them. Then only the first requests are asked for that are all of one size.
        """
        requests = [(ticket, permits) for ticket, permits, _ in line if not ticket.cancelled()]
        alone = alone and all(ticket in self._patience for ticket, _ in requests)
        if not alone or not requests:
            self._asked.update(self._patience)
            return 0
        wanted, self.unit = 0, requests[0][1]
        for ticket, permits in requests:
            if permits != self.unit:
                break
            self._asked.add(ticket)
            wanted += permits
        self.have = ready % self.unit
        return wanted

    def over(self, line: Line, due: int, coming: bool) -> list[tuple[Ticket, int, Patience]]:
        """Those that had their answer, or will have none, and are not served by so many slots that are due."""
        over: list[tuple[Ticket, int, Patience]] = []
        for ticket, permits, _ in line:
            patience = self._patience.get(ticket)
            if patience is None or permits <= due or (coming and ticket not in self._asked):
                due -= permits
            elif outcome_of(ticket) is None:
                over.append((ticket, permits, patience))
        return over
