"""How limiters that serve all event loops and threads of a process come into a family, and go on after forks and interrupts.

Each decision is made in the critical section of the family, by one thread at a time; the section is never held across a wait.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from aiorate.waiting.line import outcome_of
from aiorate.waiting.loops import view_here
from aiorate.waiting.moving import move_to

# Blocking calls import this when they are made. A fork during an import of another thread would leave the child waiting for that module.
from aiorate.waiting.process import blocking as _blocking  # noqa: F401
from aiorate.waiting.process.family import Family
from aiorate.waiting.process.inbox import ProcessTicket
from aiorate.waiting.process.view import ProcessLoop
from aiorate.waiting.receipts import Receipt
from aiorate.waiting.waiters import NOBODY

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.line import Outcome
    from aiorate.waiting.passes import Pass
    from aiorate.waiting.waiters import Waiters

__all__ = ["family_of", "finish", "join", "widen"]


def widen(dispatchers: Sequence[Dispatcher], name: str | None) -> Family:
    """Have new dispatchers serve callers of any thread, as a new family. ``name`` appears in the name of the timekeeper's thread."""
    family = Family(name)
    family.section.on_fork = partial(_after_fork, family)
    family.section.on_cut = partial(_after_interrupt, family)
    for dispatcher in dispatchers:
        _enter(family, dispatcher)
    return family


def family_of(dispatcher: Dispatcher) -> Family | None:
    """The family in whose section the dispatcher decides; None: it is for one event loop."""
    loop = dispatcher.loop
    return loop.family if isinstance(loop, ProcessLoop) else None


def join(family: Family | None, dispatcher: Dispatcher) -> None:
    """Have a dispatcher decide in that family's section from now on: a new one, or one of another family that was not used yet.

    With it come the others of its family. Raises ValueError if one of them was used.
    """
    assert family is not None  # the caller has checked the scope
    old = family_of(dispatcher)
    if old is None:
        family.section.run(_enter, family, dispatcher)
    elif old is not family:
        family.section.run(family.dispatchers.update, old.section.run(_move, old, family))


async def finish(family: Family) -> None:
    """Return once the timekeeper's thread has ended, unless a timer is set."""
    thread = family.section.run(family.keeper.stop)
    view = view_here()
    while thread is not None and thread.is_alive() and view is not None:
        await view.yield_once()


def _move(old: Family, family: Family) -> list[Dispatcher]:
    moving = list(old.dispatchers)
    if any(each.granted or each.counters.returnable or each.line for each in moving):
        raise ValueError("the limiter is in use already: make one that is not.")
    for each in moving:
        move_to(each, _view(family, each))
    old.dispatchers.clear()
    return moving


def _enter(family: Family, dispatcher: Dispatcher) -> None:
    move_to(dispatcher, _view(family, dispatcher))
    family.dispatchers.add(dispatcher)


def _view(family: Family, dispatcher: Dispatcher) -> ProcessLoop:
    clock, precise = dispatcher.extras.clock, dispatcher.extras.precise
    view = family.views.get((id(clock), precise))
    if view is None:
        view = family.views[id(clock), precise] = ProcessLoop(family, clock, precise)
    return view


def _after_fork(family: Family) -> None:
    """In a child process: the budgets go on, and the waiting requests are in the parent."""
    family.begin()
    for dispatcher in sorted(family.dispatchers, key=_depth):  # shared limits first, so that a line that leaves there grants nothing
        move_to(dispatcher, _view(family, dispatcher))


def _depth(dispatcher: Dispatcher) -> int:
    return 0 if dispatcher.gate is None else 1 + _depth(dispatcher.gate.shared)


def _after_interrupt(family: Family) -> None:
    """A signal handler interrupted a decision: wake every request that was decided, and set the timers of the others again."""
    drivers = [driver for driver in family.drivers if driver.dispatcher.waiters is not NOBODY]
    dispatchers = [driver.dispatcher for driver in drivers]
    resuming: Counter[Waiters] = Counter()
    for ticket in family.inboxes.wake_again():
        resuming[ticket.driver.dispatcher.waiters] += 1
        _count_shared(resuming, ticket.result())
    standing = _standing(dispatchers)
    for stand in standing:
        outcome = outcome_of(stand)
        if stand.waiters is not None and outcome is not None and not isinstance(outcome, BaseException):
            resuming[stand.waiters] += 1
            _count_shared(resuming, outcome)
    for dispatcher in dispatchers:
        _put_right(dispatcher, resuming[dispatcher.waiters], standing)
    for dispatcher in dispatchers:
        dispatcher.serve(again=True)


def _standing(dispatchers: Sequence[Dispatcher]) -> set[Pass]:
    """The tickets of other lines in the lines of shared limits."""
    standing: set[Pass] = set()
    lines = {dispatcher.gate.shared for dispatcher in dispatchers if dispatcher.gate is not None}
    there = {ticket for shared in lines for ticket, _, _ in shared.line}
    for dispatcher in dispatchers:
        ticket = None if dispatcher.gate is None else dispatcher.gate.standing
        if dispatcher.gate is None or ticket is None:
            continue
        if ticket in there or ticket.done():
            standing.add(ticket)
        else:  # interrupted before it joined
            dispatcher.gate.forget()
    return standing


def _count_shared(resuming: Counter[Waiters], outcome: Outcome) -> None:
    """Count a grant whose task has yet to go on in the shared lines where it stood."""
    receipt = None if isinstance(outcome, BaseException) else outcome[1]
    while isinstance(receipt, Receipt):
        if receipt.waiters is not None:
            resuming[receipt.waiters] += 1
        receipt = receipt.shared


def _put_right(dispatcher: Dispatcher, resuming: int, standing: Container[object]) -> None:
    """Have the state of the line agree with its requests after an interrupted decision. ``resuming`` grants have not gone on yet."""
    waiters = dispatcher.waiters
    dispatcher.counters.returnable += resuming - waiters.resuming
    waiters.resuming = resuming
    waiters.granting = waiters.interrupted = False
    waiters.line.recount()
    for ticket, permits, _ in waiters.line:
        if not isinstance(ticket, ProcessTicket) and ticket not in standing:  # interrupted while its line withdrew it
            waiters.line.leave(ticket, permits)
