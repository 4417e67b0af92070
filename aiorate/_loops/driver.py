"""The Driver protocol: wakes the requests of one line.

A driver knows neither how a rate is computed nor which request is next. Four drivers: the `Alarm` and the `Filler` for asyncio, one for
trio, and one for threads. It makes tickets (`aiorate._tree.line.Ticket`). A ticket's ``done()`` may become true later than its
``set_result()``: when its waiter may resume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Any

    from aiorate._tree.line import Ticket
    from aiorate._tree.node import Node

__all__ = ["Driver"]


class Driver(Protocol):
    """Wakes the waiters that hold tickets."""

    def ticket(self, permits: int) -> Ticket:
        """Make a ticket for a request that joins the line. Its `set_result` wakes the waiter."""
        ...

    def wait(self, ticket: Any) -> Awaitable[object]:
        """Return what the waiter awaits, again and again until its ticket is done."""
        ...

    def leave(self, ticket: Any) -> None:
        """Forget a ticket whose request leaves the line undecided: its task was cancelled."""
        ...

    def ring(self, node: Node) -> None:
        """The first in line is due: have the node look, now or in a task of its own."""
        ...

    def retire(self) -> None:
        """Decide nothing from now on: the limiter has moved to another event loop."""
        ...

    async def aclose(self) -> None:
        """Return once no task is left. Every request in line has failed before."""
        ...
