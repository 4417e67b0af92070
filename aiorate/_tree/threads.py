"""All threads and event loops of a process as one, for ``scope="process"``: the main thread never decides.

Python runs signal handlers in the main thread, between any two steps. So any thread decides under one lock, but the main one: it hands
its request to the thread that has the timers, a daemon named ``aiorate``, and waits some 50 us for the answer. Nothing can interrupt a
decision then, and its code is that of one loop. A finalizer may run in the middle of a decision of its own thread, so what it does is
handed over too. The lock is never held across a wait. Knows nothing of rates.
"""

from __future__ import annotations

import os
import sys
import threading
from asyncio import InvalidStateError
from collections import deque
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from queue import Empty, SimpleQueue
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING
from weakref import WeakSet

from aiorate._loops.callback import call_back
from aiorate._loops.clock import TimedClock
from aiorate._loops.loop import Loop
from aiorate._loops.table import loop_here, running_loop, starved_here
from aiorate._loops.timer import GRAIN_NS
from aiorate._loops.turn import MOST
from aiorate._meter import COMPILED, FAR
from aiorate._rate import NS_PER_SECOND
from aiorate._tree.grants import undo
from aiorate._tree.refusals import NOT_FOR_THREADS, Refusals
from aiorate._tree.timeline import NOT_ASKED
from aiorate._tree.tree import TURN, Tree

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable
    from typing import Any, ParamSpec, TypeVar

    from aiorate._loops.clock import Clock, Handle, ReadClock
    from aiorate._meter import Meter
    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.limit import Answer, Limit, Outcome, Source, Taken
    from aiorate._tree.line import Ticket
    from aiorate._tree.max_waiting import Admission

    P = ParamSpec("P")
    T = TypeVar("T")

__all__ = ["BLOCKING", "ThreadTree", "wait_blocking"]

BLOCKING = Refusals("acquire_blocking")
_LOOK_AGAIN = 1.0  # seconds: on Windows, Ctrl-C is not heeded before
_LINGER_NS = 1_000_000_000  # how long the thread stays when it has nothing to do
_PORTION = 1_000  # tasks that a loop wakes in one iteration
_FEW = 32  # loops with waiters; of more, closed ones are looked for at most every 10 ms
_APART_NS = 10_000_000
_ONE = 1  # compared by identity

# --- Deciding


class _Decisions:
    """The lock, and what follows once it is released.

    Meanwhile all meters are shut: a grab takes no lock, and would be lost in the middle of a decision. Those that the decision used
    are opened at its end.
    """

    __slots__ = ("_open", "after", "lock", "main", "owner", "used")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner = 0  # the thread that decides now
        self.main = threading.main_thread().ident
        self.after: deque[Callable[[], object]] = deque()
        self.used: dict[Source, None] = {}
        """The limits of which a decision has changed something."""
        self._open: list[Meter] = []

    def make(self, call: Callable[[], T]) -> T:
        """Decide in this thread, which is not the main one."""
        self.check()
        with self.lock:
            self._begin()
            try:
                return call()
            finally:
                self._end()

    def check(self) -> None:
        """Raise RuntimeError in the middle of a decision of this thread."""
        if self.owner == get_ident():
            raise RuntimeError("called from a finalizer or a strategy in the middle of a decision. Call it from ordinary code.")

    def attempt(self, call: Callable[[], object]) -> bool:
        """Decide in this thread if the lock is free. Never waits. Returns whether it was."""
        if not self.lock.acquire(blocking=False):
            return False
        self._begin()
        try:
            call_back(call, "in a decision")
        finally:
            self._end()
            self.lock.release()
        return True

    def _begin(self) -> None:
        self.owner = get_ident()
        if self._open:
            self.shut()

    def shut(self) -> None:
        """Shut all meters."""
        for meter in self._open:
            meter.try_until = 0
        self._open.clear()

    def _end(self) -> None:
        if self.used:
            for limit in self.used:
                limit.set_meter(FAR)
                if limit.meter.try_until:
                    self._open.append(limit.meter)
            self.used.clear()
        self.owner = 0

    def finish(self) -> None:
        """Make the calls that wait for the end of decisions: they may use limiters."""
        while self.after:
            try:
                call = self.after.popleft()
            except IndexError:  # another thread took it
                return
            call_back(call, "after a decision")


_decisions = _Decisions()


