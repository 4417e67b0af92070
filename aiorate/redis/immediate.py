"""Requests with ``max_wait=0``: they wait for one answer of the store. Says what to ask for them, and which to refuse after it."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from aiorate.errors import WaitTooLong
from aiorate.rate import ns_to_seconds
from aiorate.waiting.deadlines import Patience
from aiorate.waiting.line import outcome_of

if TYPE_CHECKING:
    from aiorate.waiting.line import Line, Ticket

__all__ = ["Immediate", "OneAnswer"]


class OneAnswer(Patience):
    """The patience of a request that waits for one answer of the store; ``limit`` is the ``max_wait`` (ns) that it came with."""

    __slots__ = ("_permits",)

    def __init__(self, permits: int, limit: int) -> None:
        super().__init__(f"acquire({permits})", limit)
        self._permits = permits

    def error(self, more: int | None) -> WaitTooLong:
        seconds, limit = inf if more is None else ns_to_seconds(more), ns_to_seconds(self.limit)
        why = f"acquire({self._permits}) would wait {seconds:.6g} s, but max_wait is {limit:g} s."
        return WaitTooLong(f"{why} Nothing was spent. Try later, or raise max_wait.", seconds, limit)


class Immediate:
    """The requests with ``max_wait=0`` in one line, where other requests may stand too."""

    __slots__ = ("_asked", "_patience", "have", "unit")

    def __init__(self) -> None:
        self._patience: dict[Ticket, Patience] = {}
        self._asked: set[Ticket] = set()  # those that the question counted whose answer is under way, or has come
        self.unit: int = 1
        """The size of a request: slots are useful in multiples of it."""
        self.have: int = 0
        """The slots of an incomplete multiple that are in hand already."""

    def __bool__(self) -> bool:
        return bool(self._patience)

    @property
    def has_more(self) -> bool:
        """Whether there are requests that no question has counted."""
        return len(self._asked) < len(self._patience)

    def add(self, ticket: Ticket, patience: Patience) -> None:
        """A request joined the line."""
        self._patience[ticket] = patience

    def remove(self, ticket: Ticket) -> None:
        """A request was decided, or left the line."""
        self._patience.pop(ticket, None)
        self._asked.discard(ticket)

    def clear(self) -> None:
        """Forget all: after a fork they belong to the parent."""
        self._patience.clear()
        self._asked.clear()

    def ask(self, line: Line, ready: int, most: int, alone: bool) -> int:
        """The store is about to be asked for the line. Returns the permits to ask for on behalf of these requests alone, or 0.

        0 if other requests stand in line, or if ``alone`` is False because slots are booked ahead anyway: then slots that these
        requests leave are useful to others. Otherwise a slot that comes too late would lapse, and so would the slots of a request
        that has only a part of what it needs. So the question counts the first requests of one size, and says what size that is.
        Of a crowd, it counts those that ask for ``most`` permits together, the ``ready`` ones included.
        """
        requests = [(ticket, permits) for ticket, permits, _ in line if not ticket.cancelled()]
        if not requests:
            return 0
        alone = alone and all(ticket in self._patience for ticket, _ in requests)
        wanted, unit = 0, requests[0][1]
        for ticket, permits in requests:
            if (alone and permits != unit) or (wanted and wanted + permits > most):
                break
            if ticket in self._patience:
                self._asked.add(ticket)
            wanted += permits
        if not alone:
            return 0
        self.unit, self.have = unit, ready % unit
        return wanted

    def refused(self, line: Line, due: int, coming: bool) -> list[tuple[Ticket, int, Patience]]:
        """The requests for which ``due`` slots are not enough, and that had their answer or get none.

        ``coming``: one is on its way for those that no question has counted, or will be.
        """
        over: list[tuple[Ticket, int, Patience]] = []
        for ticket, permits, _ in line:
            patience = self._patience.get(ticket)
            if patience is None or permits <= due or (coming and ticket not in self._asked):
                due -= permits
            elif outcome_of(ticket) is None:
                over.append((ticket, permits, patience))
        return over
