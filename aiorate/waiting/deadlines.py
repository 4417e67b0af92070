"""Deadlines: the requests of a line that wait for a limited time, and one timer for the first of them to give up.

Knows nothing of rates or of how a waiter is woken.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from aiorate.waiting.line import outcome_of
from aiorate.waiting.timer import Timer

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.waiting.line import Ticket
    from aiorate.waiting.refusals import Refusals
    from aiorate.waiting.view import EventLoop

    Overdue = tuple[Ticket, int, int, Refusals]  # its permits, its limit in ns, and its errors

__all__ = ["Deadlines"]

_SMALL = 32


class Deadlines:
    """The requests with a deadline, ordered by it. ``on_time`` is called when one is over."""

    __slots__ = ("_count", "_gone", "_heap", "_set_for", "_timer")

    def __init__(self, loop: EventLoop, on_time: Callable[[], None]) -> None:
        self._timer = Timer(loop, on_time)
        self._heap: list[tuple[int, int, Ticket, int, int, Refusals]] = []
        self._count = 0  # of requests with the same deadline, the first to join gives up first
        self._gone: set[Ticket] = set()  # those that left the line without being done
        self._set_for: int | None = None  # the reading at which the timer fires at the latest; None: it is not set

    def add(self, ticket: Ticket, permits: int, asked: int, limit: int, refusals: Refusals, waiting: int) -> None:
        """Add a request that joined the line when the clock read ``asked``, for ``limit`` ns; ``waiting`` requests are in line."""
        self._count += 1
        heappush(self._heap, (asked + limit, self._count, ticket, permits, limit, refusals))
        self.aim(waiting)

    def leave(self, ticket: Ticket, waiting: int) -> None:
        """Note that a request left the line, perhaps one without a deadline; ``waiting`` are still in line."""
        self._gone.add(ticket)
        self.aim(waiting)

    def overdue(self, reading: int, most: int) -> list[Overdue]:
        """Remove and return at most ``most`` requests whose deadline was over when the clock read ``reading``."""
        self._set_for = None  # the timer has fired
        over: list[Overdue] = []
        while self._heap and self._heap[0][0] <= reading and len(over) < most:
            _, _, ticket, permits, limit, refusals = heappop(self._heap)
            if not self._is_decided(ticket):
                over.append((ticket, permits, limit, refusals))
        return over

    def aim(self, waiting: int) -> None:
        """Set the timer for the first that still waits; ``waiting`` requests are in line."""
        heap = self._heap
        if len(heap) > 2 * waiting + _SMALL:  # decided ones with late deadlines would pile up behind the first
            heap[:] = [entry for entry in heap if not self._is_decided(entry[2])]
            heapify(heap)
        while heap and self._is_decided(heap[0][2]):
            heappop(heap)
        if len(self._gone) > 2 * len(heap) + _SMALL or not heap:
            self._gone.intersection_update([entry[2] for entry in heap])
        first = heap[0][0] if heap else None
        # Not set again for each request that is granted: a timer set for an earlier one finds out.
        if first is None or self._set_for is None or first < self._set_for:
            self._set_for = first
            self._timer.set(first)

    def retire(self) -> None:
        """Forget everything: nobody is waiting."""
        self._heap.clear()
        self._gone.clear()
        self._set_for = None
        self._timer.set(None)

    def _is_decided(self, ticket: Ticket) -> bool:
        return ticket.done() or ticket in self._gone or outcome_of(ticket) is not None
