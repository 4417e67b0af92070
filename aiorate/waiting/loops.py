"""Which event loop runs here, and asyncio's as a limiter sees it. Knows nothing of rates or of who waits."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from time import monotonic_ns
from typing import TYPE_CHECKING

from aiorate.rate import NS_PER_SECOND, ceil_div
from aiorate.waiting.clock import TimedClock
from aiorate.waiting.ports import AsyncioPort
from aiorate.waiting.turnstile import Turnstile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from aiorate.waiting.clock import Clock, EventLoop, Handle, ReadClock
    from aiorate.waiting.ports import Port
    from aiorate.waiting.section import Section
    from aiorate.waiting.timerfd import KernelTimers

__all__ = ["AsyncioLoop", "event_loop", "running_loop", "running_task", "turnstile_here"]

GRAIN_NS = 1_000_000  # wake-ups are kept so far apart: a timer that fires early, as loops' do, must not become a spin (uvloop#233)
_LONGEST_TIMER_NS = 86_400 * NS_PER_SECOND  # loops cannot all wait for longer; the clock is asked again then


def running_loop() -> object | None:
    """The event loop that runs in this thread; None: none does."""
    loop = asyncio._get_running_loop()  # noqa: SLF001  # None outside a loop, where get_running_loop() would raise
    if "trio" in sys.modules:
        global _running_trio
        if _running_trio is None:  # an import statement would cost each call 1 us
            from aiorate.waiting.trio_loop import running_trio

            _running_trio = running_trio
        # Both run where trio is the guest of asyncio; then the task at hand decides.
        return _running_trio(loop is not None) or loop
    return loop


_running_trio: Callable[[bool], object | None] | None = None


def running_task() -> object | None:
    """The task that runs in this thread; None: none does."""
    native = running_loop()
    if native is None or isinstance(native, asyncio.AbstractEventLoop):
        return None if native is None else asyncio.current_task()
    from aiorate.waiting.trio_loop import running_trio_task

    return running_trio_task()


def event_loop(native: object, clock: Clock | None, precise: bool) -> EventLoop:
    """The running loop, as a limiter with that clock sees it."""
    if isinstance(native, asyncio.AbstractEventLoop):
        return AsyncioLoop(native, clock, precise)
    from aiorate.waiting.trio_loop import TrioLoop

    return TrioLoop(native, clock)


class _Here(threading.local):
    native: object | None = None
    turnstile: Turnstile | None = None


_here = _Here()


def turnstile_here() -> Turnstile | None:
    """That of the loop that runs in this thread, by real time also where the loop's is virtual; None: no loop runs here."""
    native = running_loop()
    if _here.native is not native:
        _here.native, _here.turnstile = native, None if native is None else Turnstile.of(native, _port_of(native), monotonic_ns)
    return _here.turnstile


def _port_of(native: object) -> Callable[[Any], Port]:
    if isinstance(native, asyncio.AbstractEventLoop):
        return AsyncioPort
    from aiorate.waiting.trio_port import TrioPort

    return TrioPort


class AsyncioLoop:
    """An asyncio event loop, uvloop's included."""

    __slots__ = ("_clock", "_kernel", "_process", "_rounds_up", "grain", "manual", "monotonic", "native", "read", "turnstile")

    section: Section | None = None

    def __init__(self, native: asyncio.AbstractEventLoop, clock: Clock | None, precise: bool) -> None:
        self.native: asyncio.AbstractEventLoop = native
        self._process = os.getpid()
        self._clock = None if clock is None or not isinstance(clock, TimedClock) else clock
        self.manual: bool = self._clock is not None
        # uvloop rounds timers to the nearest ms. Its time() is the monotonic clock too, but moves in steps of 1 ms (uvloop#359).
        self._rounds_up = uvloop = type(native).__module__.partition(".")[0] == "uvloop"
        own = type(native).time is asyncio.BaseEventLoop.time
        time: ReadClock = monotonic_ns if own or uvloop else lambda: round(native.time() * NS_PER_SECOND)
        self.read: ReadClock = time if clock is None else clock.now
        self.monotonic: bool = self.read is monotonic_ns
        self.turnstile: Turnstile = Turnstile.of(native, AsyncioPort, time)
        self._kernel: KernelTimers | None = None
        if precise and self.monotonic:
            from aiorate.waiting.timerfd import KernelTimers

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
            # Moved by hand, it may outlive the loop, where nobody can be woken.
            return self._clock.call_at(reading, lambda: None if self.native.is_closed() else callback())
        if self._kernel is not None:
            try:
                return self._kernel.call_at(reading, callback)
            except OSError:
                self._kernel = None  # no descriptor is to be had: the loop's timers will do
                self.grain = GRAIN_NS
        wait = min(max(reading - self.read(), 0), _LONGEST_TIMER_NS)
        if self._rounds_up:
            # As asyncio does: the nearest ms may be early, or too soon after the last wake-up.
            wait = ceil_div(wait, 1_000_000) * 1_000_000
        return self.native.call_later(wait / NS_PER_SECOND, callback)

    def yield_once(self) -> Awaitable[object]:
        return asyncio.sleep(0)
