"""The Filler: an event-loop task that refills the token pool and wakes consumers through an ``asyncio.Condition``.

The task exists while requests wait. It sleeps until the first in line is due, has its limit look, which refills the pool by
the time that has passed, and notifies the waiters that were granted. The token pool has a Filler because its original has one; those
who wait for other strategies await plain futures of the loop. Knows nothing of rates.

Tickets decide and the condition only wakes: CPython 3.11 loses a notice whose receiver is cancelled (cpython#112202), which a ticket
makes harmless.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Any

from aiorate._loops.loop import OutcomeTicket, Waker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Literal

    from aiorate._loops.loop import Loop


class _Waiters(list["asyncio.Future[bool]"]):
    """In place of a condition's lock and queue: those that are to be woken, so that ``notify()`` wakes these and no others.

    Its queue would wake the one that waits longest, and removes a cancelled waiter by linear search, which took 24 s for 100 000. No step
    of the filler awaits, so there is nothing to lock: every task holds the lock at all times.
    """

    ticket: FillerTicket

    def append(self, waiter: asyncio.Future[bool], /) -> None:
        """The owner of the ticket begins to wait."""
        self.ticket.signal = waiter

    def remove(self, waiter: asyncio.Future[bool], /) -> None:
        """It goes on, or was cancelled."""

    def locked(self) -> bool:
        return True

    async def acquire(self) -> Literal[True]:
        return True

    def release(self) -> None:
        pass


class FillerTicket(OutcomeTicket):
    """A ticket whose owner waits until it is notified."""

    __slots__ = ("filler",)

    def __init__(self) -> None:
        super().__init__()
        self.filler: Filler | None = None  # while its owner is still to be notified

    def done(self) -> bool:
        if self.outcome is None:  # a cancelled one makes room before its task runs: looking once for thousands
            return self.signal is not None and self.signal.cancelled()
        return self.filler is None

    def set_result(self, outcome: Any, /) -> None:
        self.outcome = outcome
        if self.filler is not None:
            self.filler.notify_later(self)


class Filler(Waker):
    """Wakes those who wait for one token pool: a task that decides, notifies and sleeps."""

    __slots__ = ("_bell", "_condition", "_due", "_fail", "_label", "_look", "_loop", "_seated", "_task", "_to_notify", "_waiters")

    ticket = FillerTicket  # pyright: ignore[reportAssignmentType]  # called, it makes one

    def __init__(self, loop: Loop, look: Callable[[], object], fail: Callable[[BaseException], object], name: str | None) -> None:
        self._loop = loop
        self._look: Callable[..., object] = look  # for those who wait, as `_fail`
        self._fail: Callable[..., object] = fail
        self._label = f"aiorate-filler:{name}" if name else "aiorate-filler"
        self._waiters = _Waiters()
        self._condition = asyncio.Condition(self._waiters)  # type: ignore[arg-type]
        self._condition._waiters = self._waiters  # type: ignore[assignment]
        self._task: asyncio.Task[None] | None = None
        self._bell: asyncio.Future[None] | None = None  # for which the task sleeps
        self._due = False  # whether the timer has fired, and the task has yet to decide
        self._seated = 0  # tickets whose owners are still to be notified
        self._to_notify: list[FillerTicket] = []

    def wait(self, ticket: FillerTicket, /) -> Awaitable[object]:
        self._seated += 1
        ticket.filler = self
        if self._task is None:
            self._start()
        self._waiters.ticket = ticket
        return self._condition.wait()

    def leave(self, ticket: FillerTicket, /) -> None:
        if ticket.filler is not None:
            self._seated -= 1
            if not self._seated:
                self._wake_task()
        ticket.filler = ticket.signal = None  # the line may keep the ticket for a while

    def notify_later(self, ticket: FillerTicket) -> None:
        """Have the owner notified, in order."""
        self._to_notify.append(ticket)
        self._wake_task()

    def ring(self, look: Callable[[], object]) -> None:
        if self._task is None:
            look()  # only limits below wait here, which need no notice
        else:
            self._due = True
            self._wake_task()

    def retire(self) -> None:
        self._look = self._fail = lambda *_: None  # if the loop goes on, the task only notifies the waiters that failed

    async def aclose(self) -> None:
        task = self._task
        if task is not None and task is not asyncio.current_task():
            self._wake_task()
            await asyncio.wait([task])

    def _wake_task(self) -> None:
        if self._bell is not None and not self._bell.done() and not self._loop.closed:
            self._bell.set_result(None)

    def _start(self) -> None:
        # Never eager, so that it has not run before the first ticket waits. In an empty context: it outlives the caller that starts it.
        self._task = asyncio.Task(self._run(), loop=self._loop.native, name=self._label, context=Context())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        # Cancelled while waiters depend on it, as asyncio.run() cancels all tasks when it ends: another task goes on.
        if (self._seated or self._due) and self._task is None and not self._loop.closed:
            self._start()

    async def _run(self) -> None:
        while self._seated or self._due:
            bell: asyncio.Future[None] = self._loop.native.create_future()
            self._bell = bell
            if self._due:
                self._due = False
                self._look()
            # Wake the owners of decided tickets, in the order of the decisions.
            tickets, self._to_notify = self._to_notify, []
            self._seated -= len(tickets)
            self._waiters += [ticket.signal for ticket in tickets if ticket.signal is not None]
            for ticket in tickets:
                ticket.filler = ticket.signal = None
            self._condition.notify_all()
            self._waiters.clear()
            # Waiters that were just granted may be back at once, and a new task would cost more.
            await (bell if self._seated else asyncio.sleep(0))
