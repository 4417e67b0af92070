"""How waiters in a trio run are woken from other threads. Knows nothing of rates or of the line."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio
import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["TrioPort"]


class TrioPort:
    """One ``trio.run()``. A bell is an event."""

    __slots__ = ("_token", "closed")

    def __init__(self, native: object) -> None:
        self._token = cast("trio.lowlevel.TrioToken", native)
        self.closed: bool = False  # a run does not say that it has ended, until something is posted to it

    def post(self, callback: Callable[[], None]) -> None:
        try:
            self._token.run_sync_soon(callback)
        except (trio.RunFinishedError, OSError):  # it ended; it broke off, and its wake-up socket is closed
            self.closed = True
            raise

    def bell(self) -> anyio.Event:
        return anyio.Event()

    def wait(self, bell: anyio.Event) -> Awaitable[object]:
        return bell.wait()

    def ring(self, bell: anyio.Event) -> None:
        bell.set()

    def owner(self) -> None:
        return None
