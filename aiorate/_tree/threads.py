"""All threads and event loops of a process as one, for ``scope="process"``: a tree whose callers ask in `aiorate._tree.deciding`.

Knows nothing of rates.
"""

from __future__ import annotations

import os
import sys
import threading
from asyncio import InvalidStateError
from collections import deque
from contextlib import suppress
from functools import partial
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING
from weakref import WeakSet

from aiorate._loops.loop import GRAIN_NS, Loop, TimedClock
from aiorate._loops.table import loop_here, running_loop, starved_here
from aiorate._loops.turn import MOST
from aiorate._meter import COMPILED
from aiorate._tree.deciding import LINGER_NS, decisions, keeper, post, run, tell
from aiorate._tree.limit import undo
from aiorate._tree.refusals import Refusals
from aiorate._tree.tree import Tree

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable
    from typing import Any, ParamSpec, TypeVar

    from aiorate._loops.loop import Clock, Handle, ReadClock, Ticket
    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.limit import Answer, Limit, Outcome, Source, Taken
    from aiorate._tree.refusals import Admission

    P = ParamSpec("P")
    T = TypeVar("T")


BLOCKING = Refusals("acquire_blocking")
_LOOK_AGAIN = 1.0  # seconds: on Windows, Ctrl-C is not heeded before
_FEW = 32  # loops with waiters; of more, closed ones are looked for at most every 10 ms
_APART_NS = 10_000_000
_ONE = 1  # compared by identity

# --- Waiters of any thread


class ThreadTicket:
    """What a waiter of any thread holds. It has the outcome as soon as that is decided; its owner is woken later."""

    __slots__ = ("gone", "inbox", "limit", "outcome", "permits", "signal", "taken", "task", "tree")

    def __init__(self, inbox: _Inbox, tree: ThreadTree, limit: Limit, permits: Permits) -> None:
        self.inbox: _Inbox = inbox
        self.tree: ThreadTree = tree
        self.limit: Limit = limit
        self.permits: Permits = permits
        self.signal: Any = inbox.loop.signal()
        self.task: asyncio.Task[Any] | None = inbox.loop.owner()
        self.outcome: Outcome | None = None
        self.taken: Taken | None = None  # at once: (), if it had to wait; None: it was not decided, or abandoned
        self.gone: bool = False  # whether its owner left without an outcome

    def done(self) -> bool:
        return self.gone or self.outcome is not None

    def cancelled(self) -> bool:
        return self.outcome is None and self.task is not None and self.task.cancelling() > 0

    def result(self) -> Outcome:
        if self.outcome is None:
            raise InvalidStateError
        return self.outcome

    def set_result(self, outcome: Outcome, /) -> None:
        self.outcome = outcome
        self.inbox.add(self)


class _Inbox:
    """The waiters of one event loop, or of the threads without one. However many are decided at once, the loop is called back once."""

    __slots__ = ("_decided", "_posted", "loop", "native", "tickets")

    def __init__(self, native: object) -> None:
        self.native: object = native
        self.loop: Loop | _NoLoop = loop_here() or _NoLoop()
        self.tickets: dict[ThreadTicket, None] = {}  # whose owners wait, or have not gone on yet
        self._decided: deque[ThreadTicket] = deque()
        self._posted = False

    def add(self, ticket: ThreadTicket) -> None:
        """Have the owner of a decided ticket woken."""
        self._decided.append(ticket)
        if not self._posted:  # see _deliver(): what it misses is posted again
            self._posted = True
            decisions.after.append(self._post)

    def _post(self) -> None:
        try:
            self.loop.post(self._deliver)
        except (RuntimeError, OSError):  # the loop is closed
            post(clear_closed)

    def _deliver(self) -> None:
        """Wake the owners, in the loop."""
        self._posted = False  # before the queue is read: a decision reads this flag only after it has added its ticket
        for _ in range(MOST):
            try:
                ticket = self._decided.popleft()
            except IndexError:
                return
            signal = ticket.signal
            if signal is not None:  # else its owner has gone on already
                self.loop.wake(signal)
        self._posted = True
        self._post()


