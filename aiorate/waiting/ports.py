"""How waiters in other threads are woken: asyncio's tasks, and threads without an event loop. Knows nothing of rates or of the line."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

__all__ = ["AsyncioPort", "Port", "ThreadPort"]


class Port(Protocol):
    """The way into one event loop from any thread, or into the threads that have none."""

    @property
    def closed(self) -> bool:
        """Whether it is known that the loop never runs again."""
        ...

    def post(self, callback: Callable[[], None]) -> None:
        """Call back there soon. RuntimeError or OSError where that never comes."""
        ...

    def bell(self) -> Any:
        """What one waiter waits for. Made where it waits."""
        ...

    def wait(self, bell: Any) -> Awaitable[object]:
        """What the waiter awaits, until the bell is rung."""
        ...

    def ring(self, bell: Any) -> None:
        """Wake the waiter; only where it waits."""
        ...

    def owner(self) -> asyncio.Task[Any] | None:
        """The task that waits, if it can be asked from any thread whether it is being cancelled."""
        ...


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


class ThreadPort:
    """All threads without an event loop. A bell is a lock that its waiter takes twice: it can be rung from any thread at once."""

    __slots__ = ()

    closed: bool = False

    def post(self, callback: Callable[[], None]) -> None:
        callback()

    def bell(self) -> threading.Lock:
        bell = threading.Lock()
        bell.acquire()
        return bell

    def wait(self, bell: threading.Lock) -> Awaitable[object]:
        raise RuntimeError("a thread without an event loop cannot await; it takes the bell.")

    def ring(self, bell: threading.Lock) -> None:
        with suppress(RuntimeError):  # it was rung before
            bell.release()

    def owner(self) -> None:
        return None
