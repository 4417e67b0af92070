"""Deadlines: the requests of a line that wait for a limited time, and one timer for the first of them to give up.

Knows nothing of rates or of how a waiter is woken.
"""

from __future__ import annotations

from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from aiorate.waiting.line import outcome_of
from aiorate.waiting.questions import estimate, look_from_top
from aiorate.waiting.timer import Timer
from aiorate.waiting.turnstile import MOST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.line import Ticket
    from aiorate.waiting.refusals import Refusals
    from aiorate.waiting.view import EventLoop

    Overdue = tuple[Ticket, int, int, Refusals]  # its permits, its limit in ns, and its errors

__all__ = ["Deadlines", "expire", "limit_wait"]

_SMALL = 32
_ESTIMATED = 32  # requests that time out in one wake-up whose errors say how long each would have waited


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


def limit_wait(dispatcher: Dispatcher, ticket: Ticket, permits: int, asked: int, limit: int, refusals: Refusals) -> None:
    """Have a request in line fail ``limit`` ns after the reading ``asked``."""
    waiters = dispatcher.waiters
    try:
        if waiters.deadlines is None:
            waiters.deadlines = Deadlines(waiters.loop, partial(_on_time, dispatcher))
        waiters.deadlines.add(ticket, permits, asked, limit, refusals, len(waiters.line))
    except BaseException:  # no timer
        dispatcher.leave_once(waiters, ticket, permits)
        raise


def _on_time(dispatcher: Dispatcher) -> None:
    """Grant what is due, and fail the requests whose time is over."""
    look_from_top(dispatcher)
    waiters = dispatcher.waiters
    if waiters.deadlines is None:  # the line is that of another loop
        return
    # As many at most as are woken in one iteration of the loop; the timer is due at once for the others.
    most = len(waiters.line) if waiters.loop.manual else MOST
    expire(dispatcher, waiters.deadlines.overdue(dispatcher.timeline.read(), most))
    waiters.deadlines.aim(len(waiters.line))


def expire(dispatcher: Dispatcher, over: Sequence[Overdue]) -> None:
    """Fail undecided requests in line, which wait no longer."""
    for ticket, permits, _, _ in over:
        dispatcher.counters.refused += 1
        dispatcher.waiters.leave(ticket, permits)
    more: int | None = 0
    for place, (ticket, permits, limit, refusals) in enumerate(over):
        if place < _ESTIMATED:
            try:
                more = estimate(dispatcher, permits, dispatcher.timeline.now())
            except Exception:  # of a strategy, a clock, or a store that is lost: those that left the line must be told
                more = None
        ticket.set_result(refusals.overdue(permits, limit, more))
    dispatcher.serve_unless_first()
