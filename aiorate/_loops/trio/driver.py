"""Trio's driver, for every strategy: an event for each waiter.

Grants are in order; trio runs the tasks that are woken at one instant in either order. Knows nothing of rates or HTTP.
"""

from __future__ import annotations

from asyncio import InvalidStateError
from typing import TYPE_CHECKING

import anyio

from aiorate._loops.trio.here import running_trio

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiorate._loops.trio.view import TrioLoop
    from aiorate._tree.limit import Outcome
    from aiorate._tree.node import Node

__all__ = ["TrioDriver"]


class TrioTicket:
    """What a waiter holds: an outcome, and the event that it awaits."""

    __slots__ = ("_native", "_outcome", "event", "task")

    def __init__(self, native: object) -> None:
        self._native = native
        self._outcome: Outcome | None = None
        self.event: anyio.Event | None = None
        self.task: anyio.TaskInfo | None = None

    def done(self) -> bool:
        return self._outcome is not None

    def cancelled(self) -> bool:
        return self._outcome is None and self.task is not None and self.task.has_pending_cancellation()

    def result(self) -> Outcome:
        if self._outcome is None:
            raise InvalidStateError
        return self._outcome

    def set_result(self, outcome: Outcome, /) -> None:
        """Raises RuntimeError in another thread, or after its run has broken off."""
        self._outcome = outcome
        if self.event is not None:
            if running_trio() is not self._native:  # another run would take the task for one of its tasks
                raise RuntimeError("a waiter can only be woken in its own trio run")
            self.event.set()


class TrioDriver:
    """An event for each waiter."""

    __slots__ = ("_native",)

    def __init__(self, loop: TrioLoop) -> None:
        self._native = loop.native

    def ticket(self, permits: int) -> TrioTicket:
        return TrioTicket(self._native)

    def wait(self, ticket: TrioTicket) -> Awaitable[object]:
        event = ticket.event = anyio.Event()
        if ticket.task is None:
            ticket.task = anyio.get_current_task()
        return event.wait()

    def leave(self, ticket: TrioTicket) -> None:
        ticket.event = ticket.task = None  # the line may keep the ticket for a while, but must keep nothing else

    def ring(self, node: Node) -> None:
        node.look()

    def retire(self) -> None:
        pass

    async def aclose(self) -> None:
        pass
