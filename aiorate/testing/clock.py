"""A clock that a test moves by hand."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from aiorate.rate import duration_to_ns
from aiorate.schedulers.interface import check_instant
from aiorate.waiting.loops import running_loop, view_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Never

    from aiorate.rate import Duration

__all__ = ["ManualClock"]


class ManualClock:
    """A clock that moves only when a test moves it, on any event loop.

    Pass it as ``Limiter(..., clock=clock)``. `advance` moves it on and fires the timers that fall due, in order.
    ``await run(seconds)`` also lets the tasks that they wake run at their instants.
    """

    def __init__(self, start_ns: int = 0) -> None:
        check_instant("ManualClock(start_ns)", start_ns)
        self._now = start_ns
        self._timers: list[tuple[int, int, _Timer]] = []
        self._count = 0

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            moves = name in {"tick", "sleep", "step", "forward", "travel", "move", "shift", "increment", "time"}
            hint = ": write clock.advance(seconds), or `await clock.run(seconds)`, which lets tasks run too" if moves else ""
            raise AttributeError(f"a ManualClock has no {name!r}{hint}.")

    def now(self) -> int:
        """The instant that it shows, in ns."""
        return self._now

    def call_at(self, instant: int, callback: Callable[[], None]) -> _Timer:
        """Call back once the clock reaches or passes the instant (ns)."""
        check_instant("ManualClock.call_at()", instant)
        self._count += 1
        timer = _Timer(callback)
        heapq.heappush(self._timers, (instant, self._count, timer))
        return timer

    def advance(self, seconds: Duration) -> None:
        """Move on by ``seconds``, a number or a timedelta, and fire timers at their instants."""
        self._until(self._now + duration_to_ns(seconds, "ManualClock.advance()"))

    def set(self, instant: int) -> None:
        """Jump to an instant (ns), also back in time. Timers that are due by then fire there."""
        check_instant("ManualClock.set()", instant)
        self._now = instant
        self._until(instant)

    async def run(self, seconds: Duration) -> None:
        """Move on by ``seconds``, a number or a timedelta, and let tasks run after each timer. Returns when no task can run."""
        until = self._now + duration_to_ns(seconds, "ManualClock.run()")
        await _settle()
        while (instant := self._next()) is not None and instant <= until:
            self._until(max(instant, self._now))
            await _settle()
        self._now = max(self._now, until)
        await _settle()

    @property
    def timers(self) -> int:
        """The number of timers set: none while everything is idle."""
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
    """A timer of `ManualClock`."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] = callback
        self.cancelled: bool = False

    def cancel(self) -> None:
        """Never call back."""
        self.cancelled = True


async def _settle() -> None:
    native = running_loop()
    assert native is not None  # or nobody could await this
    loop = view_of(native, None, precise=False)
    # From a timer to the last task that it wakes takes a few iterations of the loop: driver, notice, waiter, and the waiter's owner.
    for _ in range(12):
        await loop.yield_once()
