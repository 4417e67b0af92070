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
from typing import TYPE_CHECKING
from weakref import WeakSet

from aiorate._loops.loop import Loop, OutcomeTicket
from aiorate._loops.table import loop_here, running_loop, starved_here
from aiorate._meter import COMPILED
from aiorate._tree.deciding import LINGER_NS, decisions
from aiorate._tree.limit import Limit
from aiorate._tree.node import undo
from aiorate._tree.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import ParamSpec, TypeVar

    from aiorate._loops.loop import Clock, Handle, Ticket
    from aiorate._loops.turn import OneLoop
    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.limit import Answer
    from aiorate._tree.node import Outcome, Taken

    P = ParamSpec("P")
    T = TypeVar("T")


_LOOK_AGAIN = 1.0  # seconds: on Windows, Ctrl-C is not heeded before
_FEW = 32  # loops with waiters; of more, closed ones are looked for at most every 10 ms
_APART_NS = 10_000_000
_ONE = 1  # compared by identity

# --- Waiters of any thread


class ThreadTicket(OutcomeTicket):
    """A request of any thread. It has the outcome as soon as that is decided; its owner is woken later.

    Whatever becomes of it, `undo_request` undoes it: its owner was cancelled or interrupted, or its loop was closed.
    """

    __slots__ = ("limit", "loop", "taken")

    def __init__(self, limit: Limit, permits: Permits, loop: OneLoop | None = None) -> None:
        self.outcome = self.signal = None  # as its base does, without a call
        self.left = False  # also once its grant has gone on
        self.limit: Limit = limit
        self.wanted = permits
        self.loop: OneLoop | None = loop  # of its owner; None: a thread without one
        self.taken: Taken | None = None  # at once: (), if it had to wait; None: it was not decided, or was undone

    def done(self) -> bool:
        return self.left or self.outcome is not None

    def set_result(self, outcome: Outcome, /) -> None:
        self.outcome = outcome
        if isinstance(outcome, BaseException):
            waiters.remove(self)  # there is nothing to undo
        if self.loop is None:
            decisions.after.append(self._wake)
        elif self.loop.hand(self._wake):
            decisions.after.append(partial(_deliver, self.loop))

    def _wake(self) -> None:
        signal = self.signal
        if signal is None:  # its owner does not wait yet, or has gone on already
            return
        if self.loop is None:
            signal.release()
        else:
            self.loop.wake(signal)

    def leave(self) -> None:
        """Its owner goes on. The line may keep the ticket for a while, but must keep nothing else."""
        self.left, self.signal = True, None


def _deliver(loop: OneLoop) -> None:
    try:
        loop.post(loop.deliver)
    except (RuntimeError, OSError):  # it is closed
        decisions.post(waiters.clear_closed)


class _Waiters:
    """The tickets that are not undone, and whose owners have not gone on. Changed in decisions."""

    __slots__ = ("_cleared", "_tickets", "_watched")

    def __init__(self) -> None:
        self._tickets: dict[OneLoop | None, dict[ThreadTicket, None]] = {}
        self._cleared = 0  # when closed loops were looked for
        self._watched = False  # whether they are looked for in a second

    def add(self, ticket: ThreadTicket) -> None:
        """Its owner waits from now on."""
        self._tickets.setdefault(ticket.loop, {})[ticket] = None
        self._watch()

    def remove(self, ticket: ThreadTicket) -> bool:
        """Its owner no longer waits. False if it was removed before."""
        tickets = self._tickets.get(ticket.loop)
        if tickets is None or ticket not in tickets:
            return False
        del tickets[ticket]
        if not tickets:
            del self._tickets[ticket.loop]
        return True

    def _watch(self) -> None:
        if self._tickets and not self._watched:
            decisions.call_at(monotonic_ns() + LINGER_NS, self._look_after)
            self._watched = True

    def _look_after(self) -> None:
        self._watched = False
        self.clear_closed()
        self._watch()

    def clear_closed(self) -> bool:
        """Have the requests of closed loops leave the lines. True if there were any."""
        if len(self._tickets) > _FEW:
            now = monotonic_ns()
            if now - self._cleared < _APART_NS:
                return False
            self._cleared = now
        closed = [tickets for loop, tickets in self._tickets.items() if loop is not None and loop.ended]
        lost = [ticket for tickets in closed for ticket in tickets if not ticket.left]
        for ticket in lost:
            ticket.leave()  # all of them, before anything is granted: none may be granted to a ticket that has yet to leave
        for ticket in lost:
            undo_request(ticket)
        return bool(lost)

    begin_again = __init__
    """In a child process, after a fork."""


