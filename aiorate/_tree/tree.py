"""The tree: what the limits that share each other have in common: the event loop, the timer, and when each has to be looked at.

A limiter that shares nothing is a tree of one, and keys without a shared limit are a tree without a root. Knows nothing of rates.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING
from weakref import ref

from aiorate._loops.loop import call_back
from aiorate._loops.table import loop_of, running_loop
from aiorate._loops.timer import Timer
from aiorate._loops.turn import MOST
from aiorate._tree.line import outcome_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import ParamSpec, TypeVar

    from aiorate._loops.clock import Clock
    from aiorate._loops.loop import Loop
    from aiorate._tree.line import Taken, Ticket
    from aiorate._tree.max_waiting import Admission
    from aiorate._tree.node import Answer, Node
    from aiorate._tree.refusals import Refusals

    P = ParamSpec("P")
    T = TypeVar("T")

__all__ = ["Tree"]

_SMALL = 32
_IN_USE = (
    "this limiter is in use by another running event loop. For several loops or threads, create it with scope='process'; two limiters"
    " would allow twice as much."
)


class Tree:
    """One event loop and one timer for all limits that share each other."""

    __slots__ = (
        "__weakref__",
        "_armed",
        "_deadlines",
        "_gone",
        "_heap",
        "_most",
        "_nodes",
        "_number",
        "_timer",
        "clock",
        "epoch",
        "loop",
        "precise",
        "resuming",
    )

    threads: bool = False
    """Whether callers of several loops and threads may ask."""

    def __init__(self, clock: Clock | None = None, precise: bool = False) -> None:
        self.clock: Clock | None = clock
        self.precise: bool = precise
        self.loop: Loop | None = None
        """The loop of its callers; None: not used in a loop yet."""
        self.epoch: int = 0
        """Goes up when another loop is used: requests of before are gone."""
        self.resuming: int = 0
        """Requests that were granted and whose tasks have not gone on yet."""
        self._nodes: dict[ref[Node], None] = {}  # the shared limits, and those where somebody has waited; a set is larger
        self._heap: list[tuple[int, int, Node]] = []
        self._armed = 0  # limits with a reading at which to look at them
        self._deadlines: list[tuple[int, int, int, Node, Ticket, int, int, Refusals]] = []
        self._gone: dict[Ticket, None] = {}  # of requests with a deadline that left undecided
        self._most = _SMALL  # deadlines before those of decided requests are removed
        self._number = 0
        self._timer: Timer | None = None

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function that decides; where many threads ask, one at a time."""
        return call(*args, **options)

    def post(self, call: Callable[[], object]) -> None:
        """Call a function that decides, and never wait, also in a finalizer that interrupted a decision."""
        call()

    def look(self, call: Callable[[], T]) -> T:
        """Call a function that only looks, also in the middle of a decision."""
        return call()

    def change(self, call: Callable[[], object]) -> None:
        """Call a function that changes something; in a finalizer that interrupted a decision, once that is over."""
        call()

    def after(self, call: Callable[[], object]) -> None:
        """Call a function that may use the limiter, once the present decision is over."""
        call()

    def ask(
        self,
        node: Node,
        permits: int,
        limit: int | None,
        most: Admission | None,
        refusals: Refusals,
        since: int | None = None,
        turned: bool = False,
        decide: Callable[..., Answer] | None = None,
    ) -> Answer:
        """`Node.decide`, or ``decide`` in its place, for a caller of this thread."""
        return (decide or node.decide)(permits, limit, most, refusals, since, turned)

    def wait(self, node: Node, ticket: Ticket) -> Awaitable[object]:
        """Return what a waiter awaits, again and again until its ticket is done."""
        return node.waker.wait(ticket)

    def leave(self, node: Node, ticket: Ticket, permits: int, epoch: int) -> None:
        """The task of a request was cancelled. Never raises, and never waits."""
        node.leave(ticket, permits, epoch)

    def go_on(self, node: Node, ticket: Ticket, taken: Taken, epoch: int, waited: int) -> None:
        """The task of a granted request goes on."""
        node.go_on(taken, epoch, waited)

    def release(self, ticket: Ticket) -> None:
        """The task of a request that failed goes on."""

    # The timer.

    def wake(self, node: Node, reading: int | None) -> None:
        """Look at the limit when the clock reads that; None: not before something changes."""
        before = node.wake_at
        if reading == before:
            return
        node.wake_at = reading
        heap = self._heap
        self._armed += (reading is not None) - (before is not None)
        if reading is not None:
            self._number += 1
            heappush(heap, (reading, self._number, node))
            if len(heap) > 2 * self._armed + _SMALL:
                heap[:] = [entry for entry in heap if entry[2].wake_at == entry[0]]
                heapify(heap)
        self._aim()

    def _aim(self) -> None:
        heap, deadlines = self._heap, self._deadlines
        while heap and heap[0][2].wake_at != heap[0][0]:
            heappop(heap)
        while deadlines and not self._waits(deadlines[0][4]):
            heappop(deadlines)
        if len(deadlines) > _SMALL:
            self._most -= 1
            if len(deadlines) > self._most:
                self._tidy()
        elif not deadlines and self._gone:
            self._gone.clear()
        first = heap[0][0] if heap else None
        if deadlines and (first is None or deadlines[0][0] < first):
            first = deadlines[0][0]
        if self._timer is not None:
            self._timer.set(first)

    def ring(self) -> None:
        """Look at the limits that are due, and fail the requests whose time is over."""
        assert self.loop is not None
        heap = self._heap
        try:
            reading = self.loop.read()
        except Exception as error:  # a broken clock: nobody hangs
            for node in self._alive():
                node.fail(error)
            return
        due: list[Node] = []  # a limit that wants to be looked at again waits for the loop to turn, even if the clock stands still
        while heap and heap[0][0] <= reading:
            at, _, node = heappop(heap)
            if node.wake_at == at:
                node.wake_at = None
                self._armed -= 1
                due.append(node)
        for node in due:
            node.ring()
        if self._deadlines:
            self._expire(reading)
        self._aim()

    # Requests that wait for a limited time.

    def limit_wait(self, node: Node, ticket: Ticket, permits: int, asked: int, limit: int, refusals: Refusals) -> None:
        """Have a request in line fail ``limit`` ns after the reading ``asked``."""
        heap = self._deadlines
        self._number += 1  # of requests with the same deadline, the first to join gives up first
        heappush(heap, (asked + limit, self._number, self.epoch, node, ticket, permits, limit, refusals))
        self._aim()

    def _tidy(self) -> None:
        """Remove decided requests with late deadlines, which would pile up behind the first."""
        self._deadlines[:] = [entry for entry in self._deadlines if self._waits(entry[4])]
        heapify(self._deadlines)
        self._gone = {entry[4]: None for entry in self._deadlines if entry[4] in self._gone}
        self._most = 2 * len(self._deadlines) + _SMALL

    def left(self, ticket: Ticket) -> None:
        """A request left undecided, perhaps one with a deadline."""
        if self._deadlines:
            self._gone[ticket] = None
            self._aim()

    def _waits(self, ticket: Ticket) -> bool:
        return not ticket.done() and ticket not in self._gone and outcome_of(ticket) is None

    def _expire(self, reading: int) -> None:
        heap = self._deadlines
        over: list[tuple[Node, Ticket, int, int, Refusals]] = []
        loop = self.loop
        while heap and heap[0][0] <= reading and (len(over) < MOST or (loop is not None and loop.manual)):
            _, _, _, node, ticket, permits, limit, refusals = heappop(heap)
            if self._waits(ticket):
                over.append((node, ticket, permits, limit, refusals))
        nodes = {id(node): node for node, *_ in over}
        for node in nodes.values():
            node.look_from_top()
        for node in nodes.values():
            node.expire([entry[1:] for entry in over if entry[0] is node and self._waits(entry[1])])

    # The loop.

    def here(self, node: Node) -> Loop | None:
        """The loop that runs, which is used from now on. RuntimeError if the tree is in use in another one that runs."""
        native, old = running_loop(), self.loop
        if old is None:
            if native is None:
                node.timeline.begun = True
                return None
        elif native is old.native:
            node.follow(old.read)
            return old
        elif old.running:
            raise RuntimeError(_IN_USE)
        elif native is None and not old.closed:
            return old
        self._move(native)
        if self.loop is not None:
            node.follow(self.loop.read)
        else:
            node.timeline.begun = True
        return self.loop

    def _move(self, native: object | None) -> None:
        """Serve the callers of that loop from now on."""
        old = self.loop
        if old is not None:
            self.disband(old.forked)
        self.loop = None if native is None else loop_of(native, self.clock, self.precise)
        self._timer = None if self.loop is None else Timer(self.loop, self.ring)

    def disband(self, forked: bool) -> None:
        """The loop is no longer used: its requests are gone, and fail if their loop can still wake them."""
        self.epoch += 1
        self.resuming = 0
        timer, self._timer = self._timer, None
        nodes = [*self._alive(), *(node for _, _, node in self._heap)]
        self._heap, self._deadlines, self._armed = [], [], 0
        for node in nodes:
            node.disband(forked)
        if timer is not None and not forked:
            call_back(lambda: timer.set(None), "as its event loop was left")

    def add(self, node: Node) -> None:
        """Others share that limit, or somebody waits there for the first time."""
        self._nodes[ref(node, self._nodes.pop)] = None

    def _alive(self) -> list[Node]:
        return [node for each in list(self._nodes) if (node := each()) is not None]

    def forget(self, node: Node) -> None:
        """Nobody asks that limit again."""
        self._nodes.pop(ref(node), None)
        if node.wake_at is not None:
            self.wake(node, None)
