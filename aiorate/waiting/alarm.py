"""The Alarm: wakes those in line by futures and one timer, which stands for the first. No task, no lock.

Every decision is one synchronous step, so there is nothing to lock. Knows nothing of rates or HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.waiting.timeline import Timer

if TYPE_CHECKING:
    import asyncio

    from aiorate.waiting.driver import Decides
    from aiorate.waiting.line import Outcome
    from aiorate.waiting.loops import AsyncioLoop

__all__ = ["Alarm"]


class Alarm:
    """The driver of all strategies but the token pool, on asyncio. Its tickets are bare futures: not an object more than waiting takes."""

    __slots__ = ("_loop", "_timer")

    def __init__(self, owner: Decides, loop: AsyncioLoop) -> None:
        self._timer = Timer(loop, owner.serve)
        self._loop = loop.native

    def ticket(self) -> asyncio.Future[Outcome]:
        return self._loop.create_future()

    def wait(self, ticket: asyncio.Future[Outcome]) -> asyncio.Future[Outcome]:
        return ticket

    def leave(self, ticket: asyncio.Future[Outcome]) -> None:
        pass

    def arm(self, reading: int | None) -> None:
        self._timer.set(reading)

    def retire(self) -> None:
        self._timer.set(None)

    async def aclose(self) -> None:
        self._timer.set(None)
