"""The driver of a limiter for a whole process: its tickets lie in the inboxes of its family, and no loop owns its timer.

Each waiter is woken where it waits. A loop that stands still keeps its places in line and delays no other loop. The requests of a
closed loop leave the line, and what was granted to them goes to the next. Knows nothing of rates or HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.waiting.process.inbox import ProcessTicket
from aiorate.waiting.timer import Timer

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.process.view import ProcessLoop

__all__ = ["ProcessDriver"]


class ProcessDriver:
    """Called in the section, except for `wait` and `aclose`."""

    __slots__ = ("__weakref__", "_retired", "_timer", "dispatcher", "loop")

    def __init__(self, dispatcher: Dispatcher, loop: ProcessLoop) -> None:
        self.loop: ProcessLoop = loop
        self.dispatcher: Dispatcher = dispatcher
        """The dispatcher whose waiters it wakes."""
        self._retired = False
        self._timer = Timer(loop, dispatcher.serve)
        loop.family.drivers.add(self)

    def ticket(self, permits: int) -> ProcessTicket:
        inbox = self.loop.inbox()
        ticket = ProcessTicket(self, inbox, permits, inbox.port.signal(), inbox.port.owner())
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

    def lose(self, ticket: ProcessTicket) -> None:
        """Undo the request of a ticket whose loop was closed."""
        if not self._retired:
            self.dispatcher.leave_once(self.dispatcher.waiters, ticket, ticket.permits)

    def arm(self, reading: int | None) -> None:
        self._timer.set(reading)

    def retire(self) -> None:
        self._retired = True
        self._timer.set(None)
        self.loop.family.drivers.discard(self)

    async def aclose(self) -> None:
        thread = self.loop.section.run(self.loop.stop)
        while thread is not None and thread.is_alive():
            await self.loop.yield_once()
