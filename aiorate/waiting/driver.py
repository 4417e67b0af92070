"""The Driver: what wakes those in line. Three of them: the Filler, the Alarm, and trio's.

A driver knows neither how a rate is computed nor who is next. It is told when to look, and has the dispatcher look then.

To add one, write a ticket (`aiorate.waiting.line.Ticket`) and a driver, and choose it in `_driver_for` at the end of `dispatcher`.
A ticket's ``done()`` may become true later than its ``set_result()``: when its waiter may resume. `Driver.arm` is called from inside
`DispatcherView.serve`. `Driver.leave` is called for undecided tickets only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Any

    from aiorate.waiting.line import Line, Outcome, Ticket

__all__ = ["DispatcherView", "Driver"]


class DispatcherView(Protocol):
    """What a driver knows of the dispatcher."""

    line: Line

    def serve(self) -> None:
        """Grant all that is due, and arm the driver for the next."""
        ...

    def fail(self, error: BaseException) -> None:
        """Send everybody in line away: the driver cannot go on."""
        ...

    def leave(self, line: Line, ticket: Ticket, permits: int) -> None:
        """Undo a request of that line whose owner is no more."""
        ...

    def resumed(self, line: Line, outcome: Outcome, asked: int) -> tuple[int, int, int]:
        """A request of that line goes on: ns waited, the instant for which it was scheduled, that of its grant. Or raises its error."""
        ...


class Driver(Protocol):
    """Wakes the waiters that hold tickets, and the dispatcher when the first in line is due."""

    def ticket(self) -> Ticket:
        """A ticket for a request that joins the line. Its `set_result` wakes the waiter."""
        ...

    def wait(self, ticket: Any) -> Awaitable[object]:
        """What the waiter awaits, again and again until its ticket is done."""
        ...

    def leave(self, ticket: Any) -> None:
        """The waiter was cancelled."""
        ...

    def arm(self, reading: int | None) -> None:
        """Have the dispatcher look when the clock reads so much; None: nobody waits, or nobody can say until when."""
        ...

    def retire(self) -> None:
        """The limiter has moved to another event loop: leave no timer, and decide nothing any more."""
        ...

    async def aclose(self) -> None:
        """Everybody was sent away: return once no task and no timer is left."""
        ...
