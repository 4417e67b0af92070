"""The Port protocol: how waiters of one event loop, or of the threads without a loop, are woken from any thread.

Knows nothing of rates or of the line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable
    from typing import Any

__all__ = ["Port"]


class Port(Protocol):
    """The way into one event loop from any thread, or into the threads without a loop.

    Each waiter waits for a signal: a future, an event or a lock.
    """

    @property
    def closed(self) -> bool:
        """Whether the loop is known never to run again."""
        ...

    def post(self, callback: Callable[[], None]) -> None:
        """Call back soon in the loop, from any thread. Raises RuntimeError or OSError if the loop never runs again."""
        ...

    def signal(self) -> Any:
        """Make a signal for one waiter. Called where it waits."""
        ...

    def wait(self, signal: Any) -> Awaitable[object]:
        """Return what the waiter awaits until the signal is sent."""
        ...

    def send(self, signal: Any) -> None:
        """Wake the waiter. Called where it waits."""
        ...

    def owner(self) -> asyncio.Task[Any] | None:
        """The task that waits, if any thread can see whether it is being cancelled; otherwise None."""
        ...
