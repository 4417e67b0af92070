"""When each limit of a tree has to be looked at, and which requests wait for a limited time: one timer for all of them.

A timer is a hint, the clock is the judge: the code that is woken looks, and sets the timer again. It never fires twice within the loop's
grain, and one that fires too early for the same reading again is given more time.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from aiorate._tree.limit import outcome_of

if TYPE_CHECKING:
    from aiorate._loops.loop import Handle, Loop, Ticket
    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.limit import Limit
    from aiorate._tree.refusals import Refusals


_SMALL = 32


class Agenda:
    """Of one event loop."""

    __slots__ = ("_armed", "_deadlines", "_due", "_early", "_fired_at", "_gone", "_handle", "_heap", "_loop", "_most", "_number")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._handle: Handle | None = None
        self._due: int | None = None
        self._early = 0  # how often the timer fired before that reading
        self._fired_at: int | None = None
        self._heap: list[tuple[int, int, Limit]] = []
        self._armed = 0  # limits with a reading at which to look at them
        self._deadlines: list[tuple[int, int, Limit, Ticket, Permits, int, Refusals]] = []
        self._gone: dict[Ticket, None] = {}  # of requests with a deadline that left undecided
        self._most = _SMALL  # deadlines before those of decided requests are removed
        self._number = 0

    def wake(self, limit: Limit, reading: int | None) -> None:
        """Look at the limit when the clock reads that; None: not before something changes."""
        before = limit.wake_at
        if reading == before:
            if self._deadlines:  # the first may be of a request that was just granted
                self._aim()
            return
        limit.wake_at = reading
        heap = self._heap
        self._armed += (reading is not None) - (before is not None)
        if reading is not None:
            self._number += 1
            heappush(heap, (reading, self._number, limit))
            if len(heap) > 2 * self._armed + _SMALL:
                heap[:] = [entry for entry in heap if entry[2].wake_at == entry[0]]
                heapify(heap)
        self._aim()

    def limit_wait(self, limit: Limit, ticket: Ticket, permits: Permits, asked: int, most: int, refusals: Refusals) -> None:
        """Have a request in line fail ``most`` ns after the reading ``asked``."""
        self._number += 1  # of requests with the same deadline, the first to join gives up first
        heappush(self._deadlines, (asked + most, self._number, limit, ticket, permits, most, refusals))
        self._aim()

    def left(self, ticket: Ticket) -> None:
        """A request left undecided, perhaps one with a deadline."""
        if self._deadlines:
            self._gone[ticket] = None
            self._aim()

    def limits(self) -> list[Limit]:
        """The limits that were to be looked at."""
        return [limit for _, _, limit in self._heap]

    def _aim(self) -> None:
        heap, deadlines = self._heap, self._deadlines
        while heap and heap[0][2].wake_at != heap[0][0]:
            heappop(heap)
        while deadlines and not self._waits(deadlines[0][3]):
            heappop(deadlines)
        if len(deadlines) > _SMALL:
            self._most -= 1
            if len(deadlines) > self._most:
                self._tidy()
        elif not deadlines and self._gone:
            self._gone.clear()
        first = heap[0][0] if heap else None
        if deadlines and (first is None or deadlines[0][0] < first):
            first = deadlines[0][0]
        self.set(first)

    def set(self, due: int | None) -> None:
        """Wake when the clock reads ``due`` ns; None: never."""
        if self._handle is not None:
            if due == self._due:
                return
            handle, self._handle = self._handle, None  # first: a signal handler may raise after any call
            handle.cancel()
        self._early = self._early + 1 if due == self._due else 0
        self._due = due
        if due is not None:
            if self._fired_at is not None:
                due = max(due, self._fired_at + max(1, self._early) * self._loop.grain)
            self._handle = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        """Look at the limits that are due, and fail the requests whose time is over."""
        heap = self._heap
        self._handle = self._fired_at = None
        due: list[Limit] = []  # a limit that wants to be looked at again waits for the loop to turn, even if the clock stands still
        try:
            self._fired_at = reading = self._loop.read()
            while heap and heap[0][0] <= reading:
                at, _, limit = heappop(heap)
                if limit.wake_at == at:
                    limit.wake_at = None
                    self._armed -= 1
                    due.append(limit)
            for limit in due:
                limit.ring()
            if self._deadlines:
                self._expire(reading)
            self._aim()
        except Exception as error:  # a broken clock: nobody hangs
            for limit in dict.fromkeys([*due, *self.limits(), *[entry[2] for entry in self._deadlines]]):
                limit.fail(error)

    def _tidy(self) -> None:
        """Remove decided requests with late deadlines, which would pile up behind the first."""
        self._deadlines[:] = [entry for entry in self._deadlines if self._waits(entry[3])]
        heapify(self._deadlines)
        self._gone = {entry[3]: None for entry in self._deadlines if entry[3] in self._gone}
        self._most = 2 * len(self._deadlines) + _SMALL

    def _waits(self, ticket: Ticket) -> bool:
        return not ticket.done() and ticket not in self._gone and outcome_of(ticket) is None

    def _expire(self, reading: int) -> None:
        heap = self._deadlines
        over: dict[Limit, list[tuple[Ticket, Permits, int, Refusals]]] = {}
        number, most = 0, self._loop.most
        while heap and heap[0][0] <= reading and number < most:
            entry = heappop(heap)
            if self._waits(entry[3]):
                number += 1
                over.setdefault(entry[2], []).append(entry[3:])
        for limit in over:
            limit.look_from_top()
        for limit, requests in over.items():
            # A store gives a request a nearer deadline, too.
            limit.expire([*{request[0]: request for request in requests if self._waits(request[0])}.values()])
