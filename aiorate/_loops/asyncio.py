"""asyncio's event loops. A ticket is the future that its owner awaits, except those of a filler."""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop as running_asyncio  # None outside a loop, where get_running_loop() would raise
from asyncio import current_task
from time import monotonic_ns
from typing import TYPE_CHECKING

from aiorate._loops.loop import GRAIN_NS, FutureTicket, OneLoop
from aiorate._rate import NS_PER_SECOND, ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aiorate._loops.kernel_timer import KernelTimers
    from aiorate._loops.loop import Clock, Handle, ReadClock, Waker


class AsyncioLoop(OneLoop):
    """An asyncio event loop, uvloop's included."""

    __slots__ = ("_kernel", "_rounds_up")
    native: asyncio.AbstractEventLoop

    natives = asyncio.AbstractEventLoop

    here = staticmethod(running_asyncio)

    @staticmethod
    def task() -> object | None:
        native = running_asyncio()
        return None if native is None else current_task(native)

    @staticmethod
    def own_time(native: asyncio.AbstractEventLoop) -> ReadClock:
        if type(native).time is asyncio.BaseEventLoop.time or _is_uvloop(native):
            return monotonic_ns  # as uvloop's time() too, which moves in steps of 1 ms (uvloop#359)
        return lambda: round(native.time() * NS_PER_SECOND)

    def __init__(self, native: asyncio.AbstractEventLoop, clock: Clock | None, precise: bool, plain: OneLoop | None) -> None:
        super().__init__(native, clock, precise, plain)
        self._rounds_up = _is_uvloop(native)
        self.steady = self.monotonic
        self._kernel: KernelTimers | None = None
        if precise and self.monotonic and isinstance(plain, AsyncioLoop):
            from aiorate._loops.kernel_timer import KernelTimers

            self._kernel = plain._kernel = plain._kernel or KernelTimers(native)
            self.grain = 0

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

    def _call_after(self, ns: int, callback: Callable[[], object]) -> Handle:
        if self._kernel is not None:
            try:
                return self._kernel.add(monotonic_ns() + ns, callback)
            except self._kernel.NONE:
                self._kernel = None  # the loop's timers will do
                self.grain = GRAIN_NS
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


def _is_uvloop(native: asyncio.AbstractEventLoop) -> bool:
    return type(native).__module__.partition(".")[0] == "uvloop"
