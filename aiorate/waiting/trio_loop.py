"""A trio run, as a limiter sees it. Knows nothing of rates or of who waits.

Only this file and `trio_driver` import trio and anyio, and only where a limiter is used under trio.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import anyio
import anyio.lowlevel
import trio

from aiorate.rate import NS_PER_SECOND
from aiorate.waiting.clock import TimedClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiorate.waiting.clock import Clock, Handle, Reads

__all__ = ["TrioLoop", "running_trio"]

_GRAIN_NS = 1_000_000


def running_trio() -> object | None:
    """What stands for the trio run in this thread; None: there is none."""
    try:
        return trio.lowlevel.current_trio_token()
    except RuntimeError:
        return None


class TrioLoop:
    """One ``trio.run()``. Trio has no timers outside a task: whoever waits in `watch` keeps the one that is set."""

    __slots__ = ("_clock", "_process", "_timer", "_token", "by_hand", "grain", "monotonic", "read")

    def __init__(self, native: object, clock: Clock | None) -> None:
        self._token = cast("trio.lowlevel.TrioToken", native)
        self._process = os.getpid()
        self._clock = clock if isinstance(clock, TimedClock) else None
        self._timer: _Timer | None = None
        self.by_hand = self._clock is not None
        # A run has a clock of its own, which under trio.testing.MockClock stands still.
        self.read: Reads = _read if clock is None else clock.now
        self.monotonic = False
        self.grain = _GRAIN_NS

    @property
    def native(self) -> object:
        return self._token

    @property
    def running(self) -> bool:
        return not self.closed

    @property
    def closed(self) -> bool:
        if self.forked:
            return True
        try:
            self._token.run_sync_soon(_nothing, idempotent=True)  # the only question a run answers from outside
        except trio.RunFinishedError:
            return True
        return False

    @property
    def forked(self) -> bool:
        return self._process != os.getpid()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._token.run_sync_soon(callback)

    def call_at(self, reading: int, callback: Callable[[], None]) -> Handle:
        if self._clock is not None:
            return self._clock.call_at(reading, callback)
        self._timer = _Timer(reading, callback)
        return self._timer

    def turn(self) -> Awaitable[object]:
        return anyio.lowlevel.checkpoint()

    async def watch(self, event: anyio.Event) -> None:
        """Wait for the event, or until the timer has called back."""
        timer = self._timer
        if timer is None or timer.callback is None:
            await event.wait()
            return
        with anyio.CancelScope(deadline=timer.reading / NS_PER_SECOND):
            await event.wait()
            return
        if timer.callback is not None:
            timer.callback()


class _Timer:
    __slots__ = ("callback", "reading")

    def __init__(self, reading: int, callback: Callable[[], None]) -> None:
        self.reading = reading
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


def _read() -> int:
    return round(trio.current_time() * NS_PER_SECOND)


def _nothing() -> None:
    pass