class _NoLoop:
    """In place of a loop, all threads without one. A signal is a lock that its waiter takes twice; any thread may send it directly."""

    __slots__ = ()
    ended = False

    def post(self, callback: Callable[[], None]) -> None:
        callback()

    def signal(self) -> threading.Lock:
        signal = threading.Lock()
        signal.acquire()
        return signal

    def wait(self, signal: threading.Lock) -> Awaitable[object]:
        raise RuntimeError("a thread without an event loop cannot await. It takes the lock that signal() returned.")

    def wake(self, signal: threading.Lock) -> None:
        with suppress(RuntimeError):  # it was woken before
            signal.release()

    def owner(self) -> None:
        return None


_inboxes: dict[object, _Inbox] = keeper.waiters  # by event loop, of those with waiters; changed in decisions
_cleared = 0  # when closed loops were looked for


def _inbox_here() -> _Inbox:
    native = running_loop()
    return _inboxes.get(native) or _Inbox(native)


def clear_closed() -> bool:
    """Have the requests of closed loops leave the lines. True if there were any. Called in a decision."""
    global _cleared
    if len(_inboxes) > _FEW:
        now = monotonic_ns()
        if now - _cleared < _APART_NS:
            return False
        _cleared = now
    lost: list[ThreadTicket] = []
    for native, inbox in list(_inboxes.items()):
        if inbox.loop.ended:
            lost += [ticket for ticket in _inboxes.pop(native).tickets if ticket.signal is not None]
    for ticket in lost:
        if ticket.outcome is None:
            ticket.gone = True  # all of them, before anything is granted: none may be granted to a ticket that has yet to leave
    for ticket in lost:
        _release(ticket)
        ticket.tree.lose(ticket)
    return bool(lost)


keeper.look_after = clear_closed


def _release(ticket: ThreadTicket) -> bool:
    """Forget a ticket whose owner no longer waits. False if it was forgotten before."""
    inbox = ticket.inbox
    if ticket not in inbox.tickets:
        return False
    del inbox.tickets[ticket]
    ticket.signal = ticket.task = None  # the line may keep the ticket for a while, but must keep nothing else
    if not inbox.tickets and _inboxes.get(inbox.native) is inbox:
        del _inboxes[inbox.native]
    return True


# --- The tree


class _Threads(Loop):
    """All loops and threads as one. It is never closed and never stands still."""

    __slots__ = ("_process", "_timers", "grain", "manual", "monotonic", "read", "steady")

    native = None
    check = decisions.check

    def __init__(self, clock: Clock | None, precise: bool) -> None:
        self.read: ReadClock = monotonic_ns if clock is None else clock.now
        self.monotonic = clock is None
        # Several threads call, so a grab must be one step.
        self.steady = clock is None and COMPILED and getattr(sys, "_is_gil_enabled", lambda: True)()
        self.grain = 0 if precise else GRAIN_NS
        self._timers = None if clock is None or not isinstance(clock, TimedClock) else clock
        self.manual = self._timers is not None
        self._process = os.getpid()

    @property
    def closed(self) -> bool:
        return False

    @property
    def forked(self) -> bool:
        return self._process != os.getpid()

    def post(self, callback: Callable[[], object]) -> None:
        keeper.put(callback)

    def call_at(self, reading: int, callback: Callable[[], None]) -> Handle:
        if self._timers is not None:
            return self._timers.call_at(reading, partial(run, callback))
        if not self.monotonic:
            reading = monotonic_ns() + min(max(reading - self.read(), 0), LINGER_NS)  # nobody knows what that clock does meanwhile
        return keeper.call_at(reading, callback)

    def yield_once(self) -> Awaitable[object]:
        return self._here.yield_once()

    def starved(self) -> bool:
        """By real time: how long other tasks are kept waiting does not depend on virtual time. In a decision it is known of the caller."""
        return not self.manual and (decisions.here or starved_here())

    def turn(self) -> Awaitable[object]:
        return self._here.turn()

    def room(self, resuming: int, woken: int) -> int:
        """A loop that stands still, and has yet to resume its own tasks, must not keep other loops from theirs."""
        return MOST - woken

    def ticket(self) -> Ticket:
        raise RuntimeError("the thread that asks makes its ticket")

    def wait(self, ticket: ThreadTicket, /) -> Awaitable[object]:
        return ticket.inbox.loop.wait(ticket.signal)

    def signal(self) -> Any:
        return self._here.signal()

    def wake(self, signal: Any, /) -> None:
        self._here.wake(signal)

    def leave(self, ticket: ThreadTicket, /) -> None:
        ticket.gone = True

    def owner(self) -> None:
        return None

    @property
    def _here(self) -> Loop:
        loop = loop_here()
        assert loop is not None  # or nobody could await what it returns
        return loop


