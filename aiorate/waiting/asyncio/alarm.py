"""The Alarm: a future for each waiter, and one timer, set for the first in line. No task, no lock.

Every decision is one synchronous step, so there is nothing to lock. Knows nothing of rates or HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.waiting.timer import Timer

if TYPE_CHECKING:
    import asyncio

    from aiorate.waiting.asyncio.view import AsyncioLoop
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.line import Outcome

__all__ = ["Alarm"]


class Alarm:
    """The driver of all strategies except the token pool, on asyncio. A ticket is the future that its waiter awaits."""

    __slots__ = ("_loop", "_timer")

    def __init__(self, dispatcher: Dispatcher, loop: AsyncioLoop) -> None:
        self._timer = Timer(loop, dispatcher.serve)
        self._loop = loop.native

    def ticket(self, permits: int) -> asyncio.Future[Outcome]:
        return self._loop.create_future()

    def wait(self, ticket: asyncio.Future[Outcome]) -> asyncio.Future[Outcome]:
        return ticket

    def leave(self, ticket: asyncio.Future[Outcome]) -> None:
        pass

    def release(self, ticket: asyncio.Future[Outcome]) -> bool:
        return True

    def arm(self, reading: int | None) -> None:
        self._timer.set(reading)

    def retire(self) -> None:
        self._timer.set(None)

    async def aclose(self) -> None:
        self._timer.set(None)
