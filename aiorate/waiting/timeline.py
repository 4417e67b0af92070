"""The limiter's own time, which stands still while it is paused, and the timer that wakes it.

Two time scales: a *reading* is the clock's, an *instant* is the limiter's own time. Knows nothing of rates or of who waits.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.waiting.clock import Clock, EventLoop, Handle, Reads

__all__ = ["Timeline", "Timer"]


class Timeline:
    """The clock less all the time spent paused or stopped, so that a schedule resumes where it was held up."""

    __slots__ = ("_released", "begun", "held_at", "offset", "paused_until", "read", "stopped")

    def __init__(self, clock: Clock | None) -> None:
        self.read: Reads = monotonic_ns if clock is None else clock.now
        self.offset = 0
        """How many ns the limiter's time is behind the clock."""
        self.begun = False
        """Whether an instant was given already, from which time must go on."""
        self.paused_until: int | None = None
        """The reading at which a pause ends; None: not paused, as far as was asked."""
        self.stopped = False
        """Whether nothing moves until it is started."""
        self.held_at: int | None = None
        """The instant at which time stood still when it was last asked for; None: it moved."""
        self._released: Callable[[int], None] | None = None

    def now(self) -> int:
        """The limiter's time."""
        if self.held_at is not None:
            if self.stopped or (self.paused_until is not None and self.read() < self.paused_until):
                return self.held_at
            self._release(self.read() if self.paused_until is None else self.paused_until)
        return self.read() - self.offset

    @property
    def paused(self) -> bool:
        """Whether a pause goes on."""
        return self.paused_until is not None and self.read() < self.paused_until

    def follow(self, read: Reads) -> None:
        """Go by another clock, from where time is."""
        if read is not self.read:
            if self.begun:
                change = read() - self.read()
                self.offset += change
                if self.paused_until is not None:
                    self.paused_until += change
            self.read = read
        self.begun = True

    @property
    def hold(self) -> int:
        """How many ns time will have stood still; 0: it moves, or nobody can say."""
        if self.held_at is None or self.stopped:
            return 0
        return (self.read() if self.paused_until is None else self.paused_until) - self.held_at - self.offset

    def reading_at(self, instant: int) -> int | None:
        """What the clock reads at that instant; None: nobody can say before it is started."""
        if self.held_at is None:
            return instant + self.offset
        if self.stopped:
            return None
        return instant - self.held_at + (self.read() if self.paused_until is None else self.paused_until)

    def pause(self, ns: int, released: Callable[[int], None]) -> None:
        """Stand still for so long from now; pauses merge by the later end. Afterwards ``released`` is told how long it was in all."""
        now, until = self.now(), self.read() + ns
        self._released = released
        if self.paused_until is None or until > self.paused_until:
            self.paused_until = until
        self.held_at = now

    def resume(self) -> None:
        """End a pause."""
        self.now()
        self.paused_until = None
        self._end()

    def stop(self, released: Callable[[int], None]) -> None:
        """Stand still until started."""
        self.held_at, self._released = self.now(), released
        self.stopped = True

    def start(self) -> None:
        """End a stop; a pause goes on to its own end."""
        self.now()
        self.stopped = False
        self._end()

    def _end(self) -> None:
        if self.held_at is not None and not self.stopped:
            now = self.read()
            if self.paused_until is None or self.paused_until <= now:
                self._release(now)

    def _release(self, reading: int) -> None:
        assert self.held_at is not None
        length = reading - self.held_at - self.offset
        self.offset += length
        released, self._released = self._released, None
        self.held_at = self.paused_until = None
        if length and released is not None:
            released(length)


class Timer:
    """One wake-up at a time. A timer is a hint, the clock is the judge: whoever is woken looks, and sets it anew.

    Not twice within the loop's grain; and where a timer fired too early for the same reading again, it is given more time.
    """

    __slots__ = ("_due", "_early", "_fired_at", "_handle", "_loop", "_wake")

    def __init__(self, loop: EventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._wake = wake
        self._handle: Handle | None = None
        self._due: int | None = None
        self._early = 0  # how often it fired before that
        self._fired_at: int | None = None

    def set(self, due: int | None) -> None:
        """Wake when the clock reads so much; None: not at all."""
        if self._handle is not None:
            if due == self._due:
                return
            self._handle.cancel()
            self._handle = None
        self._early = self._early + 1 if due == self._due else 0
        self._due = due
        if due is not None:
            if self._fired_at is not None:
                due = max(due, self._fired_at + max(1, self._early) * self._loop.grain)
            self._handle = self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._handle = None
        try:
            self._fired_at = self._loop.read()
        except Exception:  # a broken clock: whoever is woken finds out too, and tells those who wait
            self._fired_at = None
        self._wake()