class ThreadTree(Tree):
    """A tree whose callers are in any threads and event loops."""

    __slots__ = ()
    threads: bool = True

    def __init__(self, clock: Clock | None = None, precise: bool = False) -> None:
        super().__init__(clock, precise)
        self._use(_Threads(clock, precise))
        _trees.add(self)

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        return run(call, *args, **options)

    def post(self, call: Callable[[], object]) -> None:
        post(call)

    def read(self, call: Callable[[], T]) -> T:
        return call() if decisions.here else run(call)

    def change(self, call: Callable[[], object]) -> None:
        if decisions.here:
            keeper.put(call)
        else:
            run(call)

    def after(self, call: Callable[[], object]) -> None:
        decisions.after.append(call)

    def take(self, limit: Limit, permits: Permits) -> tuple[int, Taken] | None:
        found: list[Taken] = []
        try:
            return run(_take, limit, permits, found)
        except BaseException:  # interrupted in the main thread: nothing is spent
            post(partial(_take_back, found))
            raise

    def leave(self, limit: Limit, ticket: Ticket, permits: Permits, epoch: int) -> None:
        post(partial(self._leave, limit, ticket, permits, epoch))  # type: ignore[arg-type]  # all tickets of threads are of one class

    def _leave(self, limit: Limit, ticket: ThreadTicket, permits: Permits, epoch: int) -> None:
        if _release(ticket):  # else its task has gone on or left before
            super().leave(limit, ticket, permits, epoch)

    def lose(self, ticket: ThreadTicket) -> None:
        """The loop of its owner was closed. Called in a decision."""
        super().leave(ticket.limit, ticket, ticket.permits, self.epoch)

    def go_on(self, limit: Limit, ticket: Ticket, taken: Taken, epoch: int, waited: int) -> None:
        ticket.signal = None  # type: ignore[attr-defined]  # as below: from now on its loop may end
        tell(partial(self._go_on, limit, ticket, taken, epoch, waited))  # type: ignore[arg-type]  # as above

    def _go_on(self, limit: Limit, ticket: ThreadTicket, taken: Taken, epoch: int, waited: int) -> None:
        if _release(ticket):
            super().go_on(limit, ticket, taken, epoch, waited)

    def release(self, ticket: Ticket) -> None:
        tell(partial(_release, ticket))  # type: ignore[arg-type]  # as above

    def here(self, limit: Source) -> Loop | None:
        limit.begun = True
        clear_closed()
        return self.loop

    def ask(
        self,
        limit: Limit,
        permits: Permits,
        most_ns: int | None,
        most: Admission | None,
        refusals: Refusals,
        since: int | None = None,
        turned: bool = False,
    ) -> Answer:
        assert self.loop is not None
        if running_loop() is None:  # a coroutine that is driven by hand: it must not wait
            return run(self.request, limit, permits, most_ns, most, refusals, since, True)
        turned = turned or self.loop.manual or not starved_here()
        return self.hand_in(ThreadTicket(_inbox_here(), self, limit, permits), most_ns, most, refusals, since, turned)

    def hand_in(
        self,
        ticket: ThreadTicket,
        most_ns: int | None,
        most: Admission | None,
        refusals: Refusals,
        since: int | None = None,
        turned: bool = True,
    ) -> Answer:
        """Have a request decided. Interrupted meanwhile, it is undone."""
        try:
            return run(_decide, ticket, most_ns, most, refusals, since, turned)
        except BaseException:
            self.abandon(ticket)
            raise

    def abandon(self, ticket: ThreadTicket) -> None:
        """The caller was interrupted: undo the request, whatever was decided and however far the caller got. Never waits."""
        post(partial(self._abandon, ticket, self.epoch))

    def _abandon(self, ticket: ThreadTicket, epoch: int) -> None:
        taken, ticket.taken = ticket.taken, None
        outcome = ticket.outcome
        if taken:
            undo(taken, held=False)
        elif taken is not None and _release(ticket):
            super().leave(ticket.limit, ticket, ticket.permits, epoch)
        elif taken is not None and outcome is not None and not isinstance(outcome, BaseException):  # its grant stood already
            undo(outcome[1], held=False)

    def wait_blocking(
        self,
        limit: Limit,
        permits: Permits,
        most_ns: int | None = None,
        most: Admission | None = None,
        refusals: Refusals = BLOCKING,
        since: int | None = None,
    ) -> tuple[int, Taken]:
        """Block this thread until the permits are granted; returns the ns waited, and what was taken.

        Interrupted at any instant, as by Ctrl-C, the request is undone, or its grant comes back. RuntimeError in a
        thread whose event loop runs.
        """
        if running_loop() is not None:
            raise RuntimeError(
                "acquire_blocking() would block the event loop that runs in this thread. Await acquire() instead, or write `async with`."
            )
        if permits is _ONE and limit.meter.grab(True):
            return 0, ()
        check_may_block()
        if get_ident() != decisions.main:  # without a ticket, in two thirds of the time
            found = self.take(limit, permits)
            if found is not None:
                return 0, found[1]
        ticket = ThreadTicket(_inbox_here(), self, limit, permits)
        try:
            granted, _, asked, taken = self.hand_in(ticket, most_ns, most, refusals, since)
            if granted is None:
                return 0, taken
            epoch, signal = self.epoch, ticket.signal
            while ticket.outcome is None:
                signal.acquire(timeout=_LOOK_AGAIN)
            waited, _, taken = self.resume(limit, ticket, asked, permits, epoch)
        except BaseException as error:
            if error is not ticket.outcome:
                self.abandon(ticket)
            raise
        return waited, taken

    def begin_again(self) -> None:
        """In a child process, after a fork."""
        self.disband(forked=True)
        self._use(_Threads(self.clock, self.precise))


