"""The inbox of an event loop: requests of its tasks, and those of them that were decided elsewhere and are still to be told there.

However many are decided at once, the loop is called once; and it is told of a thousand at most in one iteration.
"""

from __future__ import annotations

from asyncio import InvalidStateError
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any

    from aiorate.waiting.line import Line, Outcome
    from aiorate.waiting.port import Port
    from aiorate.waiting.process.section import Section

__all__ = ["Inbox", "ProcessTicket"]

_PORTION = 1_000


class ProcessTicket:
    """What a waiter of any thread holds. The outcome is there as soon as it is decided; its owner is woken later."""

    __slots__ = ("asked", "bell", "gone", "inbox", "line", "outcome", "permits", "task")

    def __init__(self, inbox: Inbox, bell: object, task: asyncio.Task[Any] | None) -> None:
        self.inbox: Inbox = inbox
        self.bell: Any = bell
        self.task: asyncio.Task[Any] | None = task
        self.outcome: Outcome | None = None
        self.gone: bool = False
        """Whether its owner went without an outcome."""
        self.line: Line | None = None
        self.permits: int = 0
        self.asked: int = 0
        """The clock's reading at the request."""

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
    """All but `_deliver` is called in the section, or by what comes after it."""

    __slots__ = ("_decided", "_on_lost", "_posted", "_section", "port", "tickets")

    def __init__(self, port: Port, section: Section, on_lost: Callable[[], object]) -> None:
        self.port: Port = port
        self.tickets: dict[ProcessTicket, None] = {}
        """Those whose owners wait, or have not gone on yet, in order of arrival."""
        self._section = section
        self._on_lost = on_lost
        self._decided: deque[ProcessTicket] = deque()
        self._posted = False  # whether the loop is going to look

    def add(self, ticket: ProcessTicket) -> None:
        """It was decided: have its owner woken."""
        self._decided.append(ticket)
        if not self._posted:  # see _deliver(): what it misses is posted anew
            self._section.after(self._post)
            self._posted = True

    def tell_again(self) -> list[Outcome]:
        """Have the owners of all that were decided woken, whatever became of the first time; returns what was decided."""
        decided = [ticket for ticket in self.tickets if ticket.outcome is not None]
        self._decided.extend(decided)
        if self._decided:
            self._section.after(self._post)
        return [ticket.result() for ticket in decided]

    def _post(self) -> None:
        try:
            self.port.post(self._deliver)
        except (RuntimeError, OSError):  # the loop is closed
            self._section.post(self._on_lost)

    def _deliver(self) -> None:
        """In the loop."""
        self._posted = False  # before it looks: a decision looks at this only after it has added its ticket
        for _ in range(_PORTION):
            try:
                ticket = self._decided.popleft()
            except IndexError:
                return
            bell = ticket.bell
            if bell is not None:  # else its owner has gone on already
                self.port.ring(bell)
        self._posted = True
        self._post()
