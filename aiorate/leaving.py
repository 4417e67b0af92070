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
    desk._returned += permits
    desk._scheduler.give_back(permits, desk._timeline.now(), outcome - desk._timeline.offset)
    if alive:
        desk._serve()
