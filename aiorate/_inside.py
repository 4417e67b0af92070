"""Being inside a limiter that has a `max_concurrency`: a place first, and the permits second. The place comes back on leaving."""

from __future__ import annotations

from threading import current_thread
from typing import TYPE_CHECKING
from weakref import ref

from aiorate._loops.table import running_task
from aiorate._schedulers.places import Places, Visit
from aiorate._tree.node import Node

if TYPE_CHECKING:
    from aiorate._loops.loop import Clock

_VISIT = Visit(1)


class Inside(Node):
    """The limit of places, below that of a limiter's permits, and who is in the only one.

    Who has a place calls `hold`, and `leave_place` in the end.
    """

    __slots__ = ("_places",)

    def __init__(self, size: int, limiter: Node, clock: Clock | None) -> None:
        self._places = Places(size)
        super().__init__(self._places, 0, clock=clock)
        self.share(limiter)
        self.is_places = True

    @property
    def size(self) -> int:
        """How many places there are."""
        return self._places.size

    def __repr__(self) -> str:
        return repr(self._places)

    @staticmethod
    def visit(permits: int) -> Visit:
        """The permits of a request that takes a place, too."""
        return _VISIT if permits == 1 else Visit(permits)

    def take_place(self) -> bool:
        """Take a free place that nobody waits for, and no permit yet."""
        return self.tree.run(lambda: self.first() is None and self._places.take(_VISIT, 0) == 0)

    def hold(self) -> None:
        """Note which task or thread holds the only place; one of several may be left by another."""
        if self.size == 1:
            self._places.holder = ref(running_task() or current_thread())

    def leave_place(self) -> None:
        """Free the place: the next request waiting for it has it at once. Never waits."""
        self._places.holder = None
        self.tree.post(self._free)

    def _free(self) -> None:
        self._places.give_back(_VISIT, 0)
        self.look_if_alive()  # not in a loop that was closed, as when its tasks are collected

    def check_holder(self) -> None:
        """Raise RuntimeError if the running task or thread holds the only place: it would wait for itself for ever."""
        holder = self._places.holder
        task = None if holder is None else running_task()
        if holder is not None and holder() is (task or current_thread()):
            what, call = ("task", "await limiter.acquire()") if task else ("thread", "call limiter.acquire_blocking()")
            raise RuntimeError(
                f"with limiter: this {what} is already inside, and max_concurrency is 1, so it would wait for itself. Enter only once;"
                f" for another permit inside, {call}."
            )
