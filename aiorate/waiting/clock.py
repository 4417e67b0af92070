"""Clocks, and the event loop as a limiter sees it: what time it is, and what can be called when.

Wall-clock time is never used. Knows nothing of rates or of who waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiorate.waiting.process.section import Section
    from aiorate.waiting.turnstile import Turnstile

__all__ = ["Clock", "EventLoop", "Handle", "ReadClock", "TimedClock"]


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


class EventLoop(Protocol):
    """What a limiter needs of the loop that runs its callers: asyncio's, uvloop's or trio's, or all of a process as one."""

    monotonic: bool
    """Whether that is ``time.monotonic_ns``, which other loops go by too."""
    manual: bool
    """Whether the clock keeps its own timers, and time does not pass by itself."""
    grain: int
    """Nanoseconds that wake-ups are kept apart."""

    @property
    def turnstile(self) -> Turnstile:
        """Where callers wait until the loop has run its other tasks."""
        ...

    @property
    def section(self) -> Section | None:
        """Where it stands for many loops and threads, one of which decides at a time. It is none that could starve, or stand still."""
        ...

    @property
    def read(self) -> ReadClock:
        """ReadClock the clock that callers on this loop go by, in ns."""
        ...

    @property
    def native(self) -> object:
        """The loop itself, by which it is told from others."""
        ...

    @property
    def running(self) -> bool:
        """Whether it runs now, in any thread of this process."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it can never run again in this process."""
        ...

    @property
    def forked(self) -> bool:
        """Whether it is another process's, copied by a fork."""
        ...

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call back in the loop's next turn."""
        ...

    def call_at(self, reading: int, callback: Callable[[], None]) -> Handle:
        """Call back when the clock reads so much, or roughly then: a timer is a hint, the clock is the judge."""
        ...

    def yield_once(self) -> Awaitable[object]:
        """What to await to let the loop turn once."""
        ...
