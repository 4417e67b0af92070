"""Wake-ups within tens of microseconds: one kernel timer (Linux timerfd) per event loop, shared by all its limiters.

asyncio rounds its timers up to the next millisecond, uvloop to the nearest. A timerfd is a descriptor that becomes readable at
an absolute instant of the monotonic clock, never before it, and both loops wake for it at once, without spinning.
Knows nothing of limiters: instants in, callbacks out.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from aiorate._loops.alarms import Alarms
from aiorate._rate import NS_PER_SECOND

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiorate._loops.alarms import Alarm


_LATEST = 1 << 62  # ns, 146 years: the most that the kernel takes; a waiter that is woken then waits on
_LINGER = 0.02  # seconds that the descriptor outlives its last timer: a waiter that comes soon finds it open


class KernelTimers(Alarms):
    """The timers of one loop, and a descriptor set for the first of them. Without one, it has no descriptor but for a moment."""

    __slots__ = ("_closing", "_fd", "_loop", "_set_for")

    NONE = OSError, AttributeError, ImportError, NotImplementedError, TypeError  # the last on Windows: no library without a name

    # By the id of the loop, which they hold. They go with the last limiter that uses them.
    _of: ClassVar[WeakValueDictionary[int, KernelTimers]] = WeakValueDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._fd = -1
        self._set_for = 0
        self._closing = False

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> KernelTimers:
        """The timers of the loop."""
        return cls._of.get(id(loop)) or cls._of.setdefault(id(loop), cls(loop))

    def add(self, instant: int, callback: Callable[[], object]) -> Alarm:
        """Call back at the instant of the monotonic clock (ns) or just after, never before.

        Raises one of `NONE` where there is no timerfd, where the loop can watch no descriptor, or if the system has none left.
        """
        if self._fd < 0:
            self._fd = create()
            self._set_for = 0
            try:
                self._loop.add_reader(self._fd, self._on_ready)
            except BaseException:
                self.__del__()
                raise
        return super().add(instant, callback)

    def changed(self) -> None:
        """Set the descriptor for the first timer; close it some time after the last."""
        instant = self.first
        if self._fd < 0 or self._loop.is_closed():
            return
        if instant is None:
            if not self._closing:
                self._closing = True
                self._loop.call_later(_LINGER, self._close)
        elif instant != self._set_for:
            self._set_for = instant
            settime(self._fd, min(max(instant, 1), _LATEST))  # 0 would disarm the timer

    def _on_ready(self) -> None:
        with suppress(BlockingIOError):  # set again since it became readable
            os.read(self._fd, 8)
        self._set_for = 0
        now = time.monotonic_ns()
        try:
            while (first := self.first) is not None and first <= now:
                self.pop()()
        finally:
            self.changed()

    def _close(self) -> None:
        self._closing = False
        if self.first is None and self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self.__del__()

    @classmethod
    def after_fork(cls) -> None:
        """Close the parent's descriptors in the child, where the loops that they wake do not go on."""
        for timers in list(cls._of.values()):
            timers.__del__()
        cls._of.clear()

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@cache
def _libc() -> Any:
    import ctypes  # Python has these calls since 3.13 only

    return ctypes.CDLL(None, use_errno=True)


def create() -> int:
    # The flags have the values of O_NONBLOCK and O_CLOEXEC: timerfd_create(2).
    return _checked(_libc().timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))


def settime(fd: int, instant: int) -> None:
    import ctypes

    # struct itimerspec: interval and first instant, each in seconds and nanoseconds; 1 is TFD_TIMER_ABSTIME.
    spec = (ctypes.c_long * 4)(0, 0, *divmod(instant, NS_PER_SECOND))
    _checked(_libc().timerfd_settime(fd, 1, ctypes.byref(spec), None))


def _checked(result: int) -> int:
    import ctypes

    if result < 0:
        raise OSError(ctypes.get_errno(), "timerfd")
    return result


with suppress(AttributeError):  # Windows, iOS, Android and WASI have no fork
    os.register_at_fork(after_in_child=KernelTimers.after_fork)
