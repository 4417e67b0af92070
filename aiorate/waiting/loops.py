"""Which event loop runs here, and what each kind brings along. Knows nothing of rates or of who waits."""

from __future__ import annotations

import asyncio
import sys
import threading
from time import monotonic_ns
from typing import TYPE_CHECKING

from aiorate.waiting.asyncio.port import AsyncioPort
from aiorate.waiting.asyncio.view import AsyncioLoop
from aiorate.waiting.turnstile import Turnstile

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aiorate.waiting.clock import Clock, EventLoop
    from aiorate.waiting.port import Port

__all__ = ["event_loop", "running_loop", "running_task", "turnstile_here"]


def running_loop() -> object | None:
    """The event loop that runs in this thread; None: none does."""
    loop = asyncio._get_running_loop()  # noqa: SLF001  # None outside a loop, where get_running_loop() would raise
    if "trio" in sys.modules:
        global _running_trio
        if _running_trio is None:  # an import statement would cost each call 1 us
            from aiorate.waiting.trio.view import running_trio

            _running_trio = running_trio
        # Both run where trio is the guest of asyncio; then the task at hand decides.
        return _running_trio(loop is not None) or loop
    return loop


_running_trio: Callable[[bool], object | None] | None = None


def running_task() -> object | None:
    """The task that runs in this thread; None: none does."""
    native = running_loop()
    if native is None or isinstance(native, asyncio.AbstractEventLoop):
        return None if native is None else asyncio.current_task()
    from aiorate.waiting.trio.view import running_trio_task

    return running_trio_task()


def event_loop(native: object, clock: Clock | None, precise: bool) -> EventLoop:
    """The running loop, as a limiter with that clock sees it."""
    if isinstance(native, asyncio.AbstractEventLoop):
        return AsyncioLoop(native, clock, precise)
    from aiorate.waiting.trio.view import TrioLoop

    return TrioLoop(native, clock)


class _Here(threading.local):
    native: object | None = None
    turnstile: Turnstile | None = None


_here = _Here()


def turnstile_here() -> Turnstile | None:
    """That of the loop that runs in this thread, by real time also where the loop's is virtual; None: no loop runs here."""
    native = running_loop()
    if _here.native is not native:
        _here.native, _here.turnstile = native, None if native is None else Turnstile.of(native, _port_of(native), monotonic_ns)
    return _here.turnstile


def _port_of(native: object) -> Callable[[Any], Port]:
    if isinstance(native, asyncio.AbstractEventLoop):
        return AsyncioPort
    from aiorate.waiting.trio.port import TrioPort

    return TrioPort