def run(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a function that decides, and return its result."""
    if get_ident() == _decisions.main and not sys.is_finalizing():
        return _hand_over(partial(call, *args, **options))
    try:
        return _decisions.make(partial(call, *args, **options))
    finally:
        _decisions.finish()


def post(call: Callable[[], object]) -> None:
    """Have a function called that decides, and never wait: finalizers may use it. The calls of the main thread keep their order."""
    if get_ident() != _decisions.main and _decisions.attempt(call):
        _decisions.finish()
    else:
        _keeper.put(call)


def _tell(call: Callable[[], object]) -> None:
    """As `run`, where the main thread need not wait for it: what it asks later comes after that."""
    if get_ident() == _decisions.main:
        _keeper.put(call)
    else:
        run(call)


def settle() -> None:
    """Return once the thread, if there is one, has done what was handed to it. For tests."""
    if _keeper.runs:
        _hand_over(int)


def _hand_over(call: Callable[[], T]) -> T:
    """Have the thread decide, and wait for that."""
    job = _Job(call)
    _keeper.put(job)
    job.done.acquire()
    if job.error is not None:
        try:
            raise job.error
        finally:
            job.error = None  # or the error would hold its own traceback
    return job.result  # type: ignore[no-any-return]


class _Job:
    """A call that another thread waits for."""

    __slots__ = ("_call", "done", "error", "result")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.done = threading.Lock()
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error
        self.done.release()


# --- The thread


class _Keeper:
    """The thread ``aiorate``: makes the decisions of the main thread, and calls back when something is due."""

    __slots__ = ("_heap", "_jobs", "_number", "_starting", "_thread")

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._heap: list[tuple[int, int, _Alarm]] = []
        self._number = 0
        self._thread: threading.Thread | None = None
        self._starting = False

    def put(self, job: Callable[[], object] | None) -> None:
        """Have it called in the thread, in a decision. None only wakes it."""
        if self._thread is None:
            self._start()
        self._jobs.put(job)
        if self._thread is None:  # it ended meanwhile
            self._start()

    def _start(self) -> None:
        if not self._starting:
            self._starting = True
            try:
                thread = self._thread = threading.Thread(target=self._keep, name="aiorate", daemon=True)
                thread.start()
            except BaseException:
                self._thread = None
                raise
            finally:
                self._starting = False

    def call_at(self, reading: int, callback: Callable[[], object]) -> _Alarm:
        """Call back, in a decision, when the monotonic clock reads that. Called in a decision."""
        alarm = _Alarm(callback)
        self._number += 1
        first = self._heap[0][0] if self._heap else None
        heappush(self._heap, (reading, self._number, alarm))
        if (first is None or reading < first) and self._thread is not threading.current_thread():
            self.put(None)
        return alarm

    @property
    def runs(self) -> bool:
        """Whether there is the thread now."""
        return self._thread is not None

    @property
    def here(self) -> bool:
        """Whether this is the thread itself, which must never wait for a limiter."""
        return self._thread is threading.current_thread()

    def _keep(self) -> None:
        idle_since, checked = monotonic_ns(), monotonic_ns()
        while self._thread is threading.current_thread():
            now = monotonic_ns()
            due = self._next(now)
            if due is None and not _inboxes:
                if now - idle_since >= _LINGER_NS:
                    self._thread = None  # first: a job that comes now starts another thread
                    if self._jobs.empty():
                        return
                    self._thread = threading.current_thread()
            else:
                idle_since = now
            wait = _LINGER_NS if due is None else min(max(due - now, 0), _LINGER_NS)
            try:
                job = self._jobs.get(timeout=wait / NS_PER_SECOND) if wait else self._jobs.get_nowait()
                idle_since = now
            except Empty:
                job = None
            if job is not None:
                _decide_here(job)
            self._ring()
            if now - checked >= _LINGER_NS and _inboxes:
                checked = now
                _decide_here(clear_closed)

    def _next(self, now: int) -> int | None:
        heap = self._heap
        while heap:
            try:
                due, _, alarm = heap[0]
            except IndexError:
                return None
            if alarm.callback is not None:
                return due
            with _decisions.lock:
                if heap and heap[0][2].callback is None:
                    heappop(heap)
        return None

    def _ring(self) -> None:
        heap = self._heap
        for _ in range(len(heap)):
            if not heap or heap[0][0] > monotonic_ns():
                return
            with _decisions.lock:
                callback = heappop(heap)[2].callback if heap and heap[0][0] <= monotonic_ns() else None
            if callback is not None:
                _decide_here(callback)


def _decide_here(call: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # of a finalizer
        _decisions.make(partial(call_back, call, "in the thread that keeps the time"))
    _decisions.finish()


class _Alarm:
    """A call that is due."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


_keeper = _Keeper()

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
            _decisions.after.append(self._post)

    def _post(self) -> None:
        try:
            self.loop.post(self._deliver)
        except (RuntimeError, OSError):  # the loop is closed
            post(clear_closed)

    def _deliver(self) -> None:
        """Wake the owners, in the loop."""
        self._posted = False  # before the queue is read: a decision reads this flag only after it has added its ticket
        for _ in range(_PORTION):
            try:
                ticket = self._decided.popleft()
            except IndexError:
                return
            if ticket.signal is not None:  # else its owner has gone on already
                self.loop.wake(ticket.signal)
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


_inboxes: dict[object, _Inbox] = {}  # by event loop, of those with waiters; changed in decisions
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
            lost += _inboxes.pop(native).tickets
    for ticket in lost:
        if ticket.outcome is None:
            ticket.gone = True  # all of them, before anything is granted: none may be granted to a ticket that has yet to leave
    for ticket in lost:
        _release(ticket)
        ticket.tree.lose(ticket)
    return bool(lost)


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
    check_after = 0

    def __init__(self, clock: Clock | None, precise: bool) -> None:
        self.read: ReadClock = monotonic_ns if clock is None else clock.now
        self.monotonic = clock is None
        # Several threads call, so a grab must be one step.
        self.steady = clock is None and COMPILED and (not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled())
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
        _keeper.put(callback)

    def call_at(self, reading: int, callback: Callable[[], None]) -> Handle:
        if self._timers is not None:
            return self._timers.call_at(reading, partial(run, callback))
        if not self.monotonic:
            reading = monotonic_ns() + min(max(reading - self.read(), 0), _LINGER_NS)  # nobody knows what that clock does meanwhile
        return _keeper.call_at(reading, callback)

    def yield_once(self) -> Awaitable[object]:
        return self._here.yield_once()

    def starved(self) -> bool:
        """By real time: how long other tasks are kept waiting does not depend on virtual time."""
        return not self.manual and starved_here()

    def turn(self) -> Awaitable[object]:
        return self._here.turn()

    def room(self, resuming: int) -> int:
        """A loop that stands still, and has yet to resume its own tasks, must not keep other loops from theirs."""
        return MOST

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

    def look(self, call: Callable[[], T]) -> T:
        return call() if _decisions.owner == get_ident() else run(call)

    def change(self, call: Callable[[], object]) -> None:
        if _decisions.owner == get_ident():
            _keeper.put(call)
        else:
            run(call)

    def after(self, call: Callable[[], object]) -> None:
        _decisions.after.append(call)

    def after_decision(self, limit: Source) -> None:
        _decisions.used[limit] = None

    def leave(self, limit: Limit, ticket: Ticket, permits: Permits, epoch: int) -> None:
        post(partial(self._leave, limit, ticket, permits, epoch))  # type: ignore[arg-type]  # all tickets of threads are of one class

    def _leave(self, limit: Limit, ticket: ThreadTicket, permits: Permits, epoch: int) -> None:
        if _release(ticket):  # else its task has gone on or left before
            super().leave(limit, ticket, permits, epoch)

    def lose(self, ticket: ThreadTicket) -> None:
        """The loop of its owner was closed. Called in a decision."""
        super().leave(ticket.limit, ticket, ticket.permits, self.epoch)

    def go_on(self, limit: Limit, ticket: Ticket, taken: Taken, epoch: int, waited: int) -> None:
        _tell(partial(self._go_on, limit, ticket, taken, epoch, waited))  # type: ignore[arg-type]  # as above

    def _go_on(self, limit: Limit, ticket: ThreadTicket, taken: Taken, epoch: int, waited: int) -> None:
        if _release(ticket):
            super().go_on(limit, ticket, taken, epoch, waited)

    def release(self, ticket: Ticket) -> None:
        _tell(partial(_release, ticket))  # type: ignore[arg-type]  # as above

    def here(self, limit: Source) -> Loop | None:
        limit.timeline.begun = True
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
        decide: Callable[..., Answer] | None = None,
    ) -> Answer:
        assert self.loop is not None
        turned = turned or self.loop.manual
        decide = decide or partial(self.request, limit)
        if running_loop() is None:  # a coroutine that is driven by hand: it must not wait
            driven: Answer = run(decide, permits, most_ns, most, refusals, since, True)
            return driven
        ticket = ThreadTicket(_inbox_here(), self, limit, permits)
        try:
            answer = self.hand_in(ticket, decide, most_ns, most, refusals, since)
        except Exception:
            if turned or not starved_here():
                raise
            return TURN, NOT_ASKED, 0, ()
        if answer[0] is None and not turned and starved_here():
            return run(self._grant_entered, ticket, answer)
        return answer

    def hand_in(
        self,
        ticket: ThreadTicket,
        decide: Callable[..., Answer],
        most_ns: int | None,
        most: Admission | None,
        refusals: Refusals,
        since: int | None = None,
    ) -> Answer:
        """Have a request decided. Interrupted meanwhile, it is undone."""
        try:
            return run(_decide, ticket, decide, most_ns, most, refusals, since)
        except BaseException:
            self.abandon(ticket)
            raise

    def _grant_entered(self, ticket: ThreadTicket, answer: Answer) -> Answer:
        ticket.taken = ()
        _enter(ticket)
        return self.grant_later(ticket.limit, ticket, answer[1], answer[3])

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

    def begin_again(self) -> None:
        """In a child process, after a fork."""
        self.disband(forked=True)
        self._use(_Threads(self.clock, self.precise))


