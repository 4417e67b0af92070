"""An event loop in virtual time."""

from __future__ import annotations

import asyncio
import selectors
from math import ulp
from typing import TYPE_CHECKING, Any

from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["VirtualLoop"]


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time: when no task can run, time jumps to the next timer.

    Time begins at 0. Use it as a loop factory: ``asyncio.Runner(loop_factory=VirtualLoop)``. Sockets and threads still take real
    time. Raises RuntimeError where code spins and time does not pass.
    """

    _MOST_TURNS = 1_000_000

    def __init__(self) -> None:
        self._virtual_ns = 0
        self._turns = 0
        super().__init__(_Jumping(self._jump))

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual_ns / NS_PER_SECOND

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as in CPython 3.12
        """Wait until its threads have ended, however long that takes in real time: virtual time would be over at once."""
        await super().shutdown_default_executor()

    def _jump(self, seconds: float) -> None:
        ns = round(seconds * NS_PER_SECOND)
        self._turns = 0 if ns else self._turns + 1
        if self._turns > self._MOST_TURNS:
            self._turns = 0  # so that the loop can still be closed
            raise RuntimeError(
                f"VirtualLoop: {self._MOST_TURNS} turns of the loop without time passing, so something spins."
                " Make it wait for more than 0 seconds."
            )
        self._virtual_ns += ns
        # asyncio runs the timers that are due within this. After 194 days, the float of time() no longer resolves a nanosecond.
        self._clock_resolution = max(1 / NS_PER_SECOND, ulp(self.time()))


class _Jumping(selectors.DefaultSelector):
    """A selector that jumps instead of waiting."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            return super().select(None)
        self._jump(max(timeout, 0))
        return ready
