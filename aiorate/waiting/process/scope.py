"""One budget and one line for all event loops and threads of a process, and for synchronous code in them.

Each decision is made in a critical section, by one thread at a time; the section is never held across a wait.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from aiorate.waiting.line import outcome_of
from aiorate.waiting.loops import running_loop
from aiorate.waiting.moving import move_to
from aiorate.waiting.process.driver import ProcessDriver
from aiorate.waiting.process.inbox import ProcessTicket
from aiorate.waiting.process.section import Section
from aiorate.waiting.process.view import ProcessLoop
from aiorate.waiting.refusals import NOT_FOR_THREADS, Refusals
from aiorate.waiting.waiters import NOBODY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate.waiting.clock import Clock
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.line import Ticket
    from aiorate.waiting.max_waiting import Admission

__all__ = ["acquire_blocking", "widen"]

_BLOCKING = Refusals("acquire_blocking")
_LOOK_AGAIN = 1.0  # seconds: on Windows, Ctrl-C is not heeded before


def widen(dispatchers: Sequence[Dispatcher], clock: Clock | None, precise: bool) -> None:
    """Have new dispatchers serve callers of any thread, in one critical section. The last gives the thread its name."""
    section = Section()
    known = [ref(dispatcher) for dispatcher in dispatchers]
    _enter(dispatchers, section, clock, precise)
    section.on_fork = partial(_after_fork, known, section, clock, precise)
    section.on_cut = partial(_after_interrupt, known)


def _enter(dispatchers: Sequence[Dispatcher], section: Section, clock: Clock | None, precise: bool) -> None:
    loop = ProcessLoop(section, clock, precise, dispatchers[-1].notices.name)
    for dispatcher in dispatchers:
        move_to(dispatcher, loop)


def _after_fork(known: Sequence[ref[Dispatcher]], section: Section, clock: Clock | None, precise: bool) -> None:
    """In a child process: the budget goes on, and the waiting requests are in the parent."""
    dispatchers = _alive(known)
    if dispatchers:
        _enter(dispatchers, section, clock, precise)


def _after_interrupt(known: Sequence[ref[Dispatcher]]) -> None:
    """A signal handler interrupted a decision: wake every request that was decided, and set the timers of the others again."""
    for dispatcher in _alive(known):
        if dispatcher.waiters is not NOBODY:
            driver = dispatcher.waiters.driver
            assert isinstance(driver, ProcessDriver)  # as its view makes
            _go_on(dispatcher, driver.wake_again())


def _go_on(dispatcher: Dispatcher, resuming: int) -> None:
    """Serve after an interrupted decision. ``resuming`` grants have not gone on yet."""
    waiters = dispatcher.waiters
    dispatcher.counters.returnable += resuming - waiters.resuming
    waiters.resuming = resuming
    waiters.granting = waiters.interrupted = False
    waiters.line.recount()
    dispatcher.serve(again=True)


def _alive(known: Sequence[ref[Dispatcher]]) -> list[Dispatcher]:
    return [dispatcher for dispatcher in [reference() for reference in known] if dispatcher is not None]


def acquire_blocking(dispatcher: Dispatcher, permits: int, limit: int | None, most: Admission | None) -> int:
    """Block this thread until the permits are granted; returns the ns waited. Interrupted meanwhile, the request is undone."""
    section = dispatcher.section
    if section is None:
        raise RuntimeError(NOT_FOR_THREADS)
    if running_loop() is not None:
        raise RuntimeError("acquire_blocking() would block the event loop that runs in this thread. Await acquire() instead.")
    noted: list[Ticket] = []  # whatever this thread is interrupted in, its ticket is known
    try:
        # As if the loop had just turned: this thread has none.
        ticket, _, asked = section.run(dispatcher.decide, permits, limit, most, _BLOCKING, None, noted, True)
        if ticket is None:
            return 0
        assert isinstance(ticket, ProcessTicket)  # as the driver makes
        while ticket.outcome is None:
            ticket.signal.acquire(timeout=_LOOK_AGAIN)
        return dispatcher.resume(dispatcher.waiters, ticket, asked)[0]
    except BaseException:
        for each in noted:
            section.post(partial(_undo, dispatcher, each, permits))
        raise


def _undo(dispatcher: Dispatcher, ticket: Ticket, permits: int) -> None:
    waiters = dispatcher.waiters
    if outcome_of(ticket) is None and all(other is not ticket for other, _, _ in waiters.line):
        waiters.driver.release(ticket)  # interrupted before it joined the line
    else:
        dispatcher.leave_once(waiters, ticket, permits)
