"""How waiters in an asyncio event loop are woken from any thread. Knows nothing of rates or of the line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

__all__ = ["AsyncioPort"]


class AsyncioPort:
    """An asyncio event loop, uvloop's included. A bell is a future."""

    __slots__ = ("_native",)

    def __init__(self, native: asyncio.AbstractEventLoop) -> None:
        self._native = native

    @property
    def closed(self) -> bool:
        return self._native.is_closed()

    def post(self, callback: Callable[[], None]) -> None:
        if asyncio._get_running_loop() is self._native:  # noqa: SLF001  # as in loops
            self._native.call_soon(callback)
        else:
            self._native.call_soon_threadsafe(callback)

    def bell(self) -> asyncio.Future[None]:
        return self._native.create_future()

    def wait(self, bell: asyncio.Future[None]) -> Awaitable[object]:
        return bell

    def ring(self, bell: asyncio.Future[None]) -> None:
        if not bell.done():  # cancelled
            bell.set_result(None)

    def owner(self) -> asyncio.Task[Any] | None:
        task = asyncio.current_task(self._native)
        # A task that was cancelled before, and waits all the same (to clean up), cannot be seen to be cancelled once more.
        return None if task is None or task.cancelling() else task
