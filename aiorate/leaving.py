"""Leaving the line, or a grant: nothing is spent, and the next in line moves up at once.

Knows nothing of how a rate is computed or of HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate.desk import Desk
    from aiorate.line import Line, Ticket

__all__ = ["leave"]


def leave(desk: Desk, line: Line, ticket: Ticket, permits: int) -> None:
    """Its owner goes, while it waits in that line or granted but before it could run."""
    desk._cancelled += 1
    outcome = None if ticket.cancelled() or not ticket.done() else ticket.result()
    if isinstance(outcome, BaseException):
        return
    desk._forecast = None
    alive = desk._loop is not None and not desk._loop.is_closed()
    if outcome is None:
        if line is not desk._line or desk._driver is None:
            return  # that of another loop, to which nobody belongs any more
        desk._driver.leave(ticket)  # type: ignore[arg-type]  # it made the ticket
        line.leave(ticket)
        first = line.first()
        if alive and (first is None or first[0] is not line.head):
            desk._serve()
        return
    if not _handed_on(desk, ticket, permits, outcome - desk._timeline.offset):
        desk._returned += permits
        # A strategy that paces can only undo the latest take; any other slot is lost rather than invented.
        if getattr(desk._scheduler, "refundable", False) or desk._line.latest == (ticket, desk._taken):
            desk._scheduler.give_back(permits, desk._timeline.now())
    if alive:
        desk._serve()


def _handed_on(desk: Desk, ticket: Ticket, permits: int, granted_at: int) -> bool:
    """Whether the next in line has the very same grant now: exact for every strategy, whatever was taken in between."""
    now = desk._timeline.now()
    request = desk._line.first()
    if request is None or request[1] != permits or desk._debt or desk._timeline.held:
        return False
    heir, _, since = request
    # What is booked late counts as on time within catch_up; strategies that ignore since allow that only to those who
    # stood in line at the time of the grant, and would have had it.
    on_time = since <= granted_at or getattr(desk._scheduler, "books_since", True)
    if now - granted_at > (desk._catch_up if on_time else 0):
        return False
    desk._line.serve()
    if heir in desk._line.slots:
        desk._line.slots[heir] = granted_at
    if desk._line.latest == (ticket, desk._taken):
        desk._line.latest = heir, desk._taken
    heir.set_result(now + desk._timeline.offset)
    return True
