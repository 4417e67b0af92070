"""Decisions of a whole process, one at a time: the lock, and the thread ``aiorate``, which decides for the main one and keeps the time.

Python runs signal handlers in the main thread, between any two steps. So any thread decides under one lock, but the main one: it hands
its request to the thread that has the timers, a daemon named ``aiorate``, and waits some 50 us for the answer. Nothing can interrupt a
decision then, and its code is that of one loop. A finalizer may run in the middle of a decision of its own thread, so what it does is
handed over too. The lock is never held across a wait. Knows nothing of what is decided.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from queue import Empty, SimpleQueue
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING

from aiorate._loops.loop import call_back
from aiorate._meter import FAR, LoopCheck
from aiorate._rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")


LINGER_NS = 1_000_000_000  # how long the thread stays when it has nothing to do


class Decisions:
    """The lock, and what follows once it is released.

    Meanwhile all meters are shut: a grab takes no lock, and would be lost in the middle of a decision.
    """

    __slots__ = ("after", "check", "lock", "main")

    def __init__(self) -> None:
        self.check: LoopCheck = LoopCheck()
        """Shuts the meters."""
        self.begin_again()

    def begin_again(self) -> None:
        """In no decision, as in a child process after a fork."""
        self.check.try_until = FAR
        self.lock: Any = threading.RLock()  # which knows its owner: a finalizer may ask at any step of its thread
        self.main: int | None = threading.main_thread().ident
        self.after: deque[Callable[[], object]] = deque()
        """Calls for the end of the decision."""

    def make(self, call: Callable[[], T]) -> T:
        """Decide in this thread, which is not the main one."""
        self.refuse_nested()
        with self.lock:
            self.check.try_until = 0
            try:
                return call()
            finally:
                self.check.try_until = FAR

    @property
    def here(self) -> bool:
        """Whether this thread is in the middle of a decision."""
        return self.lock._is_owned()  # type: ignore[no-any-return]

    def refuse_nested(self) -> None:
        """Raise RuntimeError in the middle of a decision of this thread."""
        if self.lock._is_owned():
            raise RuntimeError("called from a finalizer or a strategy in the middle of a decision. Call it from ordinary code.")

    def attempt(self, call: Callable[[], object]) -> bool:
        """Decide in this thread if the lock is free. Never waits. Returns whether it was."""
        if self.lock._is_owned() or not self.lock.acquire(blocking=False):
            return False
        self.check.try_until = 0
        try:
            call_back(call, "in a decision")
        finally:
            self.check.try_until = FAR
            self.lock.release()
        return True

    def finish(self) -> None:
        """Make the calls that wait for the end of decisions: they may use limiters."""
        while self.after:
            try:
                call = self.after.popleft()
            except IndexError:  # another thread took it
                return
            call_back(call, "after a decision")


decisions = Decisions()


def run(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a function that decides, and return its result."""
    if get_ident() == decisions.main and not sys.is_finalizing():
        return _hand_over(partial(call, *args, **options))
    try:
        return decisions.make(partial(call, *args, **options))
    finally:
        decisions.finish()


def post(call: Callable[[], object]) -> None:
    """Have a function called that decides, and never wait: finalizers may use it. The calls of the main thread keep their order."""
    if get_ident() != decisions.main and decisions.attempt(call):
        decisions.finish()
    else:
        keeper.put(call)


def tell(call: Callable[[], object]) -> None:
    """As `run`, where the main thread need not wait for it: what it asks later comes after that."""
    if get_ident() == decisions.main:
        keeper.put(call)
    else:
        run(call)


def settle() -> None:
    """Return once the thread, if there is one, has done what was handed to it. For tests."""
    if keeper.runs:
        _hand_over(int)


def _hand_over(call: Callable[[], T]) -> T:
    """Have the thread decide, and wait for that."""
    if keeper.starts_here:
        raise RuntimeError("called from a finalizer or a signal handler while a thread is being started. Call it from ordinary code.")
    job = _Job(call)
    keeper.put(job)
    job.done.acquire()
    if job.error is not None:
        try:
            raise job.error
        finally:
            job.error = None  # or the error would hold its own traceback
    return job.result  # type: ignore[no-any-return]


