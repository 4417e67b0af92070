"""Which task holds the only place of ``max_concurrency=1``: one that waits for its own place would wait for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from aiorate.schedulers.places import Places
from aiorate.waiting.loops import running_task

if TYPE_CHECKING:
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.max_waiting import MaxWaiting
    from aiorate.waiting.refusals import Refusals

__all__ = ["Entrance", "hold_place"]


def hold_place(places: Dispatcher) -> None:
    """If there is only one place, note that the running task has it. One of several may be left by another task."""
    scheduler = places.scheduler
    if isinstance(scheduler, Places) and scheduler.max_permits == 1:
        task = running_task()
        scheduler.holder = None if task is None else ref(task)


class Entrance:
    """What a request for a place has to pass before it may wait: the largest number of waiting requests, if there is one.

    ``dispatcher`` is that of the permits, to which requests go on from ``places``.
    """

    __slots__ = ("_dispatcher", "_most", "_places")

    def __init__(self, places: Dispatcher, dispatcher: Dispatcher, most: MaxWaiting | None) -> None:
        self._places = places
        self._dispatcher = dispatcher
        self._most = most

    def check(self, permits: int, refusals: Refusals) -> None:
        """Raise LineFull, or RuntimeError if the running task holds the place that it would wait for."""
        self._dispatcher.look()  # it may hold on to a closed loop, and so to tasks that hold places
        if self._most is not None:
            self._most.check(permits, refusals)
        scheduler = self._places.scheduler
        if not isinstance(scheduler, Places) or scheduler.holder is None:
            return
        task = running_task()
        if task is not None and scheduler.holder() is task:
            raise RuntimeError(
                "async with limiter: this task is already inside, and max_concurrency is 1, so it would wait for itself. Enter only once;"
                " for another permit inside, await limiter.acquire()."
            )
