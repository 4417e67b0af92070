"""The Alarm: a future for each waiter. No task, no lock: every decision is one synchronous step, so there is nothing to lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from aiorate._tree.limit import Outcome
    from aiorate._tree.node import Node

__all__ = ["Alarm"]


class Alarm:
    """The driver of all strategies except the token pool, on asyncio. A ticket is the future that its waiter awaits."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def ticket(self, permits: int) -> asyncio.Future[Outcome]:
        return self._loop.create_future()

    def wait(self, ticket: asyncio.Future[Outcome]) -> asyncio.Future[Outcome]:
        return ticket

    def leave(self, ticket: asyncio.Future[Outcome]) -> None:
        pass

    def ring(self, node: Node) -> None:
        node.look()

    def retire(self) -> None:
        pass

    async def aclose(self) -> None:
        pass
