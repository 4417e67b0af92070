"""Which task holds the only place of ``max_concurrency=1``: one that waits for its own place would wait for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from aiorate.schedulers.places import Places
from aiorate.waiting.loops import running_task

if TYPE_CHECKING:
    from aiorate.waiting.dispatcher import Dispatcher

__all__ = ["hold_place", "refuse_holder"]


def hold_place(places: Dispatcher) -> None:
    """If there is only one place, note that the running task has it. One of several may be left by another task."""
    scheduler = places.scheduler
    if isinstance(scheduler, Places) and scheduler.max_permits == 1:
        task = running_task()
        scheduler.holder = None if task is None else ref(task)


def refuse_holder(places: Dispatcher) -> None:
    """Raise RuntimeError if the running task holds the place that it would wait for."""
    scheduler = places.scheduler
    if not isinstance(scheduler, Places) or scheduler.holder is None:
        return
    task = running_task()
    if task is not None and scheduler.holder() is task:
        raise RuntimeError(
            "async with limiter: this task is already inside, and max_concurrency is 1, so it would wait for itself. Enter only once;"
            " for another permit inside, await limiter.acquire()."
        )
