"""Clocks: what time it is, and what can be called when. Wall-clock time is never used. Knows nothing of rates or of who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Clock", "Handle", "ReadClock", "TimedClock"]


@runtime_checkable
class Clock(Protocol):
    """Where a limiter gets its time from.

    A clock that is not the event loop's may keep its own timers: if it has ``call_at(instant, callback)``, returning a handle
    with ``cancel()``, the limiter is woken by it. Otherwise the loop's timers wake it, and the clock is asked what time it is.
    """

    def now(self) -> int:
        """Nanoseconds since any origin; not expected to go back, and harmless if it does."""
        ...


class ReadClock(Protocol):
    """The shortest way to what a clock reads, in ns."""

    def __call__(self) -> int:
        """Read it."""
        ...


class Handle(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None:
        """Call back no more."""
        ...


@runtime_checkable
class TimedClock(Clock, Protocol):
    """A clock with timers of its own, such as one that is moved by hand."""

    def call_at(self, instant: int, callback: Callable[[], None]) -> Handle:
        """Call back when it reads so much."""
        ...
