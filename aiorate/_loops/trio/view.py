"""The view of a trio run. Knows nothing of rates or of requests."""

from __future__ import annotations

import os
from math import inf, nextafter
from time import monotonic_ns
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import trio

from aiorate._loops.callback import call_back
from aiorate._loops.clock import TimedClock
from aiorate._loops.one_loop import OneLoop
from aiorate._loops.trio.here import running_trio
from aiorate._loops.trio.port import TrioPort
from aiorate._loops.trio.timer import TrioTimer, keep_by_task
from aiorate._loops.turnstile import NEVER, Turnstile
from aiorate._rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiorate._loops.clock import Clock, Handle, ReadClock
    from aiorate._loops.driver import Driver
    from aiorate._tree.node import Node

__all__ = ["TrioLoop"]

_GRAIN_NS = 1_000_000
_LONGEST_TIMER_NS = 86_400 * NS_PER_SECOND  # a deadline is a float; the clock is read again then


class TrioLoop(OneLoop):
    """One ``trio.run()``. Trio has no timers outside a task: one is fired by a waiter that watches it, or by a system task."""

    __slots__ = (
        "__weakref__",
        "_clock",
        "_own",
        "_process",
        "_timers",
        "_token",
        "grain",
        "manual",
        "monotonic",
        "read",
        "steady",
    )

    def __init__(self, native: trio.lowlevel.TrioToken, clock: Clock | None, precise: bool) -> None:  # trio's timers have no finer grain
        self._token = native
        self._process = os.getpid()
        # Each run has its own clock, with its own origin. It can be read after the run, unlike `trio.current_time`.
        self._clock = trio.lowlevel.current_clock()
        self._own = clock is None
        self._timers = None if clock is None or not isinstance(clock, TimedClock) else clock
        self.manual: bool = self._timers is not None
        time = _reader(self._clock)
        self.read: ReadClock = time if clock is None else clock.now
        turnstile = Turnstile.of(native, TrioPort, monotonic_ns if self.read is monotonic_ns else time)
        super().__init__(turnstile, NEVER if self.manual else 0)
        self.monotonic: bool = False
        self.steady: bool = self._own and type(self._clock).__module__.startswith("trio._core")  # not a MockClock
        self.grain: int = _GRAIN_NS

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
        if running_trio() is self._token:
            return False
        try:
            self._token.run_sync_soon(_nothing, idempotent=True)  # the only question that a run answers from outside
        except (trio.RunFinishedError, OSError):  # it ended; or it broke off, and its wake-up socket is closed
            return True
        return False

    @property
    def forked(self) -> bool:
        return self._process != os.getpid()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._token.run_sync_soon(call_back, callback, "under trio")

    def call_at(self, reading: int, callback: Callable[[], None]) -> Handle:
        if self._timers is not None:
            return self._timers.call_at(reading, callback)
        timer = self.make_timer(reading, callback)
        keep_by_task(timer)
        return timer

    def make_timer(self, reading: int, callback: Callable[[], None]) -> TrioTimer:
        """Make a timer for that reading of the clock, which the caller must have fired."""
        now = self.read()
        reading = min(reading, now + _LONGEST_TIMER_NS)
        if self._own:
            deadline = reading / NS_PER_SECOND
            if _whole(deadline) < reading:  # rounded down: once a clock reads weeks, a float of seconds is coarser than a nanosecond
                deadline = nextafter(deadline, inf)
        else:
            deadline = self._clock.current_time() + (reading - now) / NS_PER_SECOND
        return TrioTimer(self._token, deadline, callback)

    def yield_once(self) -> Awaitable[object]:
        return anyio.lowlevel.checkpoint()

    def starved(self) -> bool:
        now = self.read()
        if now < self.check_after or running_trio(hosted=True) is not self._token:
            return False
        return self.watch(now)

    def make_driver(self, node: Node) -> Driver:
        from aiorate._loops.trio.driver import TrioDriver

        return TrioDriver(self)


def _reader(clock: trio.abc.Clock) -> ReadClock:
    def read() -> int:
        return _whole(clock.current_time())

    return read


def _whole(seconds: float) -> int:
    """Nanoseconds, to the nearest."""
    return round(seconds * NS_PER_SECOND)


def _nothing() -> None:
    pass
