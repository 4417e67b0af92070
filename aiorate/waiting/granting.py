"""Grants to the requests in line, in order, as far as they are due.

Knows nothing of how a rate is computed, or of what kind of loop runs.
"""

from __future__ import annotations

from asyncio import InvalidStateError
from typing import TYPE_CHECKING

from aiorate.waiting.fair_line import FairLine
from aiorate.waiting.notices import skip
from aiorate.waiting.receipts import give_back_shared

if TYPE_CHECKING:
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.fair_line import AnyLine
    from aiorate.waiting.gate import Gate
    from aiorate.waiting.line import Request, Ticket
    from aiorate.waiting.receipts import Receipt

__all__ = ["grant"]


def grant(dispatcher: Dispatcher, request: Request | None, now: int) -> Request | None:
    """Grant what is due, from that request on. Returns the next one, which is due at ``waiters.due``, or None."""
    waiters, scheduler, gate, loop = dispatcher.waiters, dispatcher.scheduler, dispatcher.gate, dispatcher.loop
    passes, line = dispatcher.passes, waiters.line
    fair = line if isinstance(line, FairLine) else None
    earliest, reading = now - dispatcher.catch_up.limit, now + dispatcher.timeline.offset
    due = now if waiters.due is None else waiters.due
    spilled = scheduler.spilled if due < earliest else None  # too late to make up for all
    behind = min(max(now - due, 0), dispatcher.catch_up.limit)
    room = None if loop is None or loop.manual else loop.room(waiters.resuming)  # None: wake all
    woken, noted, receipt, served = 0, 0, now, now
    passed: Receipt | None = None  # granted by the shared limit, and not granted here yet
    permits = 0
    if fair is not None and request is not None and waiters.head is None:
        waiters.head = request[0]  # lines that are served in between stand behind it
    waiters.granting = True
    try:
        while request is not None:
            ticket, permits, since = request
            if room is not None and woken >= room:
                waiters.due = now  # that is, as soon as the loop has turned
                break
            if passes is not None:
                passes.late = behind
            stood = False
            if gate is not None:
                answer = _pass(dispatcher, gate, request, now, behind)
                if answer is None:
                    break
                if isinstance(answer, BaseException):
                    ticket.set_result(answer)
                    request = line.pop_first()
                    continue
                receipt = passed = answer
                stood = answer.waiters is not None
                if stood:  # no catch-up for time spent behind other lines, only for a late wake-up
                    since = now - answer.late
                    behind = min(answer.late, dispatcher.catch_up.limit)  # of the next requests, too: they could not stand there before
                    if passes is not None:
                        passes.late = behind
            at = scheduler.take(permits, now, since if since > earliest else earliest)
            if at > now:
                waiters.due = at
                break
            try:
                if waiters.interrupted and not _is_first(line, ticket):
                    raise InvalidStateError
                ticket.set_result((at, receipt, reading))
            except InvalidStateError:  # a finalizer has closed or cancelled its task since this decision began
                scheduler.give_back(permits, now, now)
                undone, passed = passed, None
                if gate is not None and undone is not None:
                    give_back_shared(gate, permits, undone)
                request = line.first()
                continue
            passed = None
            if not woken:
                scheduler.receipts = True
            woken += 1
            dispatcher.taken += permits
            served = max(at, since) if stood else at
            if fair is None:
                request = line.pop_first()
                continue
            fair.grant(ticket)
            waiters.resuming += woken - noted  # a line that is served may give its grant back
            dispatcher.counters.returnable += woken - noted
            noted, scheduler.receipts = woken, True
            if passes is not None:
                passes.serve()
            request = fair.first()
        else:
            waiters.due = None
            if served < now:
                dispatcher.catch_up.late = served, now
    finally:  # a strategy may fail in the middle
        waiters.granting = False
        if woken > noted:
            waiters.resuming += woken - noted
            dispatcher.counters.returnable += woken - noted
            scheduler.receipts = dispatcher.counters.returnable > 0  # a finalizer may have given one of them back
        if gate is not None and passed is not None:
            give_back_shared(gate, permits, passed)
    if spilled is not None:
        skip(dispatcher, scheduler.spilled - spilled)
    return request


def _is_first(line: AnyLine, ticket: Ticket) -> bool:
    first = line.first()
    return first is not None and first[0] is ticket


def _pass(dispatcher: Dispatcher, gate: Gate, request: Request, now: int, behind: int) -> Receipt | BaseException | None:
    """The shared limit's grant for the first in line, or its error; None: it has to wait, until ``waiters.due`` or in that line."""
    ticket, permits, _ = request
    at = dispatcher.scheduler.peek(permits, now)
    if at > now:
        gate.withdraw()
        dispatcher.waiters.due = at
        return None
    answer = gate.pass_through(dispatcher, ticket, permits, now, behind)
    if answer is None:
        dispatcher.waiters.due = None
    return answer
