"""Runs of trio. Imported once a limiter is used under trio.

Grants are in order, although trio runs the tasks that are woken at one instant in any order.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from aiorate._loops.loop import OneLoop, OutcomeTicket, call_back
from aiorate._rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiorate._loops.loop import Handle


Token = trio.lowlevel.TrioToken
_OVER = (trio.RunFinishedError, OSError)  # the latter if a run broke off: its wake-up socket is closed


class TrioLoop(OneLoop):
    """One ``trio.run()``, known by its token."""

    __slots__ = ("_ended",)
    native: Token

    @staticmethod
    def here() -> Token | None:
        try:
            return trio.lowlevel.current_trio_token()
        except RuntimeError:
            return None

    @staticmethod
    def task() -> object | None:
        return trio.lowlevel.current_task() if trio.lowlevel.in_trio_task() else None

    def __init__(self, native: Token) -> None:
        # Each run has its own clock and origin. Unlike `trio.current_time`, it can be read after the run.
        clock = trio.lowlevel.current_clock()
        super().__init__(native, lambda: round(clock.current_time() * NS_PER_SECOND))
        self._ended: bool = False  # a run shows that it has ended only when something is posted to it
        self.steady = type(clock).__module__.startswith("trio._core")  # not a MockClock

    @property
    def closed(self) -> bool:
        if not (self._ended or self.forked or self.here() is self.native):
            with suppress(*_OVER):
                self.post(int)
        return self._ended or self.forked

    @property
    def ended(self) -> bool:
        return self._ended

    def post(self, callback: Callable[[], object]) -> None:
        try:
            self.native.run_sync_soon(call_back, callback, "under trio")
        except _OVER:
            self._ended = True
            raise

    def call_after(self, ns: int, callback: Callable[[], object], precise: bool) -> Handle:
        return _Timer(self.native, (self.read() + ns) / NS_PER_SECOND, callback)

    def ticket(self) -> OutcomeTicket:
        return OutcomeTicket(self, trio.Event())

    def signal(self) -> trio.Event:
        return trio.Event()

    def wait(self, ticket: OutcomeTicket | trio.Event, /) -> Awaitable[object]:
        event: trio.Event = ticket.signal if isinstance(ticket, OutcomeTicket) else ticket
        return event.wait()

    def wake(self, signal: trio.Event, /) -> None:
        """Raises RuntimeError in another thread, or after its run has broken off."""
        if self.here() is not self.native:  # another run would take the task for one of its own
            raise RuntimeError("a waiter can only be woken in its own trio run")
        signal.set()


class _Timer:
    """Calls back from a system task: trio has no timers outside of tasks."""

    __slots__ = ("_callback", "_native", "_scope")

    def __init__(self, native: Token, deadline: float, callback: Callable[[], object]) -> None:
        self._native = native
        self._callback: Callable[[], object] | None = callback
        self._scope = trio.CancelScope(deadline=deadline)
        trio.lowlevel.spawn_system_task(self._run)

    async def _run(self) -> None:
        with self._scope:
            await trio.sleep_forever()
        callback, self._callback = self._callback, None
        if callback is not None:
            call_back(callback, "under trio")

    def cancel(self) -> None:
        self._callback = None
        if TrioLoop.here() is self._native:  # as in wake()
            self._scope.cancel()
