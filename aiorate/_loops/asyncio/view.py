"""The view of an asyncio event loop. Knows nothing of rates or of requests."""

from __future__ import annotations

import asyncio
import os
from asyncio import _get_running_loop as running_asyncio
from asyncio import current_task
from time import monotonic_ns
from typing import TYPE_CHECKING

from aiorate._loops.asyncio.alarm import Alarm
from aiorate._loops.asyncio.port import AsyncioPort
from aiorate._loops.clock import TimedClock
from aiorate._loops.one_loop import OneLoop
from aiorate._loops.turnstile import NEVER, Turnstile
from aiorate._rate import NS_PER_SECOND, ceil_div
from aiorate._schedulers.token_pool import TokenPool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiorate._loops.asyncio.timerfd import KernelTimers
    from aiorate._loops.clock import Clock, Handle, ReadClock
    from aiorate._loops.driver import Driver
    from aiorate._tree.node import Node

__all__ = ["GRAIN_NS", "AsyncioLoop"]

GRAIN_NS = 1_000_000  # between wake-ups: loops' timers may fire early, and must not make a limiter spin (uvloop#233)
_LONGEST_TIMER_NS = 86_400 * NS_PER_SECOND  # not all loops can wait for longer; the clock is read again then


class AsyncioLoop(OneLoop):
    """An asyncio event loop, uvloop's included."""

    __slots__ = (
        "__weakref__",
        "_alarm",
        "_clock",
        "_kernel",
        "_process",
        "_rounds_up",
        "grain",
        "manual",
        "monotonic",
        "native",
        "read",
        "steady",
    )

    def __init__(self, native: asyncio.AbstractEventLoop, clock: Clock | None, precise: bool) -> None:
        self.native: asyncio.AbstractEventLoop = native
        self._process = os.getpid()
        self._alarm: Alarm | None = None
        self._clock = None if clock is None or not isinstance(clock, TimedClock) else clock
        self.manual: bool = self._clock is not None
        # uvloop rounds timers to the nearest ms. Its time() is the monotonic clock too, but moves in steps of 1 ms (uvloop#359).
        self._rounds_up = uvloop = type(native).__module__.partition(".")[0] == "uvloop"
        own = type(native).time is asyncio.BaseEventLoop.time
        time: ReadClock = monotonic_ns if own or uvloop else lambda: round(native.time() * NS_PER_SECOND)
        self.read: ReadClock = time if clock is None else clock.now
        self.monotonic: bool = self.read is monotonic_ns
        self.steady: bool = self.monotonic
        super().__init__(Turnstile.of(native, AsyncioPort, monotonic_ns if self.monotonic else time), NEVER if self.manual else 0)
        self._kernel: KernelTimers | None = None
        if precise and self.monotonic:
            from aiorate._loops.asyncio.timerfd import KernelTimers

            self._kernel = KernelTimers.of(native)
        self.grain = GRAIN_NS if self._kernel is None else 0

    @property
    def running(self) -> bool:
        return self.native.is_running() and not self.forked

    @property
    def closed(self) -> bool:
        return self.native.is_closed() or self.forked

    @property
    def forked(self) -> bool:
        return self._process != os.getpid()

    def call_soon(self, callback: Callable[[], None]) -> object:
        return self.native.call_soon(callback)

    def call_at(self, reading: int, callback: Callable[[], None]) -> Handle:
        if self._clock is not None:
            # A clock that is moved by hand may outlive the loop, and a closed loop wakes no task.
            return self._clock.call_at(reading, lambda: None if self.native.is_closed() else callback())
        if self._kernel is not None:
            try:
                return self._kernel.call_at(reading, callback)
            except OSError:
                self._kernel = None  # the system has no descriptor left: the loop's timers will do
                self.grain = GRAIN_NS
        wait = min(max(reading - self.read(), 0), _LONGEST_TIMER_NS)
        if self._rounds_up:
            # As asyncio does: the nearest ms may be too early, or too soon after the last wake-up.
            wait = ceil_div(wait, 1_000_000) * 1_000_000
        return self.native.call_later(wait / NS_PER_SECOND, callback)

    def yield_once(self) -> Awaitable[object]:
        return asyncio.sleep(0)

    def starved(self) -> bool:
        now = self.read()
        # Where no task of this loop runs, the caller belongs to a guest of the loop, such as a trio run.
        if now < self.check_after or running_asyncio() is not self.native or current_task() is None:
            return False
        return self.watch(now)

    def make_driver(self, node: Node) -> Driver:
        """The Filler for a TokenPool, the Alarm for all other strategies."""
        if isinstance(node.scheduler, TokenPool):
            from aiorate._loops.asyncio.filler import Filler

            return Filler(node, self, node.notices.name)
        if self._alarm is None:
            self._alarm = Alarm(self.native)
        return self._alarm
