"""The driver of a limiter for a whole process: an inbox for each event loop with waiters, one for the threads without a loop, and one
timer that no loop owns.

Each waiter is woken where it waits. A loop that stands still keeps its places in line and delays no other loop. The requests of a
closed loop leave the line, and what was granted to them goes to the next. Knows nothing of rates or HTTP.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from aiorate.waiting.loops import port_of, running_loop
from aiorate.waiting.process.inbox import Inbox, ProcessTicket
from aiorate.waiting.process.port import ThreadPort
from aiorate.waiting.timer import Timer

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.process.view import ProcessLoop

__all__ = ["ProcessDriver"]

# Every request that has to wait looks for closed loops; with more than 32 loops, at most every 10 ms.
_FEW = 32
_APART_NS = 10_000_000


class ProcessDriver:
    """Called in the section, except for `wait` and `aclose`."""

    __slots__ = ("_clear_after", "_dispatcher", "_inboxes", "_timer", "loop")

    def __init__(self, dispatcher: Dispatcher, loop: ProcessLoop) -> None:
        self.loop: ProcessLoop = loop
        self._dispatcher = dispatcher
        self._timer = Timer(loop, dispatcher.serve)
        self._inboxes: dict[object, Inbox] = {}
        self._clear_after = 0
        loop.drivers.append(self)

    def ticket(self, permits: int) -> ProcessTicket:
        native = running_loop()
        if native is None and self.loop.in_timekeeper:
            raise RuntimeError("acquire_blocking() inside on_event would deadlock. Call it from another thread.")
        inbox = self._inboxes.get(native)
        if inbox is None:
            # A loop has its first waiter: loops without waiters may be closed, so they are dropped.
            self._inboxes = {other: inbox for other, inbox in self._inboxes.items() if inbox.tickets}
            inbox = self._inboxes[native] = Inbox(ThreadPort() if native is None else port_of(native), self.loop.section, self.clear_closed)
        ticket = ProcessTicket(inbox, permits, inbox.port.signal(), inbox.port.owner())
        inbox.tickets[ticket] = None
        return ticket

    def wait(self, ticket: ProcessTicket) -> Awaitable[object]:
        return ticket.inbox.port.wait(ticket.signal)

    def leave(self, ticket: ProcessTicket) -> None:
        ticket.gone = True

    def release(self, ticket: ProcessTicket) -> bool:
        """Forget a ticket whose owner no longer waits. False if it was forgotten before."""
        if ticket not in ticket.inbox.tickets:
            return False
        del ticket.inbox.tickets[ticket]
        ticket.signal = ticket.task = None  # the line may keep the ticket for a while, but must keep nothing else
        return True

    def wake_again(self) -> int:
        """Have the owners of all decided requests woken, whether or not they were before. Returns how many were granted."""
        decided = [outcome for inbox in self._inboxes.values() for outcome in inbox.wake_again()]
        return sum(not isinstance(outcome, BaseException) for outcome in decided)

    def clear_closed(self) -> bool:
        """Have the requests of closed loops leave the line. True if there were any."""
        if len(self._inboxes) > _FEW:
            now = monotonic_ns()  # by real time, whatever the limiter's clock says
            if now < self._clear_after:
                return False
            self._clear_after = now + _APART_NS
        closed = [native for native, inbox in self._inboxes.items() if inbox.port.closed]
        if not closed:
            return False
        lost = [ticket for native in closed for ticket in self._inboxes.pop(native).tickets]
        waiting = [ticket for ticket in lost if ticket.outcome is None]
        for ticket in waiting:
            ticket.gone = True  # all of them, before anything is granted: none may be granted to a ticket that has yet to leave
        for ticket in lost:
            self._dispatcher.leave_once(self._dispatcher.waiters, ticket, ticket.permits)
        return bool(lost)

    def arm(self, reading: int | None) -> None:
        self._timer.set(reading)

    def retire(self) -> None:
        self._timer.set(None)

    async def aclose(self) -> None:
        thread = self.loop.section.run(self.loop.stop)
        while thread is not None and thread.is_alive():
            await self.loop.yield_once()
