"""The limiter's own time, which stands still while it is paused.

Two time scales: a *reading* is the clock's, an *instant* is the limiter's own time. Knows nothing of rates or of requests.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._loops.loop import Clock, ReadClock


NOT_GRANTED = 1 << 200
"""In place of an instant: the request was not granted at once."""


class Timeline:
    """The clock less all the time spent paused or stopped, so that a schedule resumes where it was held up."""

    __slots__ = ("_released", "begun", "held_at", "offset", "paused_until", "read", "stopped")

    def __init__(self, clock: Clock | None) -> None:
        self.read: ReadClock = monotonic_ns if clock is None else clock.now
        self.offset: int = 0
        """How many ns the limiter's time is behind the clock."""
        self.begun: bool = False
        """Whether an instant was given already: time must go on from there."""
        self.paused_until: int | None = None
        """The reading at which a pause ends; None: not paused when it was last asked."""
        self.stopped: bool = False
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

    def switch(self, read: ReadClock) -> None:
        """Switch clocks without a jump in limiter time."""
        if read is not self.read:
            if self.begun:
                change = read() - self.read()
                self.offset += change
                if self.paused_until is not None:
                    self.paused_until += change
            self.read = read
        self.begun = True

    @property
    def held_for(self) -> int:
        """Nanoseconds for which time has stood still until now; 0: it moves."""
        return 0 if self.held_at is None else self.read() - self.held_at - self.offset

    @property
    def pause_length(self) -> int:
        """Nanoseconds for which time will have stood still; 0: it moves, or the end is unknown."""
        if self.held_at is None or self.stopped:
            return 0
        return (self.read() if self.paused_until is None else self.paused_until) - self.held_at - self.offset

    def reading_at(self, instant: int) -> int | None:
        """The reading of the clock at that instant; None: unknown until it is started."""
        if self.held_at is None:
            return instant + self.offset
        if self.stopped:
            return None
        return instant - self.held_at + (self.read() if self.paused_until is None else self.paused_until)

    def pause(self, ns: int, released: Callable[[int], None]) -> None:
        """Stand still for ``ns`` from now; pauses merge by the later end. Afterwards ``released`` gets the total length in ns."""
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
        """End a stop; a pause goes on until its end."""
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
