"""Tests without waiting: a clock by hand, a loop in virtual time, and the laws that every scheduler obeys.

Nothing in aiorate imports this module.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from math import ulp
from typing import TYPE_CHECKING, Any

from aiorate.rate import NS_PER_SECOND, seconds_to_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiorate.rate import Number
    from aiorate.schedulers.interface import Scheduler

__all__ = ["ManualClock", "VirtualLoop", "check_scheduler", "simulate"]


class ManualClock:
    """A clock that moves only when told to, on any event loop.

    Pass it as ``Limiter(..., clock=clock)``. `advance` moves it on and fires the timers that fall due, in order;
    ``await run(seconds)`` also lets the tasks that they wake run at their instants.
    """

    def __init__(self, start_ns: int = 0) -> None:
        _check_instant("ManualClock(start_ns)", start_ns)
        self._now = start_ns
        self._timers: list[tuple[int, int, _Timer]] = []
        self._count = 0

    def now(self) -> int:
        """Nanoseconds."""
        return self._now

    def call_at(self, instant: int, callback: Callable[[], None]) -> _Timer:
        """Call back when the clock is moved to the instant or beyond."""
        _check_instant("ManualClock.call_at()", instant)
        self._count += 1
        timer = _Timer(callback)
        heapq.heappush(self._timers, (instant, self._count, timer))
        return timer

    def advance(self, seconds: Number) -> None:
        """Move on, firing timers at their instants."""
        self._until(self._now + seconds_to_ns(seconds, "ManualClock.advance()"))

    def set(self, instant: int) -> None:
        """Jump to an instant (ns), back as well; timers that are due by then fire there."""
        _check_instant("ManualClock.set()", instant)
        self._now = instant
        self._until(instant)

    async def run(self, seconds: Number) -> None:
        """Move on, and let tasks run whenever a timer has fired; returns when they have settled."""
        until = self._now + seconds_to_ns(seconds, "ManualClock.run()")
        await _settle()
        while (instant := self._next()) is not None and instant <= until:
            self._until(max(instant, self._now))
            await _settle()
        self._now = max(self._now, until)
        await _settle()

    @property
    def timers(self) -> int:
        """How many timers are set: none while everything is idle."""
        return sum(not timer.cancelled for _, _, timer in self._timers)

    def _next(self) -> int | None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _until(self, until: int) -> None:
        while (instant := self._next()) is not None and instant <= until:
            timer = heapq.heappop(self._timers)[2]
            self._now = max(self._now, instant)
            timer.callback()
        self._now = max(self._now, until)


class _Timer:
    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def _check_instant(call: str, instant: int) -> None:
    if isinstance(instant, bool) or not isinstance(instant, int):
        raise TypeError(f"{call} must be an instant in whole ns, not {type(instant).__name__}.")


async def _settle() -> None:
    # From a timer to the task it wakes it takes a few turns of the loop: poke, notice, waiter, whoever awaits that.
    for _ in range(12):
        await asyncio.sleep(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time: when nothing is left to run, time jumps to the next timer.

    Time begins at 0. Use it as a loop factory: ``asyncio.Runner(loop_factory=VirtualLoop)``. What really happens outside,
    sockets and threads, is waited for in real time. Raises RuntimeError when code spins without time passing.
    """

    _MOST_TURNS = 1_000_000

    def __init__(self) -> None:
        self._virtual_ns = 0
        self._turns = 0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual_ns / NS_PER_SECOND

    def _jump(self, seconds: float) -> None:
        ns = round(seconds * NS_PER_SECOND)
        self._turns = 0 if ns else self._turns + 1
        if self._turns > self._MOST_TURNS:
            self._turns = 0  # let whoever catches it close the loop
            raise RuntimeError(f"VirtualLoop: {self._MOST_TURNS} turns without time passing; something spins")
        self._virtual_ns += ns
        # asyncio runs a timer that is due within this. After 194 days, a nanosecond is lost in the float that time() is.
        self._clock_resolution = max(1 / NS_PER_SECOND, ulp(self.time()))


class _Jumping(selectors.DefaultSelector):
    """A selector that jumps instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._jump = loop._jump

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            return super().select(None)
        self._jump(max(timeout, 0))
        return ready


def simulate(scheduler: Scheduler, requests: Iterable[int | tuple[int, int]]) -> list[int]:
    """The instants (ns) at which requests are granted that stand in one line, woken exactly on time.

    Each request is the instant (ns) at which it is made, of one permit, or a pair (instant, permits); in order of time.
    """
    granted: list[int] = []
    latest: int | None = None
    now = 0
    for request in requests:
        if isinstance(request, tuple) and len(request) != 2:
            raise ValueError(f"simulate(): a request must be an instant in ns or a pair (instant, permits), not {request!r}.")
        made, permits = request if isinstance(request, tuple) else (request, 1)
        _check_instant("simulate(): a request", made)
        if latest is not None and made < latest:
            raise ValueError(f"simulate(): requests must be in order of time; {made} came after {latest}.")
        latest = made
        now = max(now, made) if granted else made
        at = scheduler.take(permits, now, min(made, now))
        if at > now:
            now = at
            scheduler.take(permits, now, min(made, now))
        granted.append(now)
    return granted


def check_scheduler(factory: Callable[[], Scheduler], *, examples: int = 100) -> None:
    """Try the laws of `aiorate.schedulers.interface` on schedulers that the factory makes; AssertionError names the law.

    Needs hypothesis. ``examples`` is how many histories are tried for each law. Schedules must run from the first instant
    given, as ours do without ``start``: the laws begin at instants of their own.
    """
    from aiorate._laws import LAWS, run_law

    for law in LAWS:
        run_law(law, factory, examples)
