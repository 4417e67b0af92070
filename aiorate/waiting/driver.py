"""The Driver: what wakes those in line. Three of them: the Filler, the Alarm, and trio's.

A driver knows neither how a rate is computed nor who is next. It is told when to look, and has the dispatcher look then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Any

    from aiorate.waiting.line import Line, Ticket

__all__ = ["Decides", "Driver"]


class Decides(Protocol):
    """What a driver knows of the dispatcher."""

    line: Line

    def serve(self) -> None:
        """Grant all that is due, and arm the driver for the next."""
        ...

    def fail(self, error: BaseException) -> None:
        """Send everybody in line away: the driver cannot go on."""
        ...


class Driver(Protocol):
    """Wakes the owners of tickets, and the dispatcher when the first in line is due."""

    def ticket(self) -> Ticket:
        """A ticket for a request that joins the line. Its `set_result` wakes the owner."""
        ...

    def wait(self, ticket: Any) -> Awaitable[object]:
        """What the owner of a ticket awaits, again and again until that is done."""
        ...

    def leave(self, ticket: Any) -> None:
        """The owner of an undecided ticket goes."""
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
