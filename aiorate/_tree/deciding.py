"""Decisions of a whole process, one at a time: the lock, and the thread ``aiorate``, which decides for the main one and keeps the time.

Python runs signal handlers in the main thread, between any two steps. So any thread decides under one lock, but the main one: it hands its
request to the thread that has the timers, a daemon named ``aiorate``. A coroutine is told by its loop, and a plain call waits some 50 us
for the answer. So nothing interrupts a decision but a finalizer, and what that does is handed over too. Knows nothing of what is decided.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING

from aiorate._loops.alarms import Alarms
from aiorate._loops.loop import call_back
from aiorate._meter import FAR, LoopCheck
from aiorate._rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, TypeVar

    from aiorate._loops.alarms import Alarm

    P = ParamSpec("P")
    T = TypeVar("T")


LINGER_NS = NS_PER_SECOND  # how long the thread stays when it has nothing to do, and the longest that it sleeps


class Decisions:
    """The lock, the thread, and what comes before and after a decision."""

    __slots__ = ("_alarms", "_bell", "_thread", "after", "check", "lock", "main", "soon", "tidy", "waiting")

    def __init__(self) -> None:
        self.tidy: Callable[[], object] = int  # called as each decision begins; with requests that wait, each second at least
        self.check: LoopCheck = LoopCheck()  # shuts all meters during a decision: a grab takes no lock, and would be lost
        self.after: deque[Callable[[], object]] = deque()  # calls for the end of the decision: they may use limiters
        self.begin_again()

    def begin_again(self) -> None:
        """In no decision and without a thread, as in a child process after a fork."""
        self.after.clear()
        self.check.try_until = FAR
        self.lock: Any = threading.RLock()  # which knows its owner: a finalizer may ask at any step of its thread
        self.main: int | None = threading.main_thread().ident
        self.soon: deque[Callable[[], object]] = deque()  # calls that the next decision begins with, whosever it is
        self.waiting: dict[Any, dict[Any, None]] = {}  # requests whose owners have not gone on, by loops; changed in decisions
        self._alarms = Alarms()
        self._bell = threading.Lock()  # released, it wakes the thread; unlike a condition's, that may interrupt itself
        self._thread: threading.Thread | None = None

    # For callers.

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function that decides, and return its result, for which the main thread waits."""
        decision = partial(call, *args, **options)
        if not self._hands_over():
            if self.deciding:
                raise RuntimeError("called from a finalizer or a strategy in the middle of a decision. Call it from ordinary code.")
            self.lock.acquire()
            return self._decide(decision)
        answer: SimpleQueue[Any] = SimpleQueue()

        def decide() -> None:
            try:
                answer.put((decision(),))
            except BaseException as error:
                answer.put((None, error))

        self.post(decide)
        result, *errors = answer.get()
        if errors:
            raise errors.pop()  # not kept: it would hold its own traceback
        return result  # type: ignore[no-any-return]

    def post(self, call: Callable[[], object]) -> None:
        """Have a function called that decides: now, or by the next decision, which the thread makes if nobody else does.

        Never waits: finalizers and signal handlers may use it. All calls keep their order.
        """
        if not self._hands_over() and not self.deciding and self.lock.acquire(blocking=False):
            self._decide(partial(call_back, call, "in a decision"))
        else:
            self.soon.append(call)
            self._ring()

    def attend(self) -> None:
        """Have the thread run, which looks around each second at least. RuntimeError if none can start."""
        if self._thread is None or self._thread.ident is None:  # asked again while one is being started, another one takes its place
            thread = self._thread = threading.Thread(target=self._keep, name="aiorate", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._thread = None
                raise

    def _hands_over(self) -> bool:
        """Whether the thread decides for this one, the main one: not where none can run, as when the process ends."""
        if get_ident() == self.main and not sys.is_finalizing():
            with suppress(RuntimeError):  # none can start, as in a function of atexit
                self.attend()
                return True
        return False

    def call_at(self, reading: int, callback: Callable[[], object]) -> Alarm:
        """Call back, in a decision, when the monotonic clock reads that. Called in a decision."""
        self.attend()
        first, alarm = self._alarms.first, self._alarms.add(reading, callback)
        if not self.in_thread and (first is None or reading < first):
            self._ring()
        return alarm

    @property
    def deciding(self) -> bool:
        """Whether this thread is in the middle of a decision."""
        return self.lock._is_owned()  # type: ignore[no-any-return]

    @property
    def in_thread(self) -> bool:
        """Whether this is the thread itself, which must never wait for a limiter."""
        return self._thread is threading.current_thread()

    def _decide(self, call: Callable[[], T]) -> T:
        """Make a decision under the lock, which is held by now."""
        self.check.try_until = 0
        try:
            while self.soon:
                call_back(self.soon.popleft(), "before a decision")
            self.tidy()
            return call()
        finally:
            self.check.try_until = FAR
            self.lock.release()
            while self.after:
                with suppress(IndexError):  # another thread took it
                    call_back(self.after.popleft(), "after a decision")

    # The thread.

    def _ring(self) -> None:
        try:  # noqa: SIM105  # suppress() would cost a twentieth of a decision
            self._bell.release()
        except RuntimeError:  # rung already
            pass
        self.attend()  # it may have ended meanwhile

    def _keep(self) -> None:
        me, wait = threading.current_thread(), LINGER_NS
        while self._thread is me:
            rung = self._bell.acquire(timeout=wait / NS_PER_SECOND)
            self.lock.acquire()
            with suppress(BaseException):  # of a callback: without this thread, all others would wait for ever
                self._decide(partial(call_back, self._alarms.call_due, "in the thread that keeps the time"))
            with self.lock:  # what followed the decision may have set an alarm
                first = self._alarms.first
                if first is None and not (rung or self.waiting):
                    self._thread = None  # first: whoever posts something now starts another thread
                    if not self.soon:
                        return
                    self._thread = me
            wait = LINGER_NS if first is None else min(max(first - monotonic_ns(), 0), LINGER_NS)


decisions = Decisions()
