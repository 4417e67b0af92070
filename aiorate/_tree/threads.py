"""All threads and event loops of a process as one, for ``scope="process"``: a tree whose callers ask in `aiorate._tree.deciding`.

Knows nothing of rates.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from aiorate._loops.loop import Loop, OutcomeTicket, call_back
from aiorate._loops.table import loop_here, running_loop, starved_here
from aiorate._meter import COMPILED
from aiorate._tree.deciding import decisions
from aiorate._tree.limit import Limit
from aiorate._tree.node import undo
from aiorate._tree.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import ParamSpec, TypeVar

    from aiorate._loops.loop import Clock, Handle, OneLoop, Ticket
    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.limit import Answer
    from aiorate._tree.node import Outcome, Taken

    P = ParamSpec("P")
    T = TypeVar("T")


_LOOK_AGAIN = 1.0  # seconds: on Windows, Ctrl-C is not heeded before
_ONE = 1  # compared by identity


class ThreadTicket(OutcomeTicket):
    """A request of any thread. It has the outcome as soon as that is decided; its owner is woken later.

    Left by an error, as an interrupt, a block of the ticket undoes it.
    """

    __slots__ = ("limit", "loop")

    def __init__(self, limit: Limit, permits: Permits, loop: OneLoop | None = None, signal: Any = None) -> None:
        self.outcome = None
        self.signal = signal  # of its loop; a lock in a thread without one
        self.left = False  # true also once its grant has gone on
        self.limit: Limit = limit
        self.wanted = permits
        self.loop: OneLoop | None = loop  # of its owner; None: a thread without one

    def __enter__(self) -> ThreadTicket:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and error is not self.outcome:
            decisions.post(self.undo)

    def set_result(self, outcome: Outcome, /) -> None:
        self.outcome = outcome
        if isinstance(outcome, BaseException):
            _remove(self)  # there is nothing to undo
        if self.loop is None:
            decisions.after.append(self.signal.release)
        elif self.loop.hand(self.signal):
            decisions.after.append(self.loop.send)

    def take(self) -> tuple[int, Taken] | None:
        """Take the permits, if that can be done at once. In a decision, as the next two."""
        found = self.outcome = self.limit.take(self.wanted)
        return found

    def ask(self, most_ns: int | None, since: int | None) -> None:
        """What `Limit.ask` does."""
        decisions.waiting.setdefault(self.loop, {})[self] = None
        try:
            decisions.attend()
            found = self.limit.decide(self.wanted, most_ns, since, self)
        except BaseException as error:  # a coroutine waits for it
            self.set_result(error)
            return
        if isinstance(found, tuple):
            self.asked, self.epoch = self.limit.tree.now(), self.limit.tree.epoch
            self.limit._resuming(found[1], 1)
            self.set_result((*found, self.asked, None))

    def undo(self) -> None:
        """Undo it, however far it got."""
        self.left = True
        if _remove(self):
            Limit.give_up(self.limit, self)
        elif self.outcome is not None and not isinstance(self.outcome, BaseException):  # its grant stood already
            undo(self.outcome[1])
        self.outcome = None  # so that this is done once


def _remove(ticket: ThreadTicket) -> bool:
    """Its owner no longer waits. False if it was removed before."""
    tickets = decisions.waiting.get(ticket.loop, {})
    found = tickets.pop(ticket, False) is None
    if found and not tickets:
        del decisions.waiting[ticket.loop]
    return found


def clear_closed() -> None:
    """Have the requests of closed loops leave the lines."""
    closed = [tickets for loop, tickets in decisions.waiting.items() if loop is not None and loop.ended]
    lost = [ticket for tickets in closed for ticket in tickets if not ticket.left]
    for ticket in lost:
        ticket.left = True  # all of them, before anything is granted: none may be granted to a ticket that has yet to leave
    for ticket in lost:
        call_back(ticket.undo, "as its event loop was closed")


decisions.tidy = clear_closed


class _Threads(Loop):
    """All loops and threads as one, never closed."""

    __slots__ = ()
    closed = False  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __init__(self) -> None:
        super().__init__(None, monotonic_ns)
        self.check = decisions.check
        # Several threads call, so a grab must be one step.
        self.steady = COMPILED and getattr(sys, "_is_gil_enabled", lambda: True)()

    post = staticmethod(decisions.post)  # pyright: ignore[reportAssignmentType]

    def call_after(self, ns: int, callback: Callable[[], object], precise: bool) -> Handle:
        return decisions.call_at(monotonic_ns() + ns, callback)

    def starved(self) -> OneLoop | None:
        return starved_here()

    def wait(self, ticket: ThreadTicket, /) -> Awaitable[object]:
        assert ticket.loop is not None  # or nobody could await what it returns
        return ticket.loop.wait(ticket.signal)


class ThreadTree(Tree):
    """A tree whose callers are in any threads and event loops."""

    __slots__ = ()
    threads: bool = True

    def __init__(self, clock: Clock | None = None, precise: bool = False) -> None:
        super().__init__(clock, precise)
        self._use(_Threads())
        _trees.add(self)

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        return decisions.run(call, *args, **options)

    post = staticmethod(decisions.post)  # pyright: ignore[reportAssignmentType]
    after = staticmethod(decisions.after.append)  # pyright: ignore[reportAssignmentType]

    @property
    def deciding(self) -> bool:
        return decisions.deciding

    def here(self) -> Loop | None:
        return self.loop


class ThreadLimit(Limit):
    """A limit whose callers are in any threads and event loops."""

    __slots__ = ()

    def try_take(self, permits: Permits) -> tuple[int, Taken] | None:
        with ThreadTicket(self, permits) as ticket:
            return decisions.run(ticket.take)

    def ask(self, permits: Permits, most_ns: int | None = None, since: int | None = None) -> Answer:
        """The main thread does not wait for the decision, unless the clock is moved by hand."""
        loop = loop_here()
        if loop is None:  # a coroutine that is driven by hand: it must not wait
            return decisions.run(self.decide, permits, most_ns, since)
        with ThreadTicket(self, permits, loop, loop.signal()) as ticket:
            decide = decisions.run if self.tree.manual else decisions.post
            decide(partial(ticket.ask, most_ns, since))
            return ticket

    def give_up(self, ticket: Ticket) -> None:
        decisions.post(ticket.undo)  # type: ignore[union-attr]  # all tickets of threads are of one class

    def _went_on(self, ticket: Ticket, taken: Taken, waited: int) -> None:
        ticket.left = True  # at once: from now on its loop may end
        note = partial(super()._went_on, ticket, taken, waited)
        decisions.soon.append(lambda: _remove(ticket) and note())  # type: ignore[arg-type]  # as above

    def wait_blocking(self, permits: Permits, most_ns: int | None = None) -> tuple[int, int, Taken]:
        if running_loop() is not None:
            raise RuntimeError(
                "acquire_blocking() would block the event loop that runs in this thread. Await acquire() instead, or write `async with`."
            )
        if permits is _ONE and self.meter.grab(True):
            return 0, 0, ()
        if decisions.in_thread and not decisions.deciding:
            raise RuntimeError("acquire_blocking() inside on_event would deadlock. Call it from another thread.")
        lock = threading.Lock()
        lock.acquire()
        with ThreadTicket(self, permits, None, lock) as ticket:
            decisions.run(ticket.ask, most_ns, None)
            while ticket.outcome is None:
                lock.acquire(timeout=_LOOK_AGAIN)
            return self.go_on(ticket)


# Forks.

_trees: WeakSet[ThreadTree] = WeakSet()


def _after_fork_in_child() -> None:
    """The budgets go on, and the waiting requests are in the parent."""
    decisions.begin_again()
    for tree in list(_trees):
        tree.disband(forked=True)
        tree._use(_Threads())


with suppress(AttributeError):  # Windows, iOS, Android and WASI have no fork
    # So that no decision is half made in a child. There, the lock is another one.
    os.register_at_fork(
        before=lambda: decisions.lock.acquire(), after_in_parent=lambda: decisions.lock.release(), after_in_child=_after_fork_in_child
    )
