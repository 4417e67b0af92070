"""Time in tests: a loop in which waiting takes none, and a clock that a test moves by hand."""

from __future__ import annotations

import asyncio
import selectors
import sys
from functools import partial
from math import ulp
from typing import TYPE_CHECKING, Any

from aiorate._loops.table import loop_here
from aiorate._rate import NS_PER_SECOND, duration_to_ns
from aiorate._schedulers.interface import check_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._rate import Duration


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time: when no task can run, time jumps to the next timer.

    Time begins at 0. Use it as a loop factory: ``asyncio.Runner(loop_factory=VirtualLoop)``. Sockets and threads still take real
    time. Raises RuntimeError where code spins and time does not pass.
    """

    _MOST_TURNS = 1_000_000

    def __init__(self) -> None:
        self._virtual_ns = self._turns = 0
        super().__init__(_Jumping(self._jump))

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual_ns / NS_PER_SECOND

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as in CPython 3.12
        """Wait until its threads have ended, however long that takes in real time: virtual time would be over at once."""
        await super().shutdown_default_executor()

    def _jump(self, seconds: float) -> None:
        ns = round(seconds * NS_PER_SECOND)
        self._turns = 0 if ns else self._turns + 1
        if self._turns > self._MOST_TURNS:
            self._turns = 0  # so that the loop can still be closed
            raise RuntimeError("VirtualLoop: time does not pass, so something spins. Make it wait for more than 0 seconds.")
        self._virtual_ns += ns
        # asyncio runs timers that are due within this. After 194 days, a float of seconds no longer resolves a nanosecond.
        self._clock_resolution = max(1 / NS_PER_SECOND, ulp(self.time()))


class _Jumping(selectors.DefaultSelector):
    """Jumps instead of waiting."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is not None:
            self._jump(max(timeout, 0))
        return ready if ready or timeout is not None else super().select(None)


class ManualClock:
    """A clock that moves only when a test moves it, on any event loop: ``Limiter(..., clock=clock)``.

    `advance` moves it on and fires timers in order. ``await run(seconds)`` also lets the tasks that they wake run at their instants.
    """

    def __init__(self, start_ns: int = 0) -> None:
        check_ns("ManualClock(start_ns)", start_ns)
        self._now = start_ns
        self._timers: dict[_Timer, Callable[[], None]] = {}

    def now(self) -> int:
        """The instant that it shows, in ns."""
        return self._now

    def call_at(self, instant: int, callback: Callable[[], None]) -> _Timer:
        """Call back once the clock reaches or passes the instant (ns)."""
        check_ns("ManualClock.call_at()", instant)
        timer = _Timer(self._timers, instant)
        self._timers[timer] = callback
        return timer

    def advance(self, seconds: Duration) -> None:
        """Move on by ``seconds``, a number or a timedelta, and fire timers at their instants."""
        self._until(self._now + duration_to_ns(seconds, "ManualClock.advance()"))

    def set(self, instant: int) -> None:
        """Jump to an instant (ns), also back in time. Timers that are due by then fire there."""
        check_ns("ManualClock.set()", instant)
        self._now = instant
        self._until(instant)

    async def run(self, seconds: Duration) -> None:
        """Move on by ``seconds``, a number or a timedelta, and let tasks run after each timer."""
        until = self._now + duration_to_ns(seconds, "ManualClock.run()")
        await _settle()
        while (first := self._first()) is not None and first.instant <= until:
            self._until(max(first.instant, self._now))
            await _settle()
        self._now = max(self._now, until)

    @property
    def timers(self) -> int:
        """The number of timers set: none while everything is idle."""
        return len(self._timers)

    def _first(self) -> _Timer | None:
        return min(self._timers, key=lambda timer: timer.instant, default=None)  # of one instant, the one set first

    def _until(self, until: int) -> None:
        while (first := self._first()) is not None and first.instant <= until:
            self._now = max(self._now, first.instant)
            self._timers.pop(first)()
        self._now = max(self._now, until)


class _Timer:
    def __init__(self, timers: dict[_Timer, Callable[[], None]], instant: int) -> None:
        self.instant: int = instant
        self._timers = timers

    def cancel(self) -> None:
        self._timers.pop(self, None)


async def _settle() -> None:
    loop = loop_here()
    assert loop is not None  # or nobody could await this
    threads = sys.modules.get("aiorate._tree.threads")
    for _ in range(12):  # turns from a timer to the last task that it wakes: filler, notice, waiter, and the waiter's owner
        if threads is not None:
            threads.decisions.run(int)
        signal = loop.signal()
        loop.post(partial(loop.wake, signal))
        await loop.wait(signal)
