"""The critical section around decisions, where many threads call one limiter: one thread at a time, and never across a wait.

A coroutine that is garbage-collected leaves the line in the thread that collects it, perhaps in the middle of a decision of that very
thread. Such a call is deferred until the section is over: it neither waits for the lock nor sees half a decision.

A signal handler may raise an error in the middle of a decision, after any call (CPython runs handlers between bytecodes, there and at
the start of functions and loops). The lock is released even then, and `on_cut` wakes the owners of decided requests and sets every
timer again. Knows nothing of rates, loops or requests.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from weakref import WeakSet

from aiorate.errors import LimiterClosed, LineFull, WaitTooLong
from aiorate.waiting.callback import call_back
from aiorate.waiting.lock import Lock

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Section"]

P = ParamSpec("P")
T = TypeVar("T")

_REFUSALS = (WaitTooLong, LineFull, LimiterClosed)  # errors that are the outcome of a whole decision
_NOT_BLOCKING = (False,)


class Section:
    """A lock, the calls that are deferred until it is free, and the calls that follow once it is released.

    The lock is reentrant, so that a thread that interrupts itself does not wait for itself. `_owner` tells whether it did: the lock
    alone would let it change what is half decided.
    """

    __slots__ = ("__weakref__", "_after", "_cut", "_deferred", "_lock", "_owner", "on_cut", "on_fork")

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner = 0  # the thread that decides now; 0: none
        self._deferred: deque[Callable[[], object]] = deque()
        self._after: deque[Callable[[], object]] = deque()
        self._cut = False  # whether a decision ended in an error that may be a signal handler's
        self.on_cut: Callable[[], object] = int
        """Called in the section after an error in the middle of a decision. It wakes all owners of decided requests and sets the timers."""
        self.on_fork: Callable[[], object] | None = None
        """Called in the child process after a fork, where only this thread goes on."""
        with _sections_lock:
            _sections.add(self)

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call it in the section, and return its result. Raises RuntimeError if this thread interrupted its own decision."""
        try:
            with self._lock:
                if self._owner:
                    raise RuntimeError(
                        "called from a finalizer or signal handler that interrupted this limiter. Call it from ordinary code."
                    )
                self._owner = get_ident()
                try:
                    return call(*args, **options)
                except _REFUSALS:
                    raise
                except BaseException:
                    self._cut = True
                    raise
                finally:
                    self._owner = 0
        finally:
            if self._deferred or self._after or self._cut:  # else a call more would cost a tenth
                self.catch_up()

    def command(self, call: Callable[[], object]) -> None:
        """As `run`; but if this thread interrupted its own decision, the call follows right after that."""
        with self._lock:
            if self._owner:
                self._deferred.append(call)
                return
        self.run(call)

    def attempt(self, call: Callable[[], object]) -> bool:
        """Call it in the section if it is free, and never wait. Returns whether it was."""
        taken: list[bool] = []
        try:
            taken.extend(map(self._lock.acquire, _NOT_BLOCKING))  # in one call, as below
            if not taken[0] or self._owner:
                return False
            self.run(call)
            return True
        finally:
            if taken and taken[0]:
                self._lock.release()

    def look(self, call: Callable[[], T]) -> T:
        """As `run`, for a question that decides nothing and is therefore allowed at any time."""
        with self._lock:
            if self._owner:
                return call()
        return self.run(call)

    def post(self, call: Callable[[], object]) -> None:
        """Have it called in the section soon: now if the section is free, otherwise by the thread inside. Never waits, never raises.

        So finalizers may use it. They may run inside the section of another limiter too, where waiting could be a deadlock.
        """
        self._deferred.append(call)
        self.catch_up()

    def after(self, call: Callable[[], object]) -> None:
        """Have it called once the section is over, without the lock, so that it may call the limiter. Called from inside."""
        self._after.append(call)

    def catch_up(self) -> None:
        """Make the deferred calls, unless a thread is inside: then that thread makes them."""
        try:
            self._catch_up()
            if self._after:
                self._finish()
        except BaseException:  # a signal handler's: a call that was taken out of a queue may not have been made
            self._cut = True
            raise
        finally:
            if self._cut:
                self._catch_up()
                self._finish()

    def _catch_up(self) -> None:
        # The holder of the lock looks here after its release, so a call that is added before this thread fails to take it is not missed.
        while self._deferred or self._cut:
            taken: list[bool] = []
            try:
                # Taken and noted in one call: a signal handler between the two would leave the lock taken for ever.
                taken.extend(map(self._lock.acquire, _NOT_BLOCKING))
                if not taken[0] or self._owner:
                    return  # if this thread interrupted itself, it comes here again
                self._owner = get_ident()
                try:
                    if self._cut:
                        self._cut = False
                        call_back(self.on_cut, "after an interrupt")
                    while self._deferred:
                        call_back(self._deferred.popleft(), "in a critical section")
                except BaseException:
                    self._cut = True
                    raise
                finally:
                    self._owner = 0
            finally:
                if taken and taken[0]:  # no call, after which a signal handler could raise
                    self._lock.release()

    def _finish(self) -> None:
        # If this thread is inside, it interrupted itself, and comes here when it leaves.
        while self._owner != get_ident():
            try:
                call = self._after.popleft()
            except IndexError:  # another thread took it
                return
            if not call_back(call, "after a critical section"):
                self._cut = True

    def cut(self) -> None:
        """Note that a decision was cut short by an error that is handled. Called from inside."""
        self._cut = True

    def hold(self) -> None:
        """Let no thread in: a fork follows."""
        self._lock.acquire()

    def release(self) -> None:
        """Let threads in again. `catch_up` then makes the calls that they deferred."""
        self._lock.release()

    def reset(self) -> None:
        """Start over in the child process: all threads that wait, for the lock or in line, are in the parent."""
        self._lock = Lock()
        if not self._owner:  # otherwise this thread forked in the middle of a decision
            self._deferred.clear()
        self._after.clear()
        if self.on_fork is not None:
            self.on_fork()


# No decision is half made in a child: a fork waits for the decisions of other threads, which take microseconds.
_sections: WeakSet[Section] = WeakSet()
_sections_lock = Lock()
_held: list[Section] = []


def _before_fork() -> None:
    _sections_lock.acquire()
    _held[:] = _sections
    for section in _held:
        section.hold()


def _after_fork_in_parent() -> None:
    held = _held.copy()
    _held.clear()
    for section in held:
        section.release()
    _sections_lock.release()
    for section in held:
        section.catch_up()


def _after_fork_in_child() -> None:
    global _sections_lock
    _sections_lock = Lock()
    for section in _held:
        section.reset()
    _held.clear()


with suppress(AttributeError):  # Windows, iOS, Android and WASI have no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
