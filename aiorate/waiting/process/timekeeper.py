"""The timekeeper: a thread that calls back when the first in line is due, whatever the event loops do meanwhile.

A thread, because no loop is fit for it: one that is closed, or stands still, would hold up the waiters of all the others.
Knows nothing of rates or of who waits.
"""

from __future__ import annotations

import threading
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
"""How long the thread stays when nobody waits any more: those who come now and then need not start another one each time."""
_CHORE_NS = 1_000_000_000


class Timekeeper:
    """At most one thread, while an alarm is set and for a second after. A daemon: it keeps no program from ending.

    All methods are called in the section, and so are the alarms and the chore, which is done at least once a second while an alarm is
    set. The thread waits outside of it, for a bell that stays rung until the thread hears it.
    """

    __slots__ = ("__weakref__", "_alarms", "_asleep_until", "_bell", "_chore", "_idle_since", "_name", "_read", "_section", "_thread")

    def __init__(self, section: Section, read: ReadClock, name: str, chore: Callable[[], object]) -> None:
        self._section = section
        self._read = read
        self._name = name
        self._chore = chore
        self._alarms: list[Alarm] = []
        self._bell: threading.Lock | None = None  # the thread's own
        self._thread: threading.Thread | None = None
        self._asleep_until: int | None = None  # the reading until which the thread sleeps at most; None: it is awake
        self._idle_since: int | None = None

    def call_at(self, reading: int, callback: Callable[[], None]) -> Alarm:
        """Call back when the clock reads so much. Raises RuntimeError if the system has no thread to give."""
        alarm = Alarm(self, reading, callback)
        self._alarms.append(alarm)
        if self._thread is None:
            try:
                self._start()
            except BaseException:
                self._alarms.remove(alarm)
                raise
        elif self._asleep_until is not None and reading < self._asleep_until:
            self._ring()
        return alarm

    def cancel(self, alarm: Alarm) -> None:
        """Forget an alarm."""
        if alarm in self._alarms:
            self._alarms.remove(alarm)

    def stop(self) -> threading.Thread | None:
        """Have the thread end, unless it is needed; returns it, if there is one that ends."""
        if self._alarms:
            return None
        thread, self._thread = self._thread, None
        self._ring()
        return thread

    def _start(self) -> None:
        bell = threading.Lock()
        bell.acquire()
        thread = threading.Thread(target=_keep, args=(ref(self), bell), name=self._name, daemon=True)
        thread.start()
        # The one that is entered here is the only one. If this was interrupted before, the thread finds that it is not, and ends.
        self._thread, self._bell = thread, bell
        self._asleep_until = self._idle_since = None

    @property
    def here(self) -> bool:
        """Whether it is this thread, which must not wait for what only it can bring."""
        return self._thread is threading.current_thread()

    def turn(self) -> float | None:
        """Do what is due; returns how many seconds the thread may sleep, None if it is to end. For the thread, and outside the section."""
        return self._section.run(self._turn)

    def _turn(self) -> float | None:
        if self._thread is not threading.current_thread():
            return None
        self._asleep_until = None
        for alarm in sorted(self._alarms, key=_reading):
            if alarm in self._alarms and alarm.reading <= self._now(alarm.reading):
                self._alarms.remove(alarm)
                call_back(alarm.callback, "in the thread that keeps the time")
        if self._alarms:
            call_back(self._chore, "in the thread that keeps the time")
        if self._alarms:
            self._idle_since = None
            first = min(self._alarms, key=_reading).reading
            wait = min(max(first - self._now(first), 0), _CHORE_NS)
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

    def _now(self, otherwise: int) -> int:
        try:
            return self._read()
        except Exception:  # a broken clock: whoever is called back finds out too, and tells those who wait
            return otherwise

    def _ring(self) -> None:
        if self._bell is not None and self._bell.locked():
            self._bell.release()


class Alarm:
    """One call that is due at a reading of the clock."""

    __slots__ = ("_keeper", "callback", "reading")

    def __init__(self, keeper: Timekeeper, reading: int, callback: Callable[[], None]) -> None:
        self._keeper = keeper
        self.reading: int = reading
        self.callback: Callable[[], None] = callback

    def cancel(self) -> None:
        self._keeper.cancel(self)


def _keep(keeper: ref[Timekeeper], bell: threading.Lock) -> None:
    """What the thread does. While it waits, it keeps nothing of the limiter alive."""
    while True:
        there = keeper()
        seconds = None if there is None else there.turn()
        del there
        if seconds is None:
            return
        bell.acquire(timeout=seconds)


def _reading(alarm: Alarm) -> int:
    return alarm.reading


_NEVER = 1 << 62
