"""The entrance of ``max_concurrency``: a request takes a place, then its permits, so that no permit is spent while it waits for a place.

Knows nothing of rates.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from aiorate.schedulers.places import Places
from aiorate.waiting.dispatcher import Dispatcher
from aiorate.waiting.loops import running_task
from aiorate.waiting.moving import find_loop
from aiorate.waiting.questions import is_closed
from aiorate.waiting.refusals import ACQUIRE

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.waiting.clock import Clock
    from aiorate.waiting.max_waiting import MaxWaiting
    from aiorate.waiting.refusals import Refusals

__all__ = ["Entrance"]


class Entrance:
    """Places for ``size`` requests at a time; ``dispatcher`` is that of the permits, to which requests go on."""

    __slots__ = ("_dispatcher", "_scheduler", "most", "places")

    def __init__(self, size: int, dispatcher: Dispatcher, clock: Clock | None) -> None:
        self._dispatcher = dispatcher
        self._scheduler = Places(size)
        self.places: Dispatcher = Dispatcher(self._scheduler, 0, False, clock, None)
        """The dispatcher of the places."""
        self.most: MaxWaiting | None = None
        """The largest number of requests that may wait, for a place or for permits."""

    async def enter(self, permits: int) -> int:
        """Wait for a place, and then for the permits; returns the ns waited for both. Cancelled or refused, the place is left again."""
        dispatcher, places, most = self._dispatcher, self.places, self.most
        find_loop(dispatcher)  # before places are asked for: it may hold on to a closed loop, and so to tasks that hold places
        if dispatcher.gate is not None and not places.closed and is_closed(dispatcher):  # a limit that it shares is: no place is needed
            return await self._take_permits(permits, most, None)
        waited = None
        if not places.meter.grab():
            ticket, _, asked = places.ask(1, None, self)
            if ticket is not None:
                waited = asked
                await places.wait(ticket, 1, asked, None, self)
                most = None  # already admitted, and still waiting
        self._hold()
        try:
            return await self._take_permits(permits, most, waited)
        except BaseException:
            self.leave()
            raise

    def try_enter(self) -> bool:
        """Take a place if one is free and nobody waits for one; never waits."""
        places = self.places
        find_loop(self._dispatcher)
        if not places.meter.grab(True):
            at, now = places.run(places.take, 1)
            if at > now:
                return False
        self._hold()
        return True

    def _hold(self) -> None:
        """Note which task holds the only place; one of several may be left by another task."""
        if self._scheduler.max_permits == 1:
            task = running_task()
            self._scheduler.holder = None if task is None else ref(task)

    def enter_blocking(self, permits: int, wait: Callable[..., tuple[int, int, int | None]]) -> int:
        """As `enter`, in a thread without an event loop; ``wait`` is `wait_blocking`. Interrupted, the place is left again."""
        dispatcher, places, most = self._dispatcher, self.places, self.most
        if dispatcher.gate is not None and not places.closed and is_closed(dispatcher):  # a limit that it shares is: no place is needed
            return wait(dispatcher, permits, None, most)[0]
        _, _, asked = wait(places, 1, None, self)
        try:  # no call in between, at which a signal handler could raise
            if self._scheduler.max_permits == 1:
                self._scheduler.holder = ref(threading.current_thread())
            waited, _, began = wait(dispatcher, permits, None, most if asked is None else None, asked)
            return waited if asked is None or began is not None else self._waited(permits, asked)
        except BaseException:
            self.leave()
            raise

    async def _take_permits(self, permits: int, most: MaxWaiting | None, since: int | None) -> int:
        """Wait for the permits; returns the ns waited since the reading ``since``, which is None if it did not wait for a place."""
        dispatcher = self._dispatcher
        if permits != 1 or not dispatcher.meter.grab():
            ticket, _, asked = dispatcher.ask(permits, None, most)
            if ticket is not None:
                waited, _, _ = await dispatcher.wait(ticket, permits, asked if since is None else since, None, most)
                if waited or since is None:
                    return waited
        return 0 if since is None else self._waited(permits, since)

    def _waited(self, permits: int, since: int) -> int:
        """Count a request that waited only for its place, and tell of it."""
        dispatcher = self._dispatcher
        waited = dispatcher.run(self._note_wait, since)
        watch = dispatcher.extras.watch
        if watch is not None:
            watch.tell(dispatcher, waited, permits, ACQUIRE, "max_concurrency")
        return waited

    def _note_wait(self, since: int) -> int:
        waited = max(self._dispatcher.timeline.read() - since, 0)
        if waited:
            self._dispatcher.counters.note(waited)
        return waited

    def check(self, permits: int, refusals: Refusals) -> None:
        """Raise LineFull, or RuntimeError if the running task holds the only place: it would wait for itself for ever."""
        self._dispatcher.look()
        if self.most is not None:
            self.most.check(permits, refusals)
        holder = self._scheduler.holder
        if holder is None:
            return
        task = running_task()
        if task is not None and holder() is task:
            raise RuntimeError(
                "async with limiter: this task is already inside, and max_concurrency is 1, so it would wait for itself. Enter only once;"
                " for another permit inside, await limiter.acquire()."
            )
        if task is None and holder() is threading.current_thread():
            raise RuntimeError(
                "with limiter: this thread is already inside, and max_concurrency is 1, so it would wait for itself. Enter only once;"
                " for another permit inside, call limiter.acquire_blocking()."
            )

    def leave(self, left: list[bool] | None = None) -> None:
        """Leave a place: the next request waiting for it has it at once. Called again with the same list, it does nothing more."""
        section = self.places.section
        if section is None:
            self._leave()
        else:
            left = [] if left is None else left
            leave = partial(self._leave_once, left)
            section.post(leave)  # later, if this finalizer interrupted a decision
            if not left:  # later, or a signal handler's error took its place
                section.post(leave)

    def _leave_once(self, left: list[bool]) -> None:
        if not left:
            self._scheduler.give_back(1, 0)
            left.append(True)
        self.places.serve_if_alive()

    def _leave(self) -> None:
        self._scheduler.give_back(1, 0)
        self.places.serve_if_alive()  # not in a loop that was closed, as when its tasks are collected
