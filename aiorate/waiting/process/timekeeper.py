"""The timekeeper: a thread that calls back when the first in line is due, whatever the event loops do meanwhile.

A thread, because a loop that is closed or stands still would delay the waiters of all other loops.
Knows nothing of rates or of requests.
"""

from __future__ import annotations

import threading
from heapq import heapify, heappop, heappush
from itertools import count
from time import monotonic_ns
from typing import TYPE_CHECKING
from weakref import ref

from aiorate.rate import NS_PER_SECOND
from aiorate.waiting.callback import call_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.waiting.clock import ReadClock
    from aiorate.waiting.process.section import Section

__all__ = ["LINGER_NS", "Timekeeper"]

LINGER_NS = 1_000_000_000
"""How long the thread stays after the last alarm, so that occasional waiters need not start a thread each time."""
_CHECK_NS = 1_000_000_000
_SMALL = 32
_PORTION = 256  # alarms called at a time: other threads may decide in between


class Timekeeper:
    """At most one thread, while an alarm is set and for a second after. A daemon: it does not keep the program from ending.

    All methods are called in the section, and so are the alarms and ``check``, which is called at least once a second while an alarm
    is set. The thread sleeps outside the section, on a lock: releasing the lock wakes the thread, also if it is not asleep yet.
    """

    __slots__ = (
        "__weakref__",
        "_alarms",
        "_asleep_until",
        "_check",
        "_heap",
        "_idle_since",
        "_name",
        "_numbers",
        "_read",
        "_section",
        "_sleep",
        "_thread",
    )

    def __init__(self, section: Section, read: ReadClock, name: str, check: Callable[[], object]) -> None:
        self._section = section
        self._read = read
        self._name = name
        self._check = check
        self._alarms: set[Alarm] = set()  # those that are set
        self._heap: list[tuple[int, int, Alarm]] = []  # the same by their reading, with some that were cancelled
        self._numbers = count()
        self._sleep: threading.Lock | None = None  # the lock on which the thread sleeps
        self._thread: threading.Thread | None = None
        self._asleep_until: int | None = None  # the reading until which the thread sleeps at most; None: it is awake
        self._idle_since: int | None = None

    def call_at(self, reading: int, callback: Callable[[], None]) -> Alarm:
        """Call back when the clock reads ``reading`` ns. Raises RuntimeError if the system can start no thread."""
        alarm = Alarm(self, callback)
        heappush(self._heap, (reading, next(self._numbers), alarm))
        self._alarms.add(alarm)
        if self._thread is None:
            try:
                self._start()
            except BaseException:
                self.cancel(alarm)
                raise
        elif self._asleep_until is not None and reading < self._asleep_until:
            self._wake()
        return alarm

    def cancel(self, alarm: Alarm) -> None:
        """Forget an alarm, and what it would have called."""
        self._alarms.discard(alarm)
        alarm.callback = _nothing
        heap = self._heap
        if len(heap) > 2 * len(self._alarms) + _SMALL:
            heap[:] = [entry for entry in heap if entry[2] in self._alarms]
            heapify(heap)

    def stop(self) -> threading.Thread | None:
        """Have the thread end, unless an alarm is set. Returns the thread that ends, or None."""
        if self._alarms:
            return None
        thread, self._thread = self._thread, None
        self._wake()
        return thread

    def _start(self) -> None:
        sleep = threading.Lock()
        sleep.acquire()
        thread = threading.Thread(target=_keep, args=(ref(self), sleep), name=self._name, daemon=True)
        thread.start()
        # Only the thread that is entered here goes on. If an interrupt comes before this, the thread finds that it is another, and ends.
        self._thread, self._sleep = thread, sleep
        self._asleep_until = self._idle_since = None

    @property
    def is_current_thread(self) -> bool:
        """Whether this is the timekeeper's own thread, which must never block on the limiter."""
        return self._thread is threading.current_thread()

    def run_due(self) -> float | None:
        """Call the alarms that are due. Returns how many seconds the thread may sleep, or None to end it. Called outside the section."""
        return self._section.run(self._run_due)

    def _run_due(self) -> float | None:
        if self._thread is not threading.current_thread():
            return None
        self._asleep_until = None
        for alarm in self._take_due():
            if alarm in self._alarms:  # else one before it cancelled it
                self._alarms.discard(alarm)
                call_back(alarm.callback, "in the thread that keeps the time")
        if self._alarms:
            call_back(self._check, "in the thread that keeps the time")
        while self._heap and self._heap[0][2] not in self._alarms:
            heappop(self._heap)
        if self._heap:
            self._idle_since = None
            first = self._heap[0][0]
            wait = min(max(first - self._now(first), 0), _CHECK_NS)
            self._asleep_until = first
            return wait / NS_PER_SECOND
        now = monotonic_ns()
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since >= LINGER_NS:
            self._thread = None
            return None
        self._asleep_until = _NEVER
        return LINGER_NS / NS_PER_SECOND

    def _take_due(self) -> list[Alarm]:
        """Remove those that are due from the heap. One that is set meanwhile is called in the next round."""
        now, due = self._now(_NEVER), list[Alarm]()
        while self._heap and self._heap[0][0] <= now and len(due) < _PORTION:
            due.append(heappop(self._heap)[2])
        return due

    def _now(self, otherwise: int) -> int:
        try:
            return self._read()
        except Exception:  # a broken clock: the dispatcher finds out too, and fails the requests in line
            return otherwise

    def _wake(self) -> None:
        if self._sleep is not None and self._sleep.locked():
            self._sleep.release()


class Alarm:
    """A call that is due at a reading of the clock."""

    __slots__ = ("_keeper", "callback")

    def __init__(self, keeper: Timekeeper, callback: Callable[[], None]) -> None:
        self._keeper = keeper
        self.callback: Callable[[], None] = callback

    def cancel(self) -> None:
        self._keeper.cancel(self)


def _keep(keeper: ref[Timekeeper], sleep: threading.Lock) -> None:
    """Runs in the thread. While it sleeps, it keeps nothing of the limiter alive."""
    while True:
        there = keeper()
        seconds = None if there is None else there.run_due()
        del there
        if seconds is None:
            return
        sleep.acquire(timeout=seconds)


def _nothing() -> None:
    """Called in place of an alarm that was cancelled."""


_NEVER = 1 << 62
