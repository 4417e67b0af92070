"""The timer of a tree: early timers and their back-off, in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND

if TYPE_CHECKING:
    from aiorate._loops.clock import Handle
    from aiorate._loops.loop import Loop

__all__ = ["GRAIN_NS", "LONGEST_NS", "Timer"]

GRAIN_NS = 1_000_000  # between wake-ups: loops' timers may fire early, and must not make a limiter spin (uvloop#233)
LONGEST_NS = 86_400 * NS_PER_SECOND  # not all loops can wait for longer, and a deadline may be a float; the clock is read again then


class Timer:
    """One wake-up at a time. A timer is a hint, the clock is the judge: the code that is woken looks, and sets the timer again.

    Never fires twice within the loop's grain. A timer that fires too early for the same reading again is given more time.
    """

    __slots__ = ("_due", "_early", "_fired_at", "_handle", "_loop")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._handle: Handle | None = None
        self._due: int | None = None
        self._early = 0  # how often it fired before that reading
        self._fired_at: int | None = None

    def set(self, due: int | None) -> None:
        """Wake when the clock reads ``due`` ns; None: never."""
        if self._handle is not None:
            if due == self._due:
                return
            handle, self._handle = self._handle, None  # first: a signal handler may raise after any call
            handle.cancel()
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
        except Exception:  # a broken clock: whoever looks finds out too, and fails the requests in line
            self._fired_at = None
        self.ring()

    def ring(self) -> None:
        """Look: it fired."""
        raise NotImplementedError
