"""Deadlines: requests of a line that wait for so long and no longer, and one timer for the first of them to give up.

Knows nothing of rates or of how a waiter is woken.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from aiorate.errors import WaitTooLong
from aiorate.rate import ns_to_seconds
from aiorate.waiting.line import outcome_of
from aiorate.waiting.timer import Timer

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.waiting.clock import EventLoop
    from aiorate.waiting.line import Ticket

__all__ = ["Deadlines", "Patience"]

_SMALL = 32


class Patience:
    """How long a request waits at most, in ns, and what its owner is told then. ``call`` is what the error names."""

    __slots__ = ("_call", "limit")

    def __init__(self, call: str, limit: int) -> None:
        self._call = call
        self.limit: int = limit

    def error(self, more: int | None) -> WaitTooLong:
        """What its owner is told, who would wait so many ns more; None: nobody can say."""
        limit = ns_to_seconds(self.limit)
        return WaitTooLong(
            f"{self._call} has waited for {limit:g} s, which is max_wait, and was not granted that early."
            " Nothing was spent; try later, or allow more.",
            inf if more is None else ns_to_seconds(self.limit + more),
            limit,
        )


class Deadlines:
    """The requests with a deadline, the first to give up first. ``on_time`` is called when the time of one is over."""

    __slots__ = ("_count", "_gone", "_heap", "_set_for", "_timer")

    def __init__(self, loop: EventLoop, on_time: Callable[[], None]) -> None:
        self._timer = Timer(loop, on_time)
        self._heap: list[tuple[int, int, Ticket, int, Patience]] = []
        self._count = 0  # of requests with the same deadline, the first to join gives up first
        self._gone: set[Ticket] = set()  # those that left the line without being done
        self._set_for: int | None = None  # the reading at which the timer fires at the latest; None: it is not set

    def add(self, ticket: Ticket, permits: int, asked: int, patience: Patience, waiting: int) -> None:
        """A request joined the line when the clock read that; so many wait."""
        self._count += 1
        heappush(self._heap, (asked + patience.limit, self._count, ticket, permits, patience))
        self.aim(waiting)

    def leave(self, ticket: Ticket, waiting: int) -> None:
        """A request left the line, perhaps without a deadline; so many still wait."""
        self._gone.add(ticket)
        self.aim(waiting)

    def overdue(self, reading: int, most: int) -> list[tuple[Ticket, int, Patience]]:
        """So many of those at most whose time was over when the clock read that; they are no longer kept."""
        self._set_for = None  # the timer has fired
        over: list[tuple[Ticket, int, Patience]] = []
        while self._heap and self._heap[0][0] <= reading and len(over) < most:
            _, _, ticket, permits, patience = heappop(self._heap)
            if not self._is_decided(ticket):
                over.append((ticket, permits, patience))
        return over

    def aim(self, waiting: int) -> None:
        """Set the timer for the first that still waits, of so many in line."""
        heap = self._heap
        if len(heap) > 2 * waiting + _SMALL:  # those far off would pile up behind the first
            heap[:] = [entry for entry in heap if not self._is_decided(entry[2])]
            heapify(heap)
        while heap and self._is_decided(heap[0][2]):
            heappop(heap)
        if len(self._gone) > 2 * len(heap) + _SMALL or not heap:
            self._gone.intersection_update([entry[2] for entry in heap])
        first = heap[0][0] if heap else None
        # Not anew for each request that is granted: a timer that is set for an earlier one finds out.
        if first is None or self._set_for is None or first < self._set_for:
            self._set_for = first
            self._timer.set(first)

    def retire(self) -> None:
        """Nobody waits any more."""
        self._heap.clear()
        self._gone.clear()
        self._set_for = None
        self._timer.set(None)

    def _is_decided(self, ticket: Ticket) -> bool:
        return ticket.done() or ticket in self._gone or outcome_of(ticket) is not None
