"""The Filler: an event-loop task that refills the token pool and wakes consumers through ``asyncio.Condition``.

The task exists while requests wait. It sleeps until the first in line is due, has its limit look, which refills the pool by
the time that has passed, and notifies the waiters that were granted. The token pool has a Filler because its original has one; those
who wait for other strategies await plain futures of the loop. Knows nothing of rates.

One Condition for each row of at most 64 waiters: asyncio's removes a cancelled waiter by linear search, and cancelling 100 000
waiters of a single Condition took 24 s. Tickets decide and conditions only wake: CPython 3.11 loses a notice whose receiver is
cancelled (cpython#112202), which a ticket makes harmless.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Any, Literal

    from aiorate._loops.loop import Decider, Loop


_SEATS = 64


class _OpenLock(asyncio.Lock):
    """The lock of all conditions, which every task holds at all times: no step of the filler awaits, so there is nothing to lock."""

    def locked(self) -> bool:
        return True

    async def acquire(self) -> Literal[True]:
        return True

    def release(self) -> None:
        pass


class _Row(asyncio.Condition):
    """Up to 64 waiters, in the order of their tickets.

    ``notify()`` wakes the longest waiter, normally the one that was granted: grants are in order, and pass over waiters that are being
    cancelled. The exception is a waiter that is cancelled between its grant and the notice. Then another is woken in vain; it would
    stand last in its row, so it moves to the row's spare row, and both stay in order.
    """

    def __init__(self, filler: Filler) -> None:
        super().__init__(_OPEN)
        self.filler: Filler = filler
        self.seats: int = 0
        self.spare: _Row | None = None
        self.failed: bool = False  # whether a waiter failed out of turn: all are woken, and the others wait on
        self._waking = False

    def wake(self, count: int) -> None:
        """Notify so many waiters."""
        self._waking = True
        try:
            if self.failed:
                self.notify_all()
            else:
                self.notify(count)
        finally:
            self._waking = self.failed = False

    def _notify(self, n: int) -> None:
        # Since CPython 3.13, a cancelled waiter passes a notice on. Tickets make that needless; it would wake other waiters out of turn,
        # and it fails in a closed loop.
        if self._waking:
            super()._notify(n)  # type: ignore[misc]  # of CPython 3.13; earlier versions never call this


class FillerTicket:
    """A ticket with a seat in a row, until its owner is notified."""

    __slots__ = ("outcome", "row", "task")

    def __init__(self) -> None:
        self.outcome: Any = None
        self.row: _Row | None = None
        self.task: asyncio.Task[Any] | None = None

    def done(self) -> bool:
        return self.cancelled() if self.outcome is None else self.row is None

    def cancelled(self) -> bool:
        return self.outcome is None and self.task is not None and self.task.cancelling() > 0

    def result(self) -> Any:
        if self.outcome is None:
            raise asyncio.InvalidStateError
        return self.outcome

    def set_result(self, outcome: Any, /) -> None:
        self.outcome = outcome
        row = self.row
        if row is not None:
            if isinstance(outcome, BaseException):
                row.failed = True
            row.filler.notify_later(self)


class Filler:
    """Wakes those who wait for one token pool: a task that decides, notifies and sleeps."""

    __slots__ = ("_decider", "_label", "_loop", "_native", "_row", "_seated", "_sleep", "_task", "_timer_fired", "_to_notify")

    ticket = FillerTicket

    def __init__(self, decider: Decider, loop: Loop, native: asyncio.AbstractEventLoop, name: str | None) -> None:
        self._decider: Decider | None = decider
        self._loop = loop
        self._native = native
        self._label = f"aiorate-filler:{name}" if name else "aiorate-filler"
        self._timer_fired = False
        self._task: asyncio.Task[None] | None = None
        self._sleep: asyncio.Future[None] | None = None
        self._row: _Row | None = None  # of the next waiters
        self._seated = 0  # tickets whose owners are still to be notified
        self._to_notify: list[FillerTicket] = []

    def wait(self, ticket: FillerTicket, /) -> Awaitable[object]:
        row = ticket.row
        if row is None:
            row = self._row
            if row is None or row.seats == _SEATS:
                row = self._row = _Row(self)
            row.seats += 1
            self._seated += 1
            ticket.task = self._loop.owner()
        else:  # woken in vain
            row.spare = row = row.spare or _Row(self)
        ticket.row = row
        if self._task is None or self._task.done():
            self._start()
        # The filler's task has run already if it was started eagerly, and may have notified this ticket.
        return row.wait() if ticket.row is row else asyncio.sleep(0)

    def leave(self, ticket: FillerTicket, /) -> None:
        if ticket.row is not None:
            self._seated -= 1
            if not self._seated:
                self._wake_task()
        # Done. The line may keep the ticket for a while, but must not keep the task.
        ticket.outcome, ticket.row, ticket.task = _LEFT, None, None

    def notify_later(self, ticket: FillerTicket) -> None:
        """Have the owner notified, in order."""
        self._to_notify.append(ticket)
        self._wake_task()

    def retire(self) -> None:
        self._decider = None  # if the loop goes on, the task only notifies the waiters that failed

    async def aclose(self) -> None:
        task = self._task
        if task is not None and task is not asyncio.current_task():
            self._wake_task()
            await asyncio.wait([task])

    def _start(self) -> None:
        # In an empty context: the task outlives the caller that starts it.
        self._task = self._native.create_task(self._run(), name=self._label, context=Context())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self._decider is not None:
            self._decider.fail(error)
        if self._task is task:
            self._task = self._row = None
            # Cancelled while waiters depend on it, as asyncio.run() cancels all tasks when it ends: another task goes on.
            if self._seated and not self._loop.closed:
                self._start()
            elif self._timer_fired and not self._loop.closed and self._decider is not None:
                self._timer_fired = False  # while the task ended, with no owner left to notify
                self._decider.look()

    def ring(self, decider: Decider) -> None:
        if self._task is None:
            decider.look()  # only limits below wait here, which need no notice
        else:
            self._timer_fired = True
            self._wake_task()

    def _wake_task(self) -> None:
        if self._sleep is not None and not self._sleep.done() and not self._native.is_closed():
            self._sleep.set_result(None)

    async def _run(self) -> None:
        while self._seated:
            if self._timer_fired and self._decider is not None:
                self._timer_fired = False
                self._decider.look()
            if self._to_notify:
                self._notify()
            if self._seated:
                self._sleep = self._native.create_future()
                try:
                    await self._sleep
                finally:
                    self._sleep = None
            else:
                await asyncio.sleep(0)  # waiters that were just granted may be back at once, and a new task would cost more

    def _notify(self) -> None:
        """Wake the owners of decided tickets, in the order of the decisions."""
        tickets, self._to_notify = self._to_notify, []
        self._seated -= len(tickets)
        row, count = None, 0
        for ticket in tickets:
            if ticket.row is not row:
                if row is not None:
                    row.wake(count)
                row, count = ticket.row, 0
            ticket.row = None
            count += 1
        if row is not None:
            row.wake(count)


_OPEN = _OpenLock()
_LEFT = asyncio.CancelledError()  # an outcome that is never read
