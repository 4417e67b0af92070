"""The Filler: an event-loop task that refills the token pool and wakes consumers through ``asyncio.Condition``.

It exists while somebody waits. It sleeps until the first in line can be served, has the pool refilled with the time that has
passed, and wakes those who were granted. Knows nothing of rates or HTTP.

One Condition per row of at most 64: the standard one removes a cancelled waiter by linear search, and cancelling 100 000 waiters
of a single one took 24 s. Tickets decide and conditions only wake: CPython 3.11 loses a notice whose receiver is
cancelled (cpython#112202), which a ticket makes harmless.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING

from aiorate.alarm import woke_at
from aiorate.line import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Literal

    from aiorate.clock import Handle, Timeline
    from aiorate.line import Outcome

__all__ = ["Filler"]

_SEATS = 64
_GONE = asyncio.CancelledError()  # the outcome of who left undecided


class _OpenLock(asyncio.Lock):
    """The lock of all conditions, held by everybody: no step here waits in between, so there is nothing to lock."""

    def locked(self) -> bool:
        return True

    async def acquire(self) -> Literal[True]:
        return True

    def release(self) -> None:
        pass


class _Row:
    """Up to 64 waiters of one condition, in the order of their tickets.

    A condition wakes whoever has waited longest. That is who was granted, since grants are in order, but for notices that go to
    the wrong one: from CPython 3.13 on each cancelled waiter passes one on, and before that a notice skips who is about to be
    cancelled. Whoever is woken in vain would stand last in the row, so it moves on to the spare row, and both stay in order.
    """

    __slots__ = ("condition", "filler", "recalled", "seats", "spare")

    def __init__(self, filler: Filler) -> None:
        self.condition = asyncio.Condition(_OPEN)
        self.filler = filler
        self.seats = 0
        self.spare: _Row | None = None
        self.recalled = False  # whether somebody was decided out of turn: all are woken then, and the rest wait on


class FillerTicket:
    """A ticket with a seat in a row."""

    __slots__ = ("outcome", "seat")

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.seat: _Row | None = None

    def done(self) -> bool:
        return self.outcome is not None

    def cancelled(self) -> bool:
        return self.outcome is _GONE

    def result(self) -> Outcome:
        assert self.outcome is not None
        return self.outcome

    def set_result(self, outcome: Outcome, /) -> None:
        self.outcome = outcome
        row = self.seat
        if row is not None:
            if isinstance(outcome, BaseException):
                row.recalled = True
            row.filler.wake(row)


class Filler:
    """A task that decides, sleeps and notifies. Whatever changes in between only pokes it."""

    __slots__ = (
        "_decide",
        "_due",
        "_early",
        "_fail",
        "_line",
        "_name",
        "_poke",
        "_rang",
        "_row",
        "_rung",
        "_task",
        "_woke",
        "_woken",
        "timeline",
    )

    ticket = FillerTicket

    def __init__(
        self, decide: Callable[[], None], fail: Callable[[BaseException], None], timeline: Timeline, line: Line, name: str | None
    ) -> None:
        self._decide = decide
        self._fail = fail
        self.timeline = timeline
        self._line = line
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._poke: asyncio.Future[None] | None = None
        self._row: _Row | None = None
        self._woken: list[tuple[_Row, int]] = []  # whom to notify, in the order of their grants
        self._due: int | None = None
        self._rang = False  # whether to decide: nothing but a timer that rings makes anything due
        self._rung: int | None = None
        self._early = 0  # how often a timer has rung for the same instant
        self._woke: int | None = None

    @property
    def _label(self) -> str:
        return f"aiorate-filler:{self._name}" if self._name else "aiorate-filler"

    def wait(self, ticket: FillerTicket) -> Coroutine[None, None, object]:
        """What to await, again and again, until it is decided."""
        row = ticket.seat
        if row is None:
            row = self._row
            if row is None or row.seats == _SEATS:
                row = self._row = _Row(self)
            row.seats += 1
            if self._task is None or self._task.done():
                self._start()
        elif not row.recalled:  # woken in vain
            row.spare = row = row.spare or _Row(self)
        ticket.seat = row
        # A task that is run eagerly may have decided it already.
        return row.condition.wait() if ticket.outcome is None else asyncio.sleep(0)

    def leave(self, ticket: FillerTicket) -> None:
        """Its owner goes undecided."""
        ticket.outcome = _GONE
        if not self._line:
            self._stir()

    def wake(self, row: _Row) -> None:
        """One more of the row is decided: have it notified, in its turn."""
        woken = self._woken
        if woken and woken[-1][0] is row:
            woken[-1] = row, woken[-1][1] + 1
        else:
            woken.append((row, 1))
        self._stir()

    def arm(self, due: int | None) -> None:
        """Decide again when the clock reads so much; None: nobody waits, or nobody can say until when."""
        if due != self._due:
            self._due = due
            self._stir()

    def retire(self) -> None:
        """Its loop is not the limiter's any more: all that is left, should it ever go on, is to notify who was decided."""
        self._decide = self._fail = _nothing
        self._due, self._line = None, Line()

    async def aclose(self) -> None:
        """Everybody was woken; return when they are notified and the task is gone."""
        task = self._task
        if task is not None and task is not asyncio.current_task():
            self._stir()
            await asyncio.wait([task])

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        # A context of its own: it outlives the caller who happened to be the first to wait.
        self._task = loop.create_task(self._run(), name=self._label, context=Context())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # Cancelled before its first step, a task runs none of its code; whoever waits for it is seen to here.
        if self._task is task and (self._line or self._woken):
            self._fail(self._cancelled())
            self._start()

    def _cancelled(self) -> RuntimeError:
        return RuntimeError(f"the task {self._label!r} was cancelled while others waited for it")

    def _stir(self) -> None:
        if self._poke is not None and not self._poke.done() and not self._poke.get_loop().is_closed():
            self._poke.set_result(None)

    async def _run(self) -> None:
        try:
            while self._line or self._woken:
                if self._rang:
                    self._rang = False
                    self._decide()
                self._notify()
                # Who was just granted may be back at once: a task that is there costs less than a new one.
                await (self._sleep() if self._line else asyncio.sleep(0))
        except GeneratorExit:
            raise  # the loop was closed, and all who wait are gone with it
        except BaseException as error:
            # Cancelled from outside, or something is broken: nobody is left to hang.
            self._fail(self._cancelled() if isinstance(error, asyncio.CancelledError) else error)
            self._notify()
            if not isinstance(error, Exception):
                raise
        finally:
            self._task = self._row = None

    def _notify(self) -> None:
        woken, self._woken = self._woken, []
        for row, count in woken:
            if row.recalled:
                row.condition.notify_all()
            else:
                row.condition.notify(count)

    async def _sleep(self) -> None:
        self._poke = asyncio.get_running_loop().create_future()
        timer: Handle | None = None
        if self._due is not None:
            due = self._due
            if self._woke is not None:
                # Rung too early twice, the third timer may be as early, and is given more time.
                gaps = self._early if due == self._rung else 1
                due = max(due, self._woke + gaps * self.timeline.least_gap)
            timer = self.timeline.call_at(asyncio.get_running_loop(), due, self._rise)
        try:
            await self._poke
        finally:
            self._poke = None
            if timer is not None:
                timer.cancel()

    def _rise(self) -> None:
        self._woke = woke_at(self.timeline)
        self._early = self._early + 1 if self._rung == self._due else 1
        self._rung = self._due
        self._rang = True
        self._stir()


def _nothing(*_: object) -> None:
    """What a driver that was replaced decides."""


_OPEN = _OpenLock()
