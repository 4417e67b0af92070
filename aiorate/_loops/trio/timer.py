"""A timer of a trio run, and the system task that fires it where no waiter does. Knows nothing of rates or of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import trio

from aiorate._loops.callback import call_back
from aiorate._loops.trio.here import running_trio

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TrioTimer", "keep_by_task"]


class TrioTimer:
    """Calls back once, when it is fired, unless it was cancelled."""

    __slots__ = ("_callback", "_native", "deadline", "scope")

    def __init__(self, native: object, deadline: float, callback: Callable[[], None]) -> None:
        self._native = native
        self.scope: anyio.CancelScope | None = None
        """The scope of the system task that fires it, if there is one."""
        self.deadline: float = deadline
        """In seconds of the run's clock."""
        self._callback: Callable[[], None] | None = callback

    @property
    def pending(self) -> bool:
        """Whether it is still to be fired."""
        return self._callback is not None

    def cancel(self) -> None:
        self._callback = None
        if self.scope is not None and running_trio() is self._native:  # another run would take the task for one of its tasks
            self.scope.cancel()

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


def keep_by_task(timer: TrioTimer) -> None:
    """Have a system task fire the timer."""
    timer.scope = anyio.CancelScope(deadline=timer.deadline)
    trio.lowlevel.spawn_system_task(_keep, timer)


async def _keep(timer: TrioTimer) -> None:
    assert timer.scope is not None
    with timer.scope:
        await trio.sleep_forever()
    call_back(timer.fire, "under trio")
