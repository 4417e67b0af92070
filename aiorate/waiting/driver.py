"""The Driver protocol: wakes the requests in line, and the dispatcher when the first of them is due.

A driver knows neither how a rate is computed nor which request is next. It is told when to look, and has the dispatcher look then.
Four drivers: the `Alarm` and the `Filler` for asyncio, one for trio, and one for ``scope="process"``.

A driver makes tickets (`aiorate.waiting.line.Ticket`). A ticket's ``done()`` may become true later than its ``set_result()``: when its
waiter may resume. `Driver.arm` is called from inside `Dispatcher.serve`, `Driver.leave` for undecided tickets only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Any

    from aiorate.waiting.line import Ticket

__all__ = ["Driver"]


class Driver(Protocol):
    """Wakes the waiters that hold tickets, and the dispatcher when the first in line is due."""

    def ticket(self, permits: int) -> Ticket:
        """Make a ticket for a request that joins the line. Its `set_result` wakes the waiter."""
        ...

    def wait(self, ticket: Any) -> Awaitable[object]:
        """Return what the waiter awaits, again and again until its ticket is done."""
        ...

    def leave(self, ticket: Any) -> None:
        """Forget a ticket whose request leaves the line undecided: its task was cancelled."""
        ...

    def release(self, ticket: Any) -> bool:
        """Forget a ticket whose waiter goes on or has left. False if it was forgotten before, which only ``scope="process"`` can tell."""
        ...

    def arm(self, reading: int | None) -> None:
        """Have the dispatcher look when the clock reads ``reading`` ns; None: nothing to wait for, or for an unknown time."""
        ...

    def retire(self) -> None:
        """Cancel the timer and decide nothing from now on: the limiter has moved to another event loop."""
        ...

    async def aclose(self) -> None:
        """Return once no task and no timer is left. Every request in line has failed before."""
        ...
