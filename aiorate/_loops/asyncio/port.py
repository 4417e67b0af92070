"""The port of an asyncio event loop. Knows nothing of rates or of the line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

__all__ = ["AsyncioPort"]


class AsyncioPort:
    """An asyncio event loop, uvloop's included. A signal is a future."""

    __slots__ = ("_native",)

    def __init__(self, native: asyncio.AbstractEventLoop) -> None:
        self._native = native

    @property
    def closed(self) -> bool:
        return self._native.is_closed()

    def post(self, callback: Callable[[], None]) -> None:
        if asyncio._get_running_loop() is self._native:  # None outside a loop
            self._native.call_soon(callback)
        else:
            self._native.call_soon_threadsafe(callback)

    def signal(self) -> asyncio.Future[None]:
        return self._native.create_future()

    def wait(self, signal: asyncio.Future[None]) -> Awaitable[object]:
        return signal

    def send(self, signal: asyncio.Future[None]) -> None:
        if not signal.done():  # cancelled
            signal.set_result(None)

    def owner(self) -> asyncio.Task[Any] | None:
        task = asyncio.current_task(self._native)
        # A task that was cancelled before, and waits all the same (to clean up): a second cancellation of it cannot be seen.
        return None if task is None or task.cancelling() else task
