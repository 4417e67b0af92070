"""Being inside a limiter that has a `max_concurrency`: a place first, and the permits second. The place comes back on leaving."""

from __future__ import annotations

from threading import current_thread
from typing import TYPE_CHECKING
from weakref import ref

from aiorate._loops.table import running_task
from aiorate._schedulers.places import Places, Visit
from aiorate._tree.node import Node
from aiorate._tree.refusals import ACQUIRE

if TYPE_CHECKING:
    from aiorate._loops.loop import Clock
    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.refusals import MaxWaiting

__all__ = ["Inside"]

_VISIT = Visit(1)


class Inside:
    """The places that a limiter has, and those of the limits that it shares. Each of the calls that enter must be followed by `leave`."""

    __slots__ = ("_places", "max_waiting", "node")

    def __init__(self, size: int | None, limiter: Node, clock: Clock | None = None) -> None:
        self.node: Node = limiter
        """The limit to ask: of its own places, of which there are ``size``, or of permits, if it has none."""
        if size is not None:
            self.node = Node(Places(size), 0, clock=clock)
            self.node.share(limiter)
            self.node.is_places = True
        self.max_waiting: MaxWaiting | None = None
        self._places: list[tuple[Node, Places]] = []  # from its own up
        self.rise()

    def rise(self) -> None:
        """Take a place of each limit above, too, that has places."""
        path = [self.node]
        while (above := path[-1].above) is not None:
            path.append(above)
        self._places = [(node, node.scheduler) for node in path if isinstance(node.scheduler, Places)]
        for node in path[: path.index(self._places[-1][0])]:
            node.permits_above = _as_they_are

    async def enter(self, permits: int) -> int:
        """Wait for a place and the permits; returns the ns waited for both."""
        self._check_holder()
        node, most, permits = self.node, self.max_waiting, Visit(permits)
        ticket, _, asked, _ = node.tree.ask(node, permits, None, most, ACQUIRE)
        waited = 0 if ticket is None else (await node.tree.wait(node, ticket, permits, asked, None, most))[0]
        self.hold()
        return waited

    def enter_blocking(self, permits: int) -> int:
        """As `enter`, in a thread without an event loop, which it blocks."""
        from aiorate._tree.threads import wait_blocking

        self._check_holder()
        waited = wait_blocking(self.node, self.node.tree, Visit(permits), None, self.max_waiting)[0]
        self.hold()
        return waited

    def enter_at_once(self) -> bool:
        """Take a place and a permit if both are free now."""
        if self.node.tree.take(self.node, _VISIT) is None:
            return False
        self.hold()
        return True

    def take_place(self) -> bool:
        """Take a free place that nobody waits for, and no permit yet. `hold` must follow."""
        return self.node.tree.run(self._take_place)

    def _take_place(self) -> bool:
        free = self.node.first() is None and all(places.peek(_VISIT, 0) == 0 for _, places in self._places)
        return free and all(places.take(_VISIT, 0) == 0 for _, places in self._places)

    def hold(self) -> None:
        """Note which task or thread holds an only place; one of several may be left by another."""
        for _, places in self._places:
            if places.size == 1:
                places.holder = ref(running_task() or current_thread())

    def leave(self) -> None:
        """Free the places: the next request that waits for one has it at once. Never waits."""
        for _, places in self._places:
            places.holder = None
        self.node.tree.post(self._free)

    def _free(self) -> None:
        for node, places in self._places:
            places.give_back(_VISIT, 0)
            node.look_if_alive()  # not in a loop that was closed, as when its tasks are collected

    def _check_holder(self) -> None:
        """Raise RuntimeError if the running task holds an only place: it would wait for itself for ever."""
        most = self.max_waiting
        holder = next((places.holder for _, places in self._places if places.holder is not None), None)
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


def _as_they_are(permits: Permits) -> Permits:
    return permits
