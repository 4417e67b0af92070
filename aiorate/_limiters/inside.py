"""Being inside a limiter that has a `max_concurrency`: a place first, and the permits second. The place comes back on leaving."""

from __future__ import annotations

from threading import current_thread
from typing import TYPE_CHECKING
from weakref import ref

from aiorate._loops.table import running_task
from aiorate._schedulers.places import Places, Visit

if TYPE_CHECKING:
    from aiorate._tree.limit import Limit

_VISIT = Visit(1)


class Inside:
    """The places of a limiter, whose limit is below that of the permits, and who is in the only one.

    Who has a place calls `hold`, and `leave_place` in the end.
    """

    __slots__ = ("node", "places")

    def __init__(self, size: int, limit: Limit) -> None:
        self.places: Places = Places(size)
        self.node: Limit = type(limit)(self.places, 0, limit.tree)
        self.node.share(limit)
        self.node.is_places = True

    def take_place(self) -> bool:
        """Take a free place that nobody waits for, and no permit yet."""
        return self.node.tree.run(lambda: self.node.first() is None and self.places.take(_VISIT, 0) == 0)

    def hold(self) -> None:
        """Note which task or thread holds the only place; one of several may be left by another."""
        if self.places.size == 1:
            self.places.holder = ref(running_task() or current_thread())

    def leave_place(self) -> None:
        """Free the place: the next request waiting for it has it at once. Never waits."""
        self.places.holder = None
        self.node.tree.post(self._free)

    def _free(self) -> None:
        self.places.give_back(_VISIT, 0)
        self.node.look_if_alive()  # not in a loop that was closed, as when its tasks are collected

    def check_holder(self) -> None:
        """Raise RuntimeError if the running task or thread holds the only place: it would wait for itself for ever."""
        holder = self.places.holder
        task = None if holder is None else running_task()
        if holder is not None and holder() is (task or current_thread()):
            what, call = ("task", "await limiter.acquire()") if task else ("thread", "call limiter.acquire_blocking()")
            raise RuntimeError(
                f"with limiter: this {what} is already inside, and max_concurrency is 1, so it would wait for itself. Enter only once;"
                f" for another permit inside, {call}."
            )
