"""When each limit of a tree has to be looked at, and until when requests may wait: one timer for all of them.

A timer is a hint, the clock is the judge: the code that is woken looks, and sets the timer again. It never fires twice within the loop's
grain, and one that fires too early for the same reading again is given more time.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Protocol

from aiorate._tree.line import outcome_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiorate._loops.loop import Handle, Loop, Ticket
    from aiorate._tree.refusals import Refusals

# A request that waits for a limited time: its ticket, the ns for which it may wait, and its errors.
Limited = tuple["Ticket", int, "Refusals"]
_SMALL = 32


class Member(Protocol):
    """A limit, for its tree."""

    wake_at: int | None
    """The reading of the clock at which it is looked at; None: it is not."""

    def ring(self) -> None:
        """The first is due."""

    def expire(self, over: Iterable[Limited]) -> None:
        """Fail those requests in line that are not due either."""

    def fail(self, error: BaseException) -> None:
        """Fail every request in line."""

    def disband(self, forked: bool) -> None:
        """The loop is no longer used: every request in line fails, if its loop can still wake it."""


class Agenda:
    """Of one event loop."""

    __slots__ = ("_early", "_fired_at", "_handle", "_heap", "_loop", "_most", "_number", "_set_for")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._handle: Handle | None = None
        self._set_for: int | None = None
        self._early = 0  # how often the timer fired before that reading
        self._fired_at: int | None = None
        self._heap: list[tuple[int, int, Member, Limited | None]] = []
        self._most = _SMALL  # entries before those that are over are removed
        self._number = 0

    def wake(self, limit: Member, reading: int | None) -> None:
        """Look at the limit when the clock reads that; None: not before something changes."""
        if reading != limit.wake_at:
            limit.wake_at = reading
            if reading is not None:
                self._number += 1
                heappush(self._heap, (reading, self._number, limit, None))
            self._aim()
        elif self._heap:  # the first may be of a request that was just granted
            self._aim()

    def limit_wait(self, limit: Member, until: int, request: Limited) -> None:
        """Have a request in line fail at that reading."""
        self._number += 1  # of requests with the same deadline, the first to join gives up first
        heappush(self._heap, (until, self._number, limit, request))
        self._aim()

    def forget(self, ticket: Ticket) -> None:
        """A request left undecided, perhaps one with a deadline."""
        first = self._heap[0][3] if self._heap else None
        if first is not None and first[0] is ticket:
            self._aim()

    def _holds(self, entry: tuple[int, int, Member, Limited | None]) -> bool:
        at, _, limit, request = entry
        return limit.wake_at == at if request is None else _waits(request[0])

    def _aim(self) -> None:
        heap = self._heap
        while heap and not self._holds(heap[0]):
            heappop(heap)
        self._most -= 1
        if len(heap) > max(self._most, _SMALL):  # they would pile up behind the first
            heap[:] = [entry for entry in heap if self._holds(entry)]
            heapify(heap)
            self._most = 2 * len(heap) + _SMALL
        self.set(heap[0][0] if heap else None)

    def set(self, reading: int | None) -> None:
        """Wake when the clock reads that; None: never."""
        if self._handle is not None:
            if reading == self._set_for:
                return
            handle, self._handle = self._handle, None  # first: a signal handler may raise after any call
            handle.cancel()
        self._early = self._early + 1 if reading == self._set_for else 0
        self._set_for = reading
        if reading is not None:
            if self._fired_at is not None:
                reading = max(reading, self._fired_at + max(1, self._early) * self._loop.grain)
            self._handle = self._loop.call_at(reading, self._ring)

    def _ring(self) -> None:
        """Look at the limits that are due, and fail the requests whose time is over."""
        heap = self._heap
        self._handle = self._fired_at = None
        due: list[Member] = []  # a limit that wants to be looked at again waits for the loop to turn, even if the clock stands still
        over: dict[Member, dict[Ticket, Limited]] = {}
        most = self._loop.most
        try:
            self._fired_at = reading = self._loop.read()
            while heap and heap[0][0] <= reading and most:
                entry = heappop(heap)
                if self._holds(entry):
                    _, _, limit, request = entry
                    if request is None:
                        limit.wake_at = None
                        due.append(limit)
                    else:
                        most -= 1
                        over.setdefault(limit, {})[request[0]] = request  # a store gives some a nearer deadline, too
            for limit in due:
                limit.ring()
            for limit, requests in over.items():
                limit.expire(request for request in requests.values() if _waits(request[0]))
            self._aim()
        except Exception as error:  # a broken clock: nobody hangs
            for limit in dict.fromkeys([*due, *over, *[entry[2] for entry in heap]]):
                limit.fail(error)


def _waits(ticket: Ticket) -> bool:
    return not (ticket.left or ticket.done()) and outcome_of(ticket) is None
