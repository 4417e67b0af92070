"""The tree: the event loop and the timer of all limits that share each other, and how to decide where many threads ask.

A limiter that shares nothing is a tree of one, and keys without a shared limit are a tree without a root. Knows nothing of rates, and of
its limits only that they may wait in a loop that goes away.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from aiorate._loops.loop import call_back
from aiorate._loops.table import loop_of, running_loop
from aiorate._tree.agenda import Agenda

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from aiorate._loops.loop import Clock, Loop
    from aiorate._tree.agenda import Member

    P = ParamSpec("P")
    T = TypeVar("T")


_IN_USE = (
    "this limiter is in use by another running event loop. For several loops or threads, create it with scope='process'; two limiters"
    " would allow twice as much."
)


class Tree:
    """One event loop and one timer for all limits that share each other."""

    __slots__ = ("__weakref__", "_members", "agenda", "clock", "epoch", "loop", "precise", "resuming")

    threads: bool = False
    """Whether callers of several loops and threads may ask."""
    agenda: Agenda
    """When its limits are looked at, as long as it has a loop."""

    def __init__(self, clock: Clock | None = None, precise: bool = False) -> None:
        self.clock: Clock | None = clock
        self.precise: bool = precise
        self.loop: Loop | None = None
        """The loop of its callers; None: not used in a loop yet."""
        self.epoch: int = 0
        """Goes up when another loop is used: requests of before are gone."""
        self.resuming: int = 0
        """Requests that were granted and whose tasks have not gone on yet."""
        self._members: dict[ref[Member], None] | None = None  # the shared ones, and those where somebody has waited; a set is larger

    # Where many threads ask, `aiorate._tree.threads` does these otherwise.

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function that decides; where many threads ask, one at a time."""
        return call(*args, **options)

    def post(self, call: Callable[[], object]) -> None:
        """Call a function that decides, and never wait, also in a finalizer that interrupted a decision."""
        call()

    def read(self, call: Callable[[], T]) -> T:
        """Call a function that only looks, also in the middle of a decision."""
        return call()

    def change(self, call: Callable[[], object]) -> None:
        """Call a function that changes something; in a finalizer that interrupted a decision, once that is over."""
        call()

    def after(self, call: Callable[[], object]) -> None:
        """Call a function that may use the limiter, once the present decision is over."""
        call()

    # The loop.

    def here(self) -> Loop | None:
        """The loop that runs, which is used from now on; None: there was none yet. RuntimeError if it is in use in another that runs."""
        native, old = running_loop(), self.loop
        if old is not None:
            if native is old.native:
                return old
            if old.running:
                raise RuntimeError(_IN_USE)
            if native is None and not old.closed:
                return old
            self.disband(old.forked)
        self._use(None if native is None else loop_of(native, self.clock, self.precise))
        return self.loop

    def _use(self, loop: Loop | None) -> None:
        self.loop = loop
        if loop is not None:
            self.agenda = Agenda(loop)

    def disband(self, forked: bool) -> None:
        """The loop is no longer used: its requests are gone, and fail if their loop can still wake them."""
        self.epoch += 1
        self.resuming = 0
        for each in list(self._members or ()):
            if (member := each()) is not None:
                member.disband(forked)
        if not forked:
            call_back(partial(self.agenda.set, None), "as its event loop was left")

    def add(self, member: Member) -> None:
        """Others share that limit, or somebody waits there for the first time."""
        if self._members is None:
            self._members = {}
        self._members[ref(member, self._members.pop)] = None

    def forget(self, member: Member) -> None:
        """Nobody asks that limit again."""
        if self._members is not None:
            self._members.pop(ref(member), None)
