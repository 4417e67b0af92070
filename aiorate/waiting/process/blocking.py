"""Waiting in a thread without an event loop, which blocks until its request is decided: for synchronous code.

Interrupted at any instant, as by Ctrl-C, the request is undone, or its grant comes back. Knows nothing of rates.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate.waiting.line import outcome_of
from aiorate.waiting.loops import running_loop
from aiorate.waiting.process.inbox import ProcessTicket
from aiorate.waiting.receipts import Receipt, give_back, keep
from aiorate.waiting.refusals import NOT_FOR_THREADS, Refusals

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.line import Noted, Outcome, Ticket
    from aiorate.waiting.max_waiting import Admission

__all__ = ["BLOCKING", "wait_blocking"]

BLOCKING = Refusals("acquire_blocking")
_LOOK_AGAIN = 1.0  # seconds: on Windows, Ctrl-C is not heeded before


def wait_blocking(
    dispatcher: Dispatcher,
    permits: int,
    limit: int | None = None,
    most: Admission | None = None,
    since: int | None = None,
    refusals: Refusals = BLOCKING,
    decide: Callable[..., tuple[Ticket | None, int, int]] | None = None,
) -> tuple[int, int, int | None]:
    """Block this thread until the permits are granted.

    Returns the ns waited, from the reading ``since`` if it is given; the receipt; and what the clock read when the wait began, or None
    if there was none. ``decide`` replaces `Dispatcher.decide`. RuntimeError with the scope of a loop, and in a thread whose event loop
    runs.
    """
    loop = dispatcher.loop
    section = None if loop is None else loop.section  # as Dispatcher.section, without a call
    if section is None:
        raise RuntimeError(NOT_FOR_THREADS)
    if running_loop() is not None:
        raise RuntimeError(
            "acquire_blocking() would block the event loop that runs in this thread. Await acquire() instead, or write `async with`."
        )
    noted: list[Noted] = []  # whatever this thread is interrupted in, its request is known
    try:
        # As if the loop had just turned: this thread has none.
        ticket, _, asked = section.run(decide or dispatcher.decide, permits, limit, most, refusals, None, noted, True)
        if ticket is None:
            return 0, asked, None
        assert isinstance(ticket, ProcessTicket)  # as the driver makes
        while ticket.outcome is None:
            ticket.signal.acquire(timeout=_LOOK_AGAIN)
        waited, _, receipt = dispatcher.resume(dispatcher.waiters, ticket, asked if since is None else since, permits, refusals)
        return waited, receipt, asked
    except BaseException:
        for each in noted:
            section.post(partial(_undo, dispatcher, each, permits))
        raise


def _undo(dispatcher: Dispatcher, request: Noted, permits: int) -> None:
    waiters = dispatcher.waiters
    if not isinstance(request, ProcessTicket):
        assert isinstance(request, tuple)  # granted at once
        _return(dispatcher, permits, request)
    elif request not in request.inbox.tickets:  # interrupted while it went on
        _return(dispatcher, permits, outcome_of(request))
    elif outcome_of(request) is None and all(other is not request for other, _, _ in waiters.line):
        waiters.driver.release(request)  # interrupted before it joined the line
    else:
        dispatcher.leave_once(waiters, request, permits)


def _return(dispatcher: Dispatcher, permits: int, outcome: Outcome | None) -> None:
    """Give back a grant that is no longer counted among those whose tasks have yet to go on."""
    if outcome is None or isinstance(outcome, BaseException):
        return
    receipt = outcome[1]
    level: int = receipt
    while isinstance(level, Receipt):
        level.waiters = None
        level = level.shared
    keep(dispatcher)
    give_back(dispatcher, permits, receipt)
