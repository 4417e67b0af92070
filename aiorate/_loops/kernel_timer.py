"""Wake-ups within tens of microseconds: one kernel timer (Linux timerfd) per event loop, shared by all its limiters.

asyncio rounds its timers up to the next millisecond, uvloop to the nearest. A timerfd is a descriptor that becomes readable at
an absolute instant of the monotonic clock, never before it, and both loops wake for it at once, without spinning.
Knows nothing of limiters: instants in, callbacks out.
"""

from __future__ import annotations

import heapq
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakValueDictionary

from aiorate._rate import NS_PER_SECOND

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


_LATEST = 1 << 62  # ns, 146 years: the most that the kernel takes; a waiter that is woken then waits on
_SMALL = 64  # cancelled timers that may stay in the heap
_LINGER = 0.02  # seconds that the descriptor outlives its last timer: a waiter that comes soon finds it open


class KernelTimers:
    """The timers of one loop: a heap of instants, and a descriptor set for the first of them."""

    # By the id of the loop, which they hold. They go with the last limiter that uses them.
    _of: ClassVar[WeakValueDictionary[int, KernelTimers]] = WeakValueDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[int, int, _Timer]] = []
        self._count = 0
        self._cancelled = 0  # cancelled timers in the heap
        self._fd = -1
        self._set_for = 0
        self._closing = False

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> KernelTimers | None:
        """The timers of the loop; None where there is no timerfd, or where the loop can watch no descriptor."""
        timers = cls._of.get(id(loop))
        if timers is None:
            timers = cls(loop)
            try:
                timers._open()
            except (OSError, AttributeError, NotImplementedError, TypeError):  # TypeError: Windows has no library without a name
                return None
            cls._of[id(loop)] = timers
            timers._aim()  # closes it soon if no timer is set
        return timers

    def call_at(self, instant: int, callback: Callable[[], None]) -> _Timer:
        """Call back at the instant of the monotonic clock (ns) or just after, never before.

        Raises OSError if the system has no descriptor left.
        """
        if self._fd < 0:
            self._open()
        self._count += 1
        timer = _Timer(self, callback)
        heapq.heappush(self._heap, (instant, self._count, timer))
        self._aim()
        return timer

    def _aim(self) -> None:
        """Set the descriptor for the first timer; close it some time after the last."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        if self._loop.is_closed():
            return
        if not heap:
            if not self._closing and self._fd >= 0:
                self._closing = True
                self._loop.call_later(_LINGER, self._close, self._count)
            return
        instant = heap[0][0]
        if instant != self._set_for:
            self._set_for = instant
            settime(self._fd, min(max(instant, 1), _LATEST))  # 0 would disarm the timer

    def _on_ready(self) -> None:
        with suppress(BlockingIOError):  # set again since it became readable
            os.read(self._fd, 8)
        self._set_for = 0
        heap, now = self._heap, time.monotonic_ns()
        try:
            while heap and heap[0][0] <= now:
                callback = heapq.heappop(heap)[2].take()
                if callback is not None:
                    callback()
                else:
                    self._cancelled -= 1
        finally:
            self._aim()

    def timer_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > _SMALL and 2 * self._cancelled > len(self._heap):
            # As asyncio does: timers far in the future would pile up behind the first.
            self._heap[:] = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
        self._aim()

    def _open(self) -> None:
        self._fd = create()
        self._set_for = 0
        try:
            self._loop.add_reader(self._fd, self._on_ready)
        except BaseException:
            self.__del__()
            raise

    def _close(self, count: int) -> None:
        self._closing = False
        if count != self._count:  # timers were set since
            self._aim()
        else:
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


class _Timer:
    __slots__ = ("_timers", "callback")

    def __init__(self, timers: KernelTimers, callback: Callable[[], None]) -> None:
        self._timers = timers
        self.callback: Callable[[], None] | None = callback

    def take(self) -> Callable[[], None] | None:
        callback, self.callback = self.callback, None
        return callback

    def cancel(self) -> None:
        if self.take() is not None:
            self._timers.timer_cancelled()


if sys.version_info >= (3, 13) and sys.platform == "linux":

    def create() -> int:
        return os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

    def settime(fd: int, instant: int) -> None:
        os.timerfd_settime_ns(fd, flags=os.TFD_TIMER_ABSTIME, initial=instant)

else:  # before Python 3.13
    _libc: object = None

    def create() -> int:
        global _libc
        import ctypes

        if _libc is None:
            _libc = ctypes.CDLL(None, use_errno=True)
        # The flags have the values of O_NONBLOCK and O_CLOEXEC: timerfd_create(2).
        fd: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)  # type: ignore[attr-defined]
        if fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        return fd

    def settime(fd: int, instant: int) -> None:
        import ctypes

        # struct itimerspec: interval and first instant, each in seconds and nanoseconds; 1 is TFD_TIMER_ABSTIME.
        spec = (ctypes.c_long * 4)(0, 0, *divmod(instant, NS_PER_SECOND))
        if _libc.timerfd_settime(fd, 1, ctypes.byref(spec), None) < 0:  # type: ignore[attr-defined]
            raise OSError(ctypes.get_errno(), "timerfd_settime")


with suppress(AttributeError):  # Windows, iOS, Android and WASI have no fork
    os.register_at_fork(after_in_child=KernelTimers.after_fork)