class _Job:
    """A call that another thread waits for."""

    __slots__ = ("_call", "done", "error", "result")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.done = threading.Lock()
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error
        self.done.release()


class Keeper:
    """The thread ``aiorate``: makes the decisions of the main thread, and calls back when something is due."""

    __slots__ = ("_heap", "_jobs", "_number", "_starting", "_thread", "look_after", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[object, Any] = {}
        """Those who wait, by event loop. While there are any, the thread stays. Changed in decisions."""
        self.look_after: Callable[[], object] = int
        """Called every second while there are any, in a decision."""
        self.begin_again()

    def begin_again(self) -> None:
        """Without a thread and anything to do, as in a child process after a fork."""
        self.waiters.clear()
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._heap: list[tuple[int, int, Alarm]] = []
        self._number = 0
        self._thread: threading.Thread | None = None
        self._starting = 0  # the thread that starts it

    def put(self, job: Callable[[], object] | None) -> None:
        """Have it called in the thread, in a decision. None only wakes it."""
        if self._thread is None:
            self._start()
        self._jobs.put(job)
        if self._thread is None:  # it ended meanwhile
            self._start()

    def _start(self) -> None:
        if not self._starting:
            self._starting = get_ident()
            try:
                thread = self._thread = threading.Thread(target=self._keep, name="aiorate", daemon=True)
                thread.start()
            except BaseException:
                self._thread = None
                raise
            finally:
                self._starting = 0

    def call_at(self, reading: int, callback: Callable[[], object]) -> Alarm:
        """Call back, in a decision, when the monotonic clock reads that. Called in a decision."""
        alarm = Alarm(callback)
        self._number += 1
        first = self._heap[0][0] if self._heap else None
        heappush(self._heap, (reading, self._number, alarm))
        if (first is None or reading < first) and self._thread is not threading.current_thread():
            self.put(None)
        return alarm

    @property
    def starts_here(self) -> bool:
        """Whether this thread is starting it, and was interrupted."""
        return self._starting == get_ident()

    @property
    def runs(self) -> bool:
        """Whether there is the thread now."""
        return self._thread is not None

    @property
    def here(self) -> bool:
        """Whether this is the thread itself, which must never wait for a limiter."""
        return self._thread is threading.current_thread()

    def _keep(self) -> None:
        idle_since = checked = monotonic_ns()
        while self._thread is threading.current_thread():
            now = monotonic_ns()
            due = self._next()
            if due is None and not self.waiters:
                if now - idle_since >= LINGER_NS:
                    self._thread = None  # first: a job that comes now starts another thread
                    if self._jobs.empty():
                        return
                    self._thread = threading.current_thread()
            else:
                idle_since = now
            wait = LINGER_NS if due is None else min(max(due - now, 0), LINGER_NS)
            try:
                job = self._jobs.get(timeout=wait / NS_PER_SECOND) if wait else self._jobs.get_nowait()
                idle_since = now
            except Empty:
                job = None
            if job is not None:
                _decide_here(job)
            self._ring()
            if now - checked >= LINGER_NS and self.waiters:
                checked = now
                _decide_here(self.look_after)

    def _next(self) -> int | None:
        heap = self._heap
        while heap:
            try:
                due, _, alarm = heap[0]
            except IndexError:
                return None
            if alarm.callback is not None:
                return due
            with decisions.lock:
                if heap and heap[0][2].callback is None:
                    heappop(heap)
        return None

    def _ring(self) -> None:
        heap = self._heap
        for _ in range(len(heap)):
            if not heap or heap[0][0] > monotonic_ns():
                return
            with decisions.lock:
                callback = heappop(heap)[2].callback if heap and heap[0][0] <= monotonic_ns() else None
            if callback is not None:
                _decide_here(callback)


def _decide_here(call: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # of a finalizer
        decisions.make(partial(call_back, call, "in the thread that keeps the time"))
    decisions.finish()


class Alarm:
    """A call that is due."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


keeper = Keeper()