waiters = _Waiters()


def undo_request(ticket: ThreadTicket) -> None:
    """Undo it, whatever was decided and however far its owner got. Called in a decision."""
    taken, ticket.taken = ticket.taken, None
    outcome = ticket.outcome
    if taken:
        undo(taken, returnable=False)
    elif taken is not None and waiters.remove(ticket):
        Limit.give_up(ticket.limit, ticket)
    elif taken is not None and outcome is not None and not isinstance(outcome, BaseException):  # its grant stood already
        undo(outcome[1], returnable=False)


# --- The tree


class _Threads(Loop):
    """All loops and threads as one. It is never closed and never stands still."""

    __slots__ = ()
    closed = False  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __init__(self, clock: Clock | None, precise: bool) -> None:
        super().__init__(None, monotonic_ns, clock)
        self.check = decisions.check
        # Several threads call, so a grab must be one step.
        self.steady = clock is None and COMPILED and getattr(sys, "_is_gil_enabled", lambda: True)()
        if precise:
            self.grain = 0

    def post(self, callback: Callable[[], object]) -> None:
        decisions.hand(callback)

    def call_at(self, reading: int, callback: Callable[[], None]) -> Handle:
        if self._timers is not None:
            return self._timers.call_at(reading, partial(decisions.run, callback))
        if not self.monotonic:
            reading = monotonic_ns() + min(max(reading - self.read(), 0), LINGER_NS)  # nobody knows what that clock does meanwhile
        return decisions.call_at(reading, callback)

    def starved(self) -> bool:
        """By real time: how long other tasks are kept waiting does not depend on virtual time."""
        return not self.manual and starved_here()

    def turn(self) -> Awaitable[object]:
        loop = loop_here()
        assert loop is not None  # the one that is starved
        return loop.turn()

    def wait(self, ticket: ThreadTicket, /) -> Awaitable[object]:
        loop = ticket.loop
        assert loop is not None  # or nobody could await what it returns
        if ticket.signal is None:
            ticket.signal = loop.signal()
        return loop.wait(ticket.signal)

    def leave(self, ticket: ThreadTicket, /) -> None:
        ticket.leave()


class ThreadTree(Tree):
    """A tree whose callers are in any threads and event loops."""

    __slots__ = ()
    threads: bool = True

    def __init__(self, clock: Clock | None = None, precise: bool = False) -> None:
        super().__init__(clock, precise)
        self._use(_Threads(clock, precise))
        _trees.add(self)

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        return decisions.run(call, *args, **options)

    def post(self, call: Callable[[], object]) -> None:
        decisions.post(call)

    def read(self, call: Callable[[], T]) -> T:
        return call() if decisions.deciding else decisions.run(call)

    def change(self, call: Callable[[], object]) -> None:
        if decisions.deciding:
            decisions.hand(call)
        else:
            decisions.run(call)

    def after(self, call: Callable[[], object]) -> None:
        decisions.after.append(call)

    def here(self) -> Loop | None:
        waiters.clear_closed()
        return self.loop

    def begin_again(self) -> None:
        """In a child process, after a fork."""
        self.disband(forked=True)
        self._use(_Threads(self.clock, self.precise))


