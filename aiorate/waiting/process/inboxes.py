"""The inboxes of a family of limiters: one for each event loop with waiters, and one for the threads without a loop.

However many limiters there are, looking for closed loops costs a step for each loop. Knows nothing of rates or HTTP.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from aiorate.waiting.loops import port_of, running_loop
from aiorate.waiting.process.inbox import Inbox
from aiorate.waiting.process.port import ThreadPort

if TYPE_CHECKING:
    from aiorate.waiting.process.inbox import ProcessTicket
    from aiorate.waiting.process.section import Section

__all__ = ["Inboxes"]

# Every request that has to wait looks for closed loops; with more than 32 loops, at most every 10 ms.
_FEW = 32
_APART_NS = 10_000_000


class Inboxes:
    """Called in the section."""

    __slots__ = ("_by_loop", "_clear_after", "_section")

    def __init__(self, section: Section) -> None:
        self._section = section
        self._by_loop: dict[object, Inbox] = {}
        self._clear_after = 0

    def here(self) -> Inbox:
        """The inbox of the loop that runs in this thread, or of the threads without one."""
        native = running_loop()
        inbox = self._by_loop.get(native)
        if inbox is None:
            # A loop has its first waiter: loops without waiters may be closed, so they are dropped.
            self._by_loop = {other: inbox for other, inbox in self._by_loop.items() if inbox.tickets}
            inbox = self._by_loop[native] = Inbox(ThreadPort() if native is None else port_of(native), self._section, self.clear_closed)
        return inbox

    def wake_again(self) -> list[ProcessTicket]:
        """Have the owners of all decided requests woken, whether or not they were before. Returns the tickets of granted ones."""
        decided = [ticket for inbox in self._by_loop.values() for ticket in inbox.wake_again()]
        return [ticket for ticket in decided if not isinstance(ticket.outcome, BaseException)]

    def clear_closed(self) -> bool:
        """Have the requests of closed loops leave the lines. True if there were any."""
        if len(self._by_loop) > _FEW:
            now = monotonic_ns()  # by real time, whatever the limiters' clocks say
            if now < self._clear_after:
                return False
            self._clear_after = now + _APART_NS
        closed = [native for native, inbox in self._by_loop.items() if inbox.port.closed]
        if not closed:
            return False
        lost = [ticket for native in closed for ticket in self._by_loop.pop(native).tickets]
        for ticket in lost:
            if ticket.outcome is None:
                ticket.gone = True  # all of them, before anything is granted: none may be granted to a ticket that has yet to leave
        for ticket in lost:
            ticket.driver.lose(ticket)
        return bool(lost)
