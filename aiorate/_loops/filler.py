"""The Filler: an event-loop task that refills the token pool and wakes consumers through an ``asyncio.Condition``.

The task exists while requests wait. It sleeps until the first in line is due, and has its limit look, which refills the pool by the time
that has passed, grants, and notifies those who were granted. Those who wait for other strategies await plain futures of the loop.

Tickets decide and the condition only wakes: CPython 3.11 loses a notice whose receiver is cancelled (cpython#112202).
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING

from aiorate._loops.loop import OutcomeTicket, Waker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Literal

    from aiorate._loops.loop import Loop


class _Waiters(list["asyncio.Future[bool]"]):
    """In place of a condition's lock and queue: how many wait, and who is to be woken, so that ``notify()`` wakes this one.

    Its own queue removes a cancelled waiter by linear search, which took 24 s for 100 000. No step of the filler awaits, so nothing needs
    a lock: every task holds it at all times.
    """

    __slots__ = ("_all_gone", "ticket", "waiting")
    ticket: OutcomeTicket  # whose owner begins to wait

    def __init__(self, all_gone: Callable[[], object]) -> None:
        super().__init__()
        self._all_gone = all_gone
        self.waiting = 0

    def append(self, waiter: asyncio.Future[bool], /) -> None:
        self.ticket.signal = waiter
        self.waiting += 1

    def remove(self, waiter: asyncio.Future[bool], /) -> None:
        self.waiting -= 1
        if not self.waiting:
            self._all_gone()

    def locked(self) -> bool:
        return True

    async def acquire(self) -> Literal[True]:
        return True

    def release(self) -> None:
        pass


class FillerTicket(OutcomeTicket):
    """A ticket that counts as done while its owner is being cancelled: thousands that leave have the limit look once."""

    __slots__ = ()

    def done(self) -> bool:
        return self.outcome is not None or (self.signal is not None and self.signal.cancelled())


class Filler(Waker):
    """Wakes those who wait for one token pool: a task that sleeps, has the limit look, and ends when nobody waits."""

    __slots__ = ("_bell", "_condition", "_fail", "_label", "_look", "_loop", "_task", "_waiters")

    def __init__(self, loop: Loop, look: Callable[[], object], fail: Callable[[BaseException], object], name: str | None) -> None:
        self._loop = loop
        self._look = look  # for those who wait, as `_fail`
        self._fail = fail
        self._label = f"aiorate-filler:{name}" if name else "aiorate-filler"
        self._waiters = _Waiters(self._wake_task)
        self._condition = asyncio.Condition(self._waiters)  # type: ignore[arg-type]
        self._condition._waiters = self._waiters  # type: ignore[assignment]
        self._bell = asyncio.Event()  # for which the task sleeps
        self._task: asyncio.Task[None] | None = None

    def ticket(self) -> FillerTicket:
        return FillerTicket(self)

    def wait(self, ticket: OutcomeTicket, /) -> Awaitable[object]:
        if self._task is None:
            self._start()
        self._waiters.ticket = ticket
        return self._condition.wait()

    def wake(self, signal: asyncio.Future[bool] | None, /) -> None:
        if signal is not None:  # it waits already
            self._waiters[:] = [signal]
            self._condition.notify()
            self._waiters.clear()

    def ring(self) -> bool:
        if self._task is not None:  # else only limits below wait here, which need no notice
            self._wake_task()
        return self._task is not None

    async def aclose(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    def _wake_task(self) -> None:
        if not self._loop.closed:
            self._bell.set()

    def _start(self) -> None:
        # Never eager, so that it has not run before the first ticket waits. In an empty context: it outlives the caller that starts it.
        self._task = asyncio.Task(self._run(), loop=self._loop.native, name=self._label, context=Context())
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            self._look()
            if not self._waiters.waiting:
                return

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        if (self._waiters.waiting or self._bell.is_set()) and not self._loop.closed:  # cancelled, as asyncio.run() does as it ends
            self._start()
