"""Clocks: what time it is, and what can be called when. Never the wall clock. Knows nothing of rates or of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Clock", "Handle", "ReadClock", "TimedClock"]


@runtime_checkable
class Clock(Protocol):
    """The source of a limiter's time.

    A clock may keep its own timers: if it has ``call_at(instant, callback)``, returning a handle with ``cancel()``, it wakes the
    limiter. Otherwise the loop's timers wake the limiter, which then reads the clock.
    """

    def now(self) -> int:
        """Return nanoseconds since any origin. It should not go back; if it does, no harm is done."""
        ...


class ReadClock(Protocol):
    """The cheapest callable that reads a clock, in ns."""

    def __call__(self) -> int:
        """Read the clock."""
        ...


class Handle(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None:
        """Never call back."""
        ...


@runtime_checkable
class TimedClock(Clock, Protocol):
    """A clock that keeps its own timers, such as one that is moved by hand."""

    def call_at(self, instant: int, callback: Callable[[], None]) -> Handle:
        """Call back when the clock reads ``instant`` ns."""
        ...
