"""Decisions of a whole process, one at a time: the lock, and the thread ``aiorate``, which decides for the main one and keeps the time.

Python runs signal handlers in the main thread, between any two steps. So any thread decides under one lock, but the main one: it hands
its request to the thread that has the timers, a daemon named ``aiorate``. A coroutine is told by its loop, and a plain call waits some
50 us for the answer. Nothing can interrupt a decision then, and its code is that of one loop. A finalizer may run in the middle of a decision of its own thread, so what it does is
handed over too. The lock is never held across a wait. Knows nothing of what is decided.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextlib import suppress
from functools import partial
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
    """The lock, the thread, and what comes before and after a decision.

    During one all meters are shut: a grab takes no lock, and would be lost.
    """

    __slots__ = ("_alarms", "_bell", "_starting", "_thread", "after", "check", "lock", "main", "soon", "tidy", "waiting")

    def __init__(self) -> None:
        self.tidy: Callable[[], object] = int
        """Called as each decision begins; with requests that wait, each second at least."""
        self.check: LoopCheck = LoopCheck()
        """Shuts the meters."""
        self.begin_again()

    def begin_again(self) -> None:
        """In no decision and without a thread, as in a child process after a fork."""
        self.check.try_until = FAR
        self.lock: Any = threading.RLock()  # which knows its owner: a finalizer may ask at any step of its thread
        self.main: int | None = threading.main_thread().ident
        self.soon: deque[Callable[[], object]] = deque()
        """Calls that the next decision begins with, whosever it is."""
        self.after: deque[Callable[[], object]] = deque()
        """Calls for the end of the decision: they may use limiters."""
        self.waiting: dict[Any, dict[Any, None]] = {}
        """The requests whose owners have not gone on, by the loops of these; changed in decisions."""
        self._alarms = Alarms()
        self._bell = threading.Lock()  # released, it wakes the thread; unlike a condition's, that may interrupt itself
        self._thread: threading.Thread | None = None
        self._starting = 0  # the thread that starts it

    # For callers.

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function that decides, and return its result."""
        if get_ident() == self.main and not sys.is_finalizing():
            return self._hand_over(partial(call, *args, **options))
        if self.deciding:
            raise RuntimeError("called from a finalizer or a strategy in the middle of a decision. Call it from ordinary code.")
        self.lock.acquire()
        return self._decide(partial(call, *args, **options))

    def post(self, call: Callable[[], object]) -> None:
        """Have a function called that decides, and never wait: finalizers may use it. All calls keep their order."""
        if get_ident() == self.main or self.deciding or not self.lock.acquire(blocking=False):
            self.hand(call)
        else:
            self._decide(partial(call_back, call, "in a decision"))

    def settle(self) -> None:
        """Return once the thread, if there is one, has done what was handed to it. For tests."""
        if self._thread is not None:
            self._hand_over(int)

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

    # By the thread.

    def hand(self, call: Callable[[], object]) -> None:
        """Have the next decision begin with a call, and the thread make one if nobody else does. Never waits."""
        self.attend()
        self.soon.append(call)
        self._ring()

    def attend(self) -> None:
        """Have the thread run, which looks around each second at least."""
        if self._thread is None:
            self._start()

    def _ring(self) -> None:
        try:  # noqa: SIM105  # suppress() would cost a twentieth of a decision
            self._bell.release()
        except RuntimeError:  # rung already
            pass
        self.attend()  # it may have ended meanwhile

    def _hand_over(self, call: Callable[[], T]) -> T:
        """Have another thread decide, and wait for that."""
        if self._starting == get_ident():
            raise RuntimeError("called from a finalizer or a signal handler while a thread is being started. Call it from ordinary code.")
        answer: list[Any] = []
        done = threading.Lock()
        done.acquire()

        def decide() -> None:
            try:
                answer.append(call())
            except BaseException as error:
                answer.extend((None, error))
            done.release()

        self.hand(decide)
        done.acquire()
        if len(answer) == 1:
            return answer[0]  # type: ignore[no-any-return]
        raise answer.pop()  # not kept: it would hold its own traceback

    def call_at(self, reading: int, callback: Callable[[], object]) -> Alarm:
        """Call back, in a decision, when the monotonic clock reads that. Called in a decision."""
        self.attend()
        first, alarm = self._alarms.first, self._alarms.add(reading, callback)
        if not self.in_thread and (first is None or reading < first):
            self._ring()
        return alarm

    def _start(self) -> None:
        if not self._starting and not sys.is_finalizing():  # when a new thread would never run, and nobody waits any more
            self._starting = get_ident()
            try:
                thread = self._thread = threading.Thread(target=self._keep, name="aiorate", daemon=True)
                thread.start()
            except BaseException:
                self._thread = None
                raise
            finally:
                self._starting = 0

    def _keep(self) -> None:
        me, wait = threading.current_thread(), 0.0
        while self._thread is me:
            rung = self._bell.acquire(timeout=wait)
            self.lock.acquire()
            with suppress(SystemExit):  # of a callback: without this thread, all others would wait for ever
                self._decide(self._call_due)
            with self.lock:  # what followed the decision may have set an alarm
                first = self._alarms.first
                if first is None and not (rung or self.waiting or wait < LINGER_NS / NS_PER_SECOND):
                    self._thread = None  # first: whoever hands something over now starts another thread
                    if not self.soon:
                        return
                    self._thread = me
            wait = LINGER_NS if first is None else min(max(first - monotonic_ns(), 0), LINGER_NS)
            wait /= NS_PER_SECOND

    def _call_due(self) -> None:
        """Call back once, if that is due: other threads come in between."""
        first = self._alarms.first
        if first is not None and first <= monotonic_ns():
            call_back(self._alarms.pop(), "in the thread that keeps the time")


decisions = Decisions()
