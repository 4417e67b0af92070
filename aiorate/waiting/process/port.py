"""The port of the threads without an event loop. Knows nothing of rates or of the line."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["ThreadPort"]


class ThreadPort:
    """All threads without an event loop. A signal is a lock that its waiter takes twice; any thread may send it directly."""

    __slots__ = ()

    closed: bool = False

    def post(self, callback: Callable[[], None]) -> None:
        callback()

    def signal(self) -> threading.Lock:
        signal = threading.Lock()
        signal.acquire()
        return signal

    def wait(self, signal: threading.Lock) -> Awaitable[object]:
        raise RuntimeError("a thread without an event loop cannot await. It takes the lock that signal() returned.")

    def send(self, signal: threading.Lock) -> None:
        with suppress(RuntimeError):  # it was sent before
            signal.release()

    def owner(self) -> None:
        return None
