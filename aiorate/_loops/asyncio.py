"""asyncio's event loops, uvloop's included. No decision awaits, so nothing is locked."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop as running_asyncio  # None outside a loop, where get_running_loop() would raise
from asyncio import current_task
from contextlib import suppress
from time import monotonic_ns
from typing import TYPE_CHECKING

from aiorate._loops.loop import FutureTicket, OneLoop
from aiorate._rate import NS_PER_SECOND, ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aiorate._loops.kernel_timer import KernelTimers
    from aiorate._loops.loop import Handle, ReadClock, Waker


class AsyncioLoop(OneLoop):
    __slots__ = ("_kernel", "_rounds_up")
    native: asyncio.AbstractEventLoop

    here = staticmethod(running_asyncio)

    @staticmethod
    def task() -> object | None:
        native = running_asyncio()
        return None if native is None else current_task(native)

    def __init__(self, native: asyncio.AbstractEventLoop) -> None:
        read: ReadClock = lambda: round(native.time() * NS_PER_SECOND)  # noqa: E731
        self._rounds_up = type(native).__module__.partition(".")[0] == "uvloop"
        if self._rounds_up or type(native).time is asyncio.BaseEventLoop.time:
            read = monotonic_ns  # as uvloop's time() too, which moves in steps of 1 ms (uvloop#359)
        super().__init__(native, read)
        self.steady = self.monotonic
        self._kernel: KernelTimers | None = None

    @property
    def running(self) -> bool:
        return self.native.is_running() and not self.forked

    @property
    def closed(self) -> bool:
        return self.native.is_closed() or self.forked

    def post(self, callback: Callable[[], object]) -> None:
        if running_asyncio() is self.native:
            self.native.call_soon(callback)
        else:
            self.native.call_soon_threadsafe(callback)

    def call_after(self, ns: int, callback: Callable[[], object], precise: bool) -> Handle:
        if precise and self.monotonic:
            with suppress(OSError, AttributeError, ImportError, NotImplementedError):  # the loop's timers will do
                from aiorate._loops.kernel_timer import KernelTimers

                self._kernel = self._kernel or KernelTimers(self.native)
                return self._kernel.add(monotonic_ns() + ns, callback)
        if self._rounds_up:
            # uvloop rounds timers to the nearest ms, which may be too early, or too soon after the last wake-up.
            ns = ceil_div(ns, 1_000_000) * 1_000_000
        return self.native.call_later(ns / NS_PER_SECOND, callback)

    def ticket(self) -> FutureTicket:
        return FutureTicket(loop=self.native)

    def signal(self) -> asyncio.Future[Any]:
        return self.native.create_future()

    def wait(self, ticket: asyncio.Future[Any], /) -> asyncio.Future[Any]:
        return ticket

    def wake(self, signal: asyncio.Future[Any], /) -> None:
        if not signal.done():  # cancelled
            signal.set_result(None)

    def filler(self, look: Callable[[], object], fail: Callable[[BaseException], object], name: str | None) -> Waker:
        from aiorate._loops.filler import Filler

        return Filler(self, look, fail, name)