class ThreadLimit(Limit):
    """A limit whose callers are in any threads and event loops."""

    __slots__ = ()

    def try_take(self, permits: Permits) -> tuple[int, Taken] | None:
        ticket = ThreadTicket(self, permits)
        try:
            return decisions.run(_take, ticket)
        except BaseException:  # interrupted in the main thread: nothing is spent
            decisions.post(partial(undo_request, ticket))
            raise

    def ask(
        self,
        permits: Permits,
        most_ns: int | None = None,
        since: int | None = None,
        ticket: Ticket | None = None,
        starved: bool | None = None,
    ) -> Answer:
        loop = loop_here()
        if loop is None:  # a coroutine that is driven by hand: it must not wait
            return decisions.run(super().ask, permits, most_ns, since, None, False)
        assert self.tree.loop is not None
        starved = self.tree.loop.starved() if starved is None else starved
        own = ThreadTicket(self, permits, loop)
        try:
            return decisions.run(_ask, own, most_ns, since, starved)
        except BaseException:
            decisions.post(partial(undo_request, own))
            raise

    def give_up(self, ticket: Ticket) -> None:
        decisions.post(partial(undo_request, ticket))  # type: ignore[arg-type]  # all tickets of threads are of one class

    def _went_on(self, ticket: Ticket, taken: Taken, waited: int) -> None:
        ticket.leave()  # type: ignore[union-attr]  # as above. At once: from now on its loop may end
        decisions.soon.append(partial(self._gone, ticket, taken, waited))  # type: ignore[arg-type]

    def _gone(self, ticket: ThreadTicket, taken: Taken, waited: int) -> None:
        if waiters.remove(ticket):
            super()._went_on(ticket, taken, waited)

    def wait_blocking(self, permits: Permits, most_ns: int | None = None) -> tuple[int, int, Taken]:
        """Block this thread until the permits are granted; returns what `go_on` does.

        Interrupted at any instant, as by Ctrl-C, the request is undone, or its grant comes back. RuntimeError in a
        thread whose event loop runs.
        """
        if running_loop() is not None:
            raise RuntimeError(
                "acquire_blocking() would block the event loop that runs in this thread. Await acquire() instead, or write `async with`."
            )
        if permits is _ONE and self.meter.grab(True):
            return 0, 0, ()
        if decisions.in_thread and not decisions.deciding:
            raise RuntimeError("acquire_blocking() inside on_event would deadlock. Call it from another thread.")
        ticket = ThreadTicket(self, permits)
        try:
            found = decisions.run(_ask, ticket, most_ns, None, False)
            if isinstance(found, tuple):
                return 0, *found
            lock = threading.Lock()
            lock.acquire()
            ticket.signal = lock
            while ticket.outcome is None:
                lock.acquire(timeout=_LOOK_AGAIN)
            return self.go_on(ticket)
        except BaseException as error:
            if error is not ticket.outcome:
                decisions.post(partial(undo_request, ticket))
            raise


def _take(ticket: ThreadTicket) -> tuple[int, Taken] | None:
    found = ticket.limit.take(ticket.wanted)
    if found is None and waiters.clear_closed():
        found = ticket.limit.take(ticket.wanted)
    if found is not None:
        ticket.taken = found[1]
    return found


def _ask(ticket: ThreadTicket, most_ns: int | None, since: int | None, starved: bool) -> Answer:
    answer = Limit.ask(ticket.limit, ticket.wanted, most_ns, since, ticket, starved)
    ticket.taken = answer[1] if isinstance(answer, tuple) else ()
    if answer is ticket and not isinstance(ticket.outcome, BaseException):
        waiters.add(ticket)
    return answer


# --- Forks

_trees: WeakSet[ThreadTree] = WeakSet()


def _after_fork_in_child() -> None:
    """The budgets go on, and the waiting requests are in the parent."""
    decisions.begin_again()
    waiters.begin_again()
    for tree in list(_trees):
        tree.begin_again()


with suppress(AttributeError):  # Windows, iOS, Android and WASI have no fork
    # No decision is half made in a child, but that of a strategy or a clock that forks. The lock is another one after a fork.
    os.register_at_fork(
        before=lambda: decisions.lock.acquire(), after_in_parent=lambda: decisions.lock.release(), after_in_child=_after_fork_in_child
    )
