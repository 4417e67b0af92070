"""The port of a trio run. Knows nothing of rates or of the line."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio
import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["TrioPort"]


class TrioPort:
    """One ``trio.run()``. A signal is an event."""

    __slots__ = ("_token", "closed")

    def __init__(self, native: object) -> None:
        self._token = cast("trio.lowlevel.TrioToken", native)
        self.closed: bool = False  # a run shows that it has ended only when something is posted to it

    def post(self, callback: Callable[[], None]) -> None:
        try:
            self._token.run_sync_soon(callback)
        except (trio.RunFinishedError, OSError):  # it ended; or it broke off, and its wake-up socket is closed
            self.closed = True
            raise

    def signal(self) -> anyio.Event:
        return anyio.Event()

    def wait(self, signal: anyio.Event) -> Awaitable[object]:
        return signal.wait()

    def send(self, signal: anyio.Event) -> None:
        signal.set()

    def owner(self) -> None:
        return None
