"""Wake-ups within tens of microseconds: one kernel timer (Linux timerfd) per event loop, shared by all its limiters.

asyncio rounds its timers up to the next millisecond, uvloop to the nearest. A timerfd becomes readable at an instant, never before it.
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet

from aiorate._loops.alarms import Alarms
from aiorate._rate import NS_PER_SECOND

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiorate._loops.alarms import Alarm


_LINGER = 20_000_000  # ns that the descriptor outlives its last timer: a waiter that comes soon finds it open


class KernelTimers(Alarms):
    """The timers of one loop, and a descriptor set for the first of them. Soon after the last, it is closed."""

    __slots__ = ("__weakref__", "_fd", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._fd = -1
        _all.add(self)

    def add(self, instant: int, callback: Callable[[], object]) -> Alarm:
        """Raises OSError, AttributeError or NotImplementedError where none is left, the system has none, or the loop can watch none."""
        if self._fd < 0:
            self._fd = create()
            try:
                self._loop.add_reader(self._fd, self._on_ready)
            except BaseException:
                self.close()
                raise
        return super().add(instant, callback)

    def changed(self) -> None:
        """Set the descriptor for the first timer, or for when it is closed."""
        if self._fd >= 0 and not self._loop.is_closed():
            first = self.first
            settime(self._fd, time.monotonic_ns() + _LINGER if first is None else first)

    def _on_ready(self) -> None:
        with suppress(BlockingIOError):  # set again since it became readable
            os.read(self._fd, 8)
        if self.first is None:
            self._loop.remove_reader(self._fd)
            self.close()
            return
        try:
            self.call_due()
        finally:
            self.changed()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


_all: WeakSet[KernelTimers] = WeakSet()


def _after_fork() -> None:
    """Close the parent's descriptors in the child, where the loops that they wake do not go on."""
    for timers in list(_all):
        timers.close()


with suppress(AttributeError):  # Windows, iOS, Android and WASI have no fork
    os.register_at_fork(after_in_child=_after_fork)


_libc = ctypes.pythonapi  # which finds the functions of the C library too. Python has these since 3.13 only


def create() -> int:
    # The flags have the values of O_NONBLOCK and O_CLOEXEC: timerfd_create(2).
    fd: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise OSError("no timerfd is left")
    return fd


def settime(fd: int, instant: int) -> None:
    # struct itimerspec: interval and first instant, each in seconds and nanoseconds; 1 is TFD_TIMER_ABSTIME.
    _libc.timerfd_settime(fd, 1, ctypes.byref((ctypes.c_long * 4)(0, 0, *divmod(instant, NS_PER_SECOND))), None)
