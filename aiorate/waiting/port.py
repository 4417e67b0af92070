"""The Port: how waiters of one event loop, or of the threads without one, are woken from any thread. Knows nothing of rates or the line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable
    from typing import Any

__all__ = ["Port"]


class Port(Protocol):
    """The way into one event loop from any thread, or into the threads that have none."""

    @property
    def closed(self) -> bool:
        """Whether it is known that the loop never runs again."""
        ...

    def post(self, callback: Callable[[], None]) -> None:
        """Call back there soon. RuntimeError or OSError where that never comes."""
        ...

    def bell(self) -> Any:
        """What one waiter waits for. Made where it waits."""
        ...

    def wait(self, bell: Any) -> Awaitable[object]:
        """What the waiter awaits, until the bell is rung."""
        ...

    def ring(self, bell: Any) -> None:
        """Wake the waiter; only where it waits."""
        ...

    def owner(self) -> asyncio.Task[Any] | None:
        """The task that waits, if it can be asked from any thread whether it is being cancelled."""
        ...
