"""The inbox of an event loop: the requests of its tasks, and the decided ones among them whose tasks are still to be woken.

However many requests are decided at once, the loop is called back once, and it wakes at most a thousand tasks in one iteration.
"""

from __future__ import annotations

from asyncio import InvalidStateError
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any

    from aiorate.waiting.line import Outcome
    from aiorate.waiting.port import Port
    from aiorate.waiting.process.driver import ProcessDriver
    from aiorate.waiting.process.section import Section

__all__ = ["Inbox", "ProcessTicket"]

_PORTION = 1_000


class ProcessTicket:
    """What a waiter of any thread holds. It has the outcome as soon as that is decided; its owner is woken later."""

    __slots__ = ("driver", "gone", "inbox", "outcome", "permits", "signal", "task")

    def __init__(self, driver: ProcessDriver, inbox: Inbox, permits: int, signal: object, task: asyncio.Task[Any] | None) -> None:
        self.driver: ProcessDriver = driver
        self.inbox: Inbox = inbox
        self.permits: int = permits
        self.signal: Any = signal
        self.task: asyncio.Task[Any] | None = task
        self.outcome: Outcome | None = None
        self.gone: bool = False
        """Whether its owner left without an outcome."""

    def done(self) -> bool:
        return self.gone or self.outcome is not None

    def cancelled(self) -> bool:
        return self.outcome is None and self.task is not None and self.task.cancelling() > 0

    def result(self) -> Outcome:
        if self.outcome is None:
            raise InvalidStateError
        return self.outcome

    def set_result(self, outcome: Outcome, /) -> None:
        self.outcome = outcome
        self.inbox.add(self)


class Inbox:
    """Called in the section or just after it, except for `_deliver`, which the loop calls."""

    __slots__ = ("_decided", "_on_closed", "_posted", "_section", "port", "tickets")

    def __init__(self, port: Port, section: Section, on_closed: Callable[[], object]) -> None:
        self.port: Port = port
        self.tickets: dict[ProcessTicket, None] = {}
        """Tickets whose owners wait, or have not gone on yet, in order of arrival."""
        self._section = section
        self._on_closed = on_closed
        self._decided: deque[ProcessTicket] = deque()
        self._posted = False  # whether the loop is going to deliver

    def add(self, ticket: ProcessTicket) -> None:
        """Have the owner of a decided ticket woken."""
        self._decided.append(ticket)
        if not self._posted:  # see _deliver(): what it misses is posted again
            self._section.after(self._post)
            self._posted = True

    def wake_again(self) -> list[ProcessTicket]:
        """Have the owners of all decided tickets woken, whether or not they were before. Returns the tickets."""
        decided = [ticket for ticket in self.tickets if ticket.outcome is not None]
        self._decided.extend(decided)
        if self._decided:
            self._section.after(self._post)
        return decided

    def _post(self) -> None:
        try:
            self.port.post(self._deliver)
        except (RuntimeError, OSError):  # the loop is closed
            self._section.post(self._on_closed)

    def _deliver(self) -> None:
        """Wake the owners, in the loop."""
        self._posted = False  # before the queue is read: a decision reads this flag only after it has added its ticket
        for _ in range(_PORTION):
            try:
                ticket = self._decided.popleft()
            except IndexError:
                return
            signal = ticket.signal
            if signal is not None:  # else its owner has gone on already
                self.port.send(signal)
        self._posted = True
        self._post()
