"""Trio's driver, for every strategy: an event for each waiter, and the first in line watches the timer.

The first waiter sleeps until its instant, has the dispatcher decide, and hands the watch on. There is no other task.
Grants are in order; trio runs the tasks that are woken at one instant in either order. Knows nothing of rates or HTTP.
"""

from __future__ import annotations

from asyncio import InvalidStateError
from typing import TYPE_CHECKING

import anyio

from aiorate.waiting.timer import Timer
from aiorate.waiting.trio.here import running_trio
from aiorate.waiting.trio.timer import keep_by_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.waiting.clock import Handle
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.line import Outcome
    from aiorate.waiting.trio.timer import TrioTimer
    from aiorate.waiting.trio.view import TrioLoop

__all__ = ["TrioDriver"]


class TrioTicket:
    """What a waiter holds: an outcome, the event that it awaits and, while it watches the timer, the scope that ends with the timer."""

    __slots__ = ("_native", "_outcome", "event", "scope", "task")

    def __init__(self, native: object) -> None:
        self._native = native
        self._outcome: Outcome | None = None
        self.event: anyio.Event | None = None
        self.scope: anyio.CancelScope | None = None
        self.task: anyio.TaskInfo | None = None

    def done(self) -> bool:
        return self._outcome is not None

    def cancelled(self) -> bool:
        if self._outcome is not None or self.task is None or not self.task.has_pending_cancellation():
            return False
        return self.scope is None or not self.scope.cancel_called  # otherwise the scope ended because the timer is due

    def result(self) -> Outcome:
        if self._outcome is None:
            raise InvalidStateError
        return self._outcome

    def set_result(self, outcome: Outcome, /) -> None:
        self._outcome = outcome
        self.wake()

    def wake(self) -> None:
        """Have its owner look again. Raises RuntimeError in another thread, or after its run has broken off."""
        if self.event is not None:
            if running_trio() is not self._native:  # another run would take the task for one of its tasks
                raise RuntimeError("a waiter can only be woken in its own trio run")
            self.event.set()


class TrioDriver:
    """The first in line watches the timer: `arm` makes sure of that."""

    __slots__ = ("_armed", "_dispatcher", "_loop", "_timer", "_watcher")

    def __init__(self, dispatcher: Dispatcher, loop: TrioLoop) -> None:
        self._dispatcher = dispatcher
        self._loop = loop
        self._timer = Timer(loop, dispatcher.serve, self._call_at)
        self._armed: TrioTimer | None = None  # the timer that was set last
        self._watcher: TrioTicket | None = None  # whose owner fires it

    def ticket(self, permits: int) -> TrioTicket:
        return TrioTicket(self._loop.native)

    async def wait(self, ticket: TrioTicket) -> None:
        event, ticket.scope = anyio.Event(), None
        ticket.event = event
        if ticket.task is None:
            ticket.task = anyio.get_current_task()
        timer = self._armed if ticket is self._watcher else None
        if timer is None or not timer.pending:
            await event.wait()
            return
        with anyio.CancelScope(deadline=timer.deadline) as ticket.scope:
            await event.wait()
            return
        timer.fire()

    def leave(self, ticket: TrioTicket) -> None:
        if ticket is self._watcher:
            self._watcher = None
        ticket.event = ticket.scope = ticket.task = None  # the line may keep the ticket for a while, but must keep nothing else

    def release(self, ticket: TrioTicket) -> bool:
        return True

    def arm(self, reading: int | None) -> None:
        self._timer.set(reading)
        watcher = self._watcher
        if watcher is None or watcher.done():
            first = self._dispatcher.line.first()
            watcher = self._watcher = first[0] if first is not None and isinstance(first[0], TrioTicket) else None
        if watcher is not None:
            watcher.wake()
        elif reading is not None:
            # The first in line comes from another line, and its task watches another timer. A waiter behind it may leave unnoticed.
            timer = self._armed
            if timer is not None and timer.pending and timer.scope is None:
                keep_by_task(timer)

    def retire(self) -> None:
        self._timer.set(None)
        self._watcher = None

    async def aclose(self) -> None:
        self._timer.set(None)

    def _call_at(self, reading: int, callback: Callable[[], None]) -> Handle:
        if self._loop.manual:
            return self._loop.call_at(reading, callback)
        self._armed = self._loop.make_timer(reading, callback)
        return self._armed
