"""A trio run, as a limiter sees it. Knows nothing of rates or of who waits.

Only this file and `trio_driver` import trio and anyio, and only where a limiter is used under trio.
"""

from __future__ import annotations

import os
from math import inf, nextafter
from typing import TYPE_CHECKING, cast

import anyio
import anyio.lowlevel
import trio

from aiorate.rate import NS_PER_SECOND
from aiorate.waiting.callback import call_back
from aiorate.waiting.clock import TimedClock
from aiorate.waiting.trio.port import TrioPort
from aiorate.waiting.turnstile import Turnstile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiorate.waiting.clock import Clock, Handle, ReadClock
    from aiorate.waiting.process.section import Section

__all__ = ["TrioLoop", "TrioTimer", "running_trio"]

_GRAIN_NS = 1_000_000
_LONGEST_TIMER_NS = 86_400 * NS_PER_SECOND  # a deadline is a float; the clock is asked again then


def running_trio(hosted: bool = False) -> object | None:
    """The token of the trio run in this thread; None: there is none, or it is hosted by another loop and no task of its own runs."""
    if hosted and not trio.lowlevel.in_trio_task():
        return None
    try:
        return trio.lowlevel.current_trio_token()
    except RuntimeError:
        return None


class TrioLoop:
    """One ``trio.run()``. Trio has no timers outside a task: a waiter watches one and fires it, others have a task of trio's own."""

    __slots__ = ("_clock", "_own", "_process", "_timers", "_token", "grain", "manual", "monotonic", "read", "timer", "turnstile")

    section: Section | None = None

    def __init__(self, native: object, clock: Clock | None) -> None:
        self._token = cast("trio.lowlevel.TrioToken", native)
        self._process = os.getpid()
        # Each run has a clock of its own, with an origin of its own. It can be read when the run is over, as `trio.current_time` cannot.
        self._clock = trio.lowlevel.current_clock()
        self._own = clock is None
        self._timers = None if clock is None or not isinstance(clock, TimedClock) else clock
        self.timer: TrioTimer | None = None
        """The one that a waiter watches."""
        self.manual: bool = self._timers is not None
        time = _reader(self._clock)
        self.read: ReadClock = time if clock is None else clock.now
        self.turnstile: Turnstile = Turnstile.of(native, TrioPort, time)
        self.monotonic: bool = False
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
            self._token.run_sync_soon(_nothing, idempotent=True)  # the only question a run answers from outside
        except (trio.RunFinishedError, OSError):  # it ended; it broke off, and its wake-up socket is closed
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
        timer = self._timer(reading, callback)
        _keep_by_task(timer)
        return timer

    def set_watch(self, reading: int, callback: Callable[[], None]) -> Handle:
        """As `call_at`, with `timer`, which a waiter fires."""
        if self._timers is not None:
            return self._timers.call_at(reading, callback)
        self.timer = self._timer(reading, callback)
        return self.timer

    def _timer(self, reading: int, callback: Callable[[], None]) -> TrioTimer:
        now = self.read()
        reading = min(reading, now + _LONGEST_TIMER_NS)
        if self._own:
            deadline = reading / NS_PER_SECOND
            if _whole(deadline) < reading:  # a second has fewer digits than a nanosecond once a clock reads weeks
                deadline = nextafter(deadline, inf)
        else:
            deadline = self._clock.current_time() + (reading - now) / NS_PER_SECOND
        return TrioTimer(self._token, deadline, callback)

    def keep_timer(self) -> None:
        """Have a task of trio's own fire the timer, where no waiter does."""
        timer = self.timer
        if timer is not None and timer.pending and timer.scope is None:
            _keep_by_task(timer)

    def yield_once(self) -> Awaitable[object]:
        return anyio.lowlevel.checkpoint()


class TrioTimer:
    """Calls back when it is fired, once, unless it was cancelled."""

    __slots__ = ("_callback", "_native", "deadline", "scope")

    def __init__(self, native: object, deadline: float, callback: Callable[[], None]) -> None:
        self._native = native
        self.scope: anyio.CancelScope | None = None
        """Of the task that keeps it, if there is one."""
        self.deadline: float = deadline
        """In seconds of the run's clock."""
        self._callback: Callable[[], None] | None = callback

    @property
    def pending(self) -> bool:
        """Whether it is still to be fired."""
        return self._callback is not None

    def cancel(self) -> None:
        self._callback = None
        if self.scope is not None and running_trio() is self._native:  # another run would take its task for one of its own
            self.scope.cancel()

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


def _keep_by_task(timer: TrioTimer) -> None:
    timer.scope = anyio.CancelScope(deadline=timer.deadline)
    trio.lowlevel.spawn_system_task(_keep, timer)


async def _keep(timer: TrioTimer) -> None:
    assert timer.scope is not None
    with timer.scope:
        await trio.sleep_forever()
    call_back(timer.fire, "under trio")


def _reader(clock: trio.abc.Clock) -> ReadClock:
    def read() -> int:
        return _whole(clock.current_time())

    return read


def _whole(seconds: float) -> int:
    """Nanoseconds, to the nearest."""
    return round(seconds * NS_PER_SECOND)


def _nothing() -> None:
    pass


def running_trio_task() -> object:
    """The task that runs here."""
    return trio.lowlevel.current_task()
