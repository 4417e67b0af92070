"""The view of all event loops and threads of a process as one, for ``scope="process"``.

It is never closed, never stands still, and has its own clock and a timekeeper. Knows nothing of rates.
"""

from __future__ import annotations

import os
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING

from aiorate.waiting.asyncio.view import GRAIN_NS
from aiorate.waiting.clock import TimedClock
from aiorate.waiting.loops import running_loop, starved_here, view_here
from aiorate.waiting.process.timekeeper import Timekeeper
from aiorate.waiting.turnstile import MOST

if TYPE_CHECKING:
    import threading
    from collections.abc import Awaitable, Callable

    from aiorate.waiting.clock import Clock, Handle, ReadClock
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.driver import Driver
    from aiorate.waiting.process.family import Family
    from aiorate.waiting.process.inbox import Inbox
    from aiorate.waiting.process.section import Section
    from aiorate.waiting.view import EventLoop

__all__ = ["ProcessLoop"]


class ProcessLoop:
    """An `EventLoop` whose callbacks run in the section of the family, in any thread."""

    __slots__ = (
        "__weakref__",
        "_inboxes",
        "_keeper",
        "_process",
        "_timers",
        "family",
        "grain",
        "manual",
        "monotonic",
        "read",
        "section",
        "steady",
    )

    running: bool = False
    closed: bool = False
    check_after: int = 0

    def __init__(self, family: Family, clock: Clock | None, precise: bool) -> None:
        self.family: Family = family
        self.section: Section = family.section
        self.read: ReadClock = monotonic_ns if clock is None else clock.now
        self.monotonic: bool = clock is None
        self.steady: bool = False  # several threads call
        self.grain: int = 0 if precise else GRAIN_NS
        self._timers = None if clock is None or not isinstance(clock, TimedClock) else clock
        self.manual: bool = self._timers is not None
        self._process = os.getpid()
        self._inboxes = family.inboxes
        self._keeper = family.keeper if clock is None else Timekeeper(family.section, self.read, family.name, self.clear_closed)

    @property
    def native(self) -> object:
        """The loop that runs in this thread: for this limiter they are all the same one."""
        return running_loop()

    @property
    def forked(self) -> bool:
        return self._process != os.getpid()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.section.post(callback)

    def call_at(self, reading: int, callback: Callable[[], None]) -> Handle:
        if self._timers is not None:
            return self._timers.call_at(reading, partial(self.section.run, callback))
        return self._keeper.call_at(reading, callback)

    def yield_once(self) -> Awaitable[object]:
        return self._here.yield_once()

    def starved(self) -> bool:
        """By real time: how long other tasks are kept waiting does not depend on virtual time."""
        return not self.manual and starved_here()

    def turn(self) -> Awaitable[object]:
        return self._here.turn()

    def room(self, resuming: int) -> int:
        """A loop that stands still, and has yet to resume its own tasks, must not keep other loops from theirs."""
        return MOST

    def make_driver(self, dispatcher: Dispatcher) -> Driver:
        from aiorate.waiting.process.driver import ProcessDriver

        return ProcessDriver(dispatcher, self)

    @property
    def _here(self) -> EventLoop:
        view = view_here()
        assert view is not None  # or nobody could await what it returns
        return view

    def inbox(self) -> Inbox:
        """The inbox of the loop that runs in this thread, or of the threads without one. RuntimeError in the timekeeper's own thread."""
        if self._keeper.is_current_thread and running_loop() is None:
            raise RuntimeError("acquire_blocking() inside on_event would deadlock. Call it from another thread.")
        return self._inboxes.here()

    def stop(self) -> threading.Thread | None:
        """Have the timekeeper's thread end, unless a timer is set. Returns the thread that ends, or None."""
        return self._keeper.stop()

    def clear_closed(self) -> bool:
        """Have the requests of closed loops leave the lines. True if there were any. The timekeeper calls it once a second."""
        return self._inboxes.clear_closed()
