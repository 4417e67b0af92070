"""Clocks, the choice of the default one, and the limiter's own time, which stands still while it is paused.

Wall-clock time is never used. Knows nothing of rates or who waits.
"""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import TYPE_CHECKING, Protocol

from aiorate.rate import NS_PER_SECOND, ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.precise import KernelTimers

__all__ = ["Clock", "Timeline"]

_LONGEST_TIMER_NS = 86_400 * NS_PER_SECOND  # loops cannot all wait for longer; the clock is asked again then


class Clock(Protocol):
    """Where a limiter gets its time from.

    A clock that is not the event loop's may keep its own timers: if it has ``call_at(instant, callback)``, returning a handle
    with ``cancel()``, the limiter is woken by it. Otherwise the loop's timers wake it, and the clock is asked what time it is.
    """

    def now(self) -> int:
        """Nanoseconds since any origin; not expected to go back, and harmless if it does."""
        ...


class Handle(Protocol):
    """A timer that can be called off."""

    def cancel(self) -> None:
        """Call it off."""
        ...


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], int]:
    """Where the loop's time is the monotonic clock, that clock; otherwise (virtual time) the loop's own.

    uvloop's ``time()`` is the monotonic clock too, but moves in steps of 1 ms (uvloop#359).
    """
    time = getattr(loop.time, "__func__", None)
    if time is asyncio.BaseEventLoop.time or _is_uvloop(loop):
        return monotonic_ns
    return lambda: round(loop.time() * NS_PER_SECOND)


class Timeline:
    """The clock less all the time spent paused or stopped, so that a schedule resumes where it was held up.

    Whoever holds it up says what is to be called with the length of the hold when it is over. Limiters that go by the
    monotonic clock and were never held up share one.
    """

    __slots__ = ("_clock", "_held", "_kernel", "_on_release", "_precise", "begun", "offset", "paused_until", "read", "stopped")

    def __init__(self, clock: Clock | None, precise: bool) -> None:
        self._clock = clock
        self._precise = precise
        self._kernel: KernelTimers | None = None
        self._on_release: Callable[[int], None] | None = None
        self.read: Callable[[], int] = monotonic_ns if clock is None else clock.now
        self.begun = False
        """Whether an instant was read outside any loop, from which time must go on."""
        self.offset = 0  # what the limiter's time is behind the clock
        self._held: int | None = None  # the limiter's time while it stands still
        self.paused_until: int | None = None
        """Clock reading at which a pause ends; None: not paused, as far as was asked."""
        self.stopped = False
        """Whether nothing moves until it is started."""

    @classmethod
    def of(cls, clock: Clock | None, precise: bool) -> Timeline:
        """The one that is shared, if that will do."""
        return cls(clock, precise) if precise or clock is not None else SHARED

    def own(self) -> Timeline:
        """One that may be changed."""
        return Timeline(None, False) if self is SHARED else self

    def attach(self, loop: asyncio.AbstractEventLoop, begun: bool) -> Timeline:
        """The timeline on that loop: where its clock is another one, time goes on from where it was."""
        timeline = self
        if self._clock is None:
            before, read = self.read, clock_of(loop)
            if read is not before:
                timeline = self.own()
                timeline.read = read
                if begun or self.begun:
                    change = read() - before()
                    timeline.offset += change
                    if timeline.paused_until is not None:
                        timeline.paused_until += change
        if self._precise:
            from aiorate.precise import KernelTimers

            self._kernel = KernelTimers.of(loop) if self.read is monotonic_ns else None
        return timeline

    @property
    def by_hand(self) -> bool:
        """Whether the clock keeps its own timers."""
        return hasattr(self._clock, "call_at")

    @property
    def least_gap(self) -> int:
        """Nanoseconds that wake-ups are kept apart: a timer that fires early, as loops' do, must not become a spin (uvloop#233)."""
        return 1_000_000 if self._kernel is None else 0

    def now(self) -> int:
        """The limiter's time."""
        if self._held is not None:
            if self.stopped or (self.paused_until is not None and self.read() < self.paused_until):
                return self._held
            self._release(self.read() if self.paused_until is None else self.paused_until)
        return self.read() - self.offset

    def moving(self) -> Callable[[], int]:
        """The shortest way to ask for the limiter's time until it is held up or attached again."""
        return self.now if self.offset else self.read

    @property
    def held(self) -> bool:
        """Whether the limiter's time stood still when it was last asked for."""
        return self._held is not None

    @property
    def hold(self) -> int:
        """How long the limiter's time will have stood still; 0: it moves, or nobody can say."""
        if self._held is None or self.stopped:
            return 0
        return (self.read() if self.paused_until is None else self.paused_until) - self._held - self.offset

    def clock_at(self, instant: int) -> int | None:
        """The clock reading when the limiter's time will be so much; None: not before it is started."""
        if self._held is None:
            return instant + self.offset
        if self.stopped:
            return None
        return instant - self._held + (self.read() if self.paused_until is None else self.paused_until)

    def pause(self, ns: int, on_release: Callable[[int], None]) -> None:
        """Stand still for so long from now; pauses merge by the later end."""
        self._on_release = on_release
        now = self.now()
        until = self.read() + ns
        if self.paused_until is None or until > self.paused_until:
            self.paused_until = until
        self._held = now

    def resume(self) -> None:
        """End a pause."""
        self.now()
        self.paused_until = None
        self._end()

    def stop(self, on_release: Callable[[int], None]) -> None:
        """Stand still until started."""
        self._on_release = on_release
        self._held = self.now()
        self.stopped = True

    def start(self) -> None:
        """End a stop; a pause goes on to its own end."""
        self.now()
        self.stopped = False
        self._end()

    def call_at(self, loop: asyncio.AbstractEventLoop, reading: int, callback: Callable[[], None]) -> Handle:
        """Call back when the clock reads so much, or roughly then: the clock is the judge."""
        call_at: Callable[[int, Callable[[], None]], Handle] | None = getattr(self._clock, "call_at", None)
        if call_at is not None:
            return call_at(reading, callback)
        if self._kernel is not None:
            try:
                return self._kernel.call_at(reading, callback)
            except OSError:
                self._kernel = None  # no descriptor is to be had: the loop's timers will do
        wait = min(max(reading - self.read(), 0), _LONGEST_TIMER_NS)
        if _is_uvloop(loop):
            # Rounded up, as asyncio does: uvloop rounds to the nearest ms, which may be early, or too soon after the last wake-up.
            wait = ceil_div(wait, 1_000_000) * 1_000_000
        return loop.call_later(wait / NS_PER_SECOND, callback)

    def _end(self) -> None:
        if self._held is not None and not self.stopped:
            now = self.read()
            if self.paused_until is None or self.paused_until <= now:
                self._release(now)

    def _release(self, reading: int) -> None:
        assert self._held is not None
        offset = reading - self._held
        length, self.offset = offset - self.offset, offset
        self._held = self.paused_until = None
        if length and self._on_release is not None:
            self._on_release(length)


def _is_uvloop(loop: asyncio.AbstractEventLoop) -> bool:
    return type(loop).__module__.partition(".")[0] == "uvloop"


SHARED = Timeline(None, False)