def _decide(
    ticket: ThreadTicket, most_ns: int | None, most: Admission | None, refusals: Refusals, since: int | None, turned: bool
) -> Answer:
    answer = ticket.tree.request(ticket.limit, ticket.permits, most_ns, most, refusals, since, turned, ticket)
    ticket.taken = answer[3]
    if answer[0] is ticket:
        _enter(ticket)
    return answer


def _take(limit: Limit, permits: Permits, found: list[Taken]) -> tuple[int, Taken] | None:
    taken = limit.take(permits)
    if taken is None and clear_closed():
        taken = limit.take(permits)
    if taken is not None:
        found.append(taken[1])
    return taken


def _take_back(found: list[Taken]) -> None:
    for taken in found:
        undo(taken, held=False)


def _enter(ticket: ThreadTicket) -> None:
    ticket.inbox = _inboxes.setdefault(ticket.inbox.native, ticket.inbox)
    ticket.inbox.tickets[ticket] = None


def check_may_block() -> None:
    """Raise RuntimeError in the middle of a decision, and in the thread that everybody waits for."""
    decisions.refuse_nested()
    if keeper.here:
        raise RuntimeError("acquire_blocking() inside on_event would deadlock. Call it from another thread.")


# --- Forks

_trees: WeakSet[ThreadTree] = WeakSet()


def _before_fork() -> None:
    decisions.lock.acquire()  # no decision is half made in a child, but that of a strategy or a clock that forks


def _after_fork_in_parent() -> None:
    decisions.lock.release()


def _after_fork_in_child() -> None:
    """The budgets go on, and the waiting requests are in the parent."""
    decisions.begin_again()
    keeper.begin_again()
    for tree in list(_trees):
        tree.begin_again()


with suppress(AttributeError):  # Windows, iOS, Android and WASI have no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
