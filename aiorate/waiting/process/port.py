"""How threads without an event loop are woken. Knows nothing of rates or of the line."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["ThreadPort"]


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
