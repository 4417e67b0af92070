"""Being inside a limiter that has a `max_concurrency`: a place first, and the permits second. The place comes back on leaving."""

from __future__ import annotations

from threading import current_thread
from typing import TYPE_CHECKING
from weakref import ref

from aiorate._loops.table import running_task
from aiorate._schedulers.places import Places
from aiorate._tree.node import Node
from aiorate._tree.refusals import ACQUIRE

if TYPE_CHECKING:
    from aiorate._loops.clock import Clock
    from aiorate._tree.refusals import MaxWaiting

__all__ = ["Inside"]


class Inside:
    """The places of one limiter, and who is in the only one. Each of the calls that enter must be followed by `leave`."""

    __slots__ = ("_places", "max_waiting", "node")

    def __init__(self, size: int, limiter: Node, clock: Clock | None) -> None:
        self._places = Places(size)
        self.node: Node = Node(self._places, 0, clock=clock)
        """The limit of places, below that of permits."""
        self.node.share(limiter)
        self.node.is_places = True
        self.max_waiting: MaxWaiting | None = None

    @property
    def size(self) -> int:
        """How many places there are."""
        return self._places.size

    def __repr__(self) -> str:
        return repr(self._places)

    async def enter(self, permits: int) -> int:
        """Wait for a place and the permits; returns the ns waited for both."""
        self._check_holder()
        node, most = self.node, self.max_waiting
        ticket, _, asked, _ = node.tree.ask(node, permits, None, most, ACQUIRE)
        waited = 0 if ticket is None else (await node.tree.wait(node, ticket, permits, asked, None, most))[0]
        self.hold()
        return waited

    def enter_blocking(self, permits: int) -> int:
        """As `enter`, in a thread without an event loop, which it blocks."""
        from aiorate._tree.threads import wait_blocking

        self._check_holder()
        waited = wait_blocking(self.node, self.node.tree, permits, None, self.max_waiting)[0]
        self.hold()
        return waited

    def take_place(self) -> bool:
        """Take a free place that nobody waits for, and no permit yet. `hold` must follow."""
        return self.node.tree.run(self._take_place)

    def _take_place(self) -> bool:
        return self.node.first() is None and self._places.take(1, 0) == 0

    def hold(self) -> None:
        """Note which task or thread holds the only place; one of several may be left by another."""
        if self._places.size == 1:
            self._places.holder = ref(running_task() or current_thread())

    def leave(self) -> None:
        """Free the place: the next request waiting for it has it at once. Never waits."""
        self._places.holder = None
        self.node.tree.post(self._free)

    def _free(self) -> None:
        self._places.give_back(1, 0)
        self.node.look_if_alive()  # not in a loop that was closed, as when its tasks are collected

    def _check_holder(self) -> None:
        """Raise RuntimeError if the running task holds the only place: it would wait for itself for ever."""
        holder, most = self._places.holder, self.max_waiting
        if holder is None or (most is not None and most.most == 0):  # nobody waits then
            return
        task = running_task()
        if task is not None and holder() is task:
            raise RuntimeError(
                "async with limiter: this task is already inside, and max_concurrency is 1, so it would wait for itself. Enter only once;"
                " for another permit inside, await limiter.acquire()."
            )
        if task is None and holder() is current_thread():
            raise RuntimeError(
                "with limiter: this thread is already inside, and max_concurrency is 1, so it would wait for itself. Enter only once;"
                " for another permit inside, call limiter.acquire_blocking()."
            )