def _decide(ticket: ThreadTicket, decide: Callable[..., Answer], *rest: Any) -> Answer:
    most_ns, most, refusals, since = rest
    answer: Answer = decide(ticket.permits, most_ns, most, refusals, since, True, ticket)
    ticket.taken = answer[3]
    if answer[0] is not None:
        _enter(ticket)
    return answer


def _enter(ticket: ThreadTicket) -> None:
    ticket.inbox = _inboxes.setdefault(ticket.inbox.native, ticket.inbox)
    ticket.inbox.tickets[ticket] = None


def wait_blocking(
    limit: Limit,
    tree: Tree,
    permits: Permits,
    most_ns: int | None = None,
    most: Admission | None = None,
    refusals: Refusals = BLOCKING,
    decide: Callable[..., Answer] | None = None,
) -> tuple[int, Taken]:
    """Block this thread until the permits are granted; returns the ns waited, and what was taken. ``decide`` replaces `Tree.request`.

    Interrupted at any instant, as by Ctrl-C, the request is undone, or its grant comes back. RuntimeError with the scope of a loop, and
    in a thread whose event loop runs.
    """
    if not isinstance(tree, ThreadTree):
        raise RuntimeError(NOT_FOR_THREADS)
    if running_loop() is not None:
        raise RuntimeError(
            "acquire_blocking() would block the event loop that runs in this thread. Await acquire() instead, or write `async with`."
        )
    if permits is _ONE and decide is None and limit.meter.grab(True):
        return 0, ()
    _decisions.check()
    if _keeper.here:
        raise RuntimeError("acquire_blocking() inside on_event would deadlock. Call it from another thread.")
    if decide is None and get_ident() != _decisions.main:  # without a ticket, in two thirds of the time
        found = run(limit.take, permits)
        if found is not None:
            return 0, found[1]
    ticket = ThreadTicket(_inbox_here(), tree, limit, permits)
    try:
        granted, _, asked, taken = tree.hand_in(ticket, decide or partial(tree.request, limit), most_ns, most, refusals)
        if granted is None:
            return 0, taken
        epoch, signal = tree.epoch, ticket.signal
        while ticket.outcome is None:
            signal.acquire(timeout=_LOOK_AGAIN)
        waited, _, taken = tree.resume(limit, ticket, asked, permits, epoch, refusals)
    except BaseException as error:
        if error is not ticket.outcome:
            tree.abandon(ticket)
        raise
    return waited, taken


# --- Forks

_trees: WeakSet[ThreadTree] = WeakSet()


def _before_fork() -> None:
    if _decisions.owner != get_ident():  # a strategy or a clock that forks does so in the middle of a decision
        _decisions.lock.acquire()  # no decision is half made in a child


def _after_fork_in_parent() -> None:
    if _decisions.owner != get_ident():
        _decisions.lock.release()


def _after_fork_in_child() -> None:
    """The budgets go on, and the waiting requests are in the parent."""
    global _decisions, _keeper
    _decisions.shut()
    _decisions, _keeper = _Decisions(), _Keeper()
    _inboxes.clear()
    for tree in list(_trees):
        tree.begin_again()


with suppress(AttributeError):  # Windows, iOS, Android and WASI have no fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
