"""Trio's driver, for every strategy: an event for each waiter, and the first in line keeps watch.

It sleeps until its instant, has the dispatcher decide, and hands the watch on. No task but those of the waiters.
Knows nothing of rates or HTTP.
"""

from __future__ import annotations

from asyncio import InvalidStateError
from typing import TYPE_CHECKING

import anyio

from aiorate.waiting.timeline import Timer

if TYPE_CHECKING:
    from aiorate.waiting.driver import Decides
    from aiorate.waiting.line import Outcome
    from aiorate.waiting.trio_loop import TrioLoop

__all__ = ["TrioDriver"]


class TrioTicket:
    """What a waiter holds: an outcome, and the event it awaits."""

    __slots__ = ("_outcome", "event")

    def __init__(self) -> None:
        self._outcome: Outcome | None = None
        self.event: anyio.Event | None = None

    def done(self) -> bool:
        return self._outcome is not None

    def cancelled(self) -> bool:
        return False  # trio runs a cancelled task before any other can ask

    def result(self) -> Outcome:
        if self._outcome is None:
            raise InvalidStateError
        return self._outcome

    def set_result(self, outcome: Outcome, /) -> None:
        self._outcome = outcome
        self.wake()

    def wake(self) -> None:
        """Have its owner look again."""
        if self.event is not None:
            self.event.set()


class TrioDriver:
    """The watch is with the first in line: whenever it is armed, it makes sure of that."""

    __slots__ = ("_loop", "_owner", "_timer", "_watch")

    ticket = TrioTicket

    def __init__(self, owner: Decides, loop: TrioLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._timer = Timer(loop, owner.serve)
        self._watch: TrioTicket | None = None

    async def wait(self, ticket: TrioTicket) -> None:
        event = ticket.event = anyio.Event()
        if ticket is self._watch:
            await self._loop.watch(event)
        else:
            await event.wait()

    def leave(self, ticket: TrioTicket) -> None:
        if ticket is self._watch:
            self._watch = None

    def arm(self, reading: int | None) -> None:
        self._timer.set(reading)
        watch = self._watch
        if watch is None or watch.done():
            first = self._owner.line.first()
            watch = self._watch = None if first is None else first[0]  # type: ignore[assignment]  # which this driver made
        if watch is not None:
            watch.wake()

    def retire(self) -> None:
        self._timer.set(None)
        self._watch = None

    async def aclose(self) -> None:
        self._timer.set(None)
