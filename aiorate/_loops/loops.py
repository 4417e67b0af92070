"""Which event loop runs here, and what each kind of loop brings along: one table.

To add a kind of loop, write its classes and a row of the table; docs/contributing.md says how. Knows nothing of rates or of requests.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import _get_running_loop as running_asyncio  # None outside a loop, where get_running_loop() would raise
from functools import cache
from sys import modules
from time import monotonic_ns
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from aiorate._loops.asyncio.port import AsyncioPort
from aiorate._loops.asyncio.view import AsyncioLoop

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aiorate._loops.clock import Clock
    from aiorate._loops.port import Port
    from aiorate._loops.view import EventLoop

__all__ = ["KINDS", "Kind", "port_of", "running_loop", "running_task", "starved_here", "view_here", "view_of"]


class Kind(NamedTuple):
    """A kind of event loop: a row of the table. Its view chooses its drivers."""

    loop: type
    """The class of its loops."""
    running: Callable[[bool], object | None]
    """Returns the loop of this kind that runs in this thread, or None. The argument: whether an asyncio loop runs in the thread too."""
    task: Callable[[], object | None]
    """Returns the task that runs in this thread."""
    view: Callable[[Any, Clock | None, bool], EventLoop]
    """Makes the view of a loop that runs in this thread, for limiters with that clock and that ``precise``."""
    port: Callable[[Any], Port]
    """Makes a port of a loop."""


def _trio() -> Kind:
    from aiorate._loops.trio.here import TrioToken, running_trio, running_trio_task
    from aiorate._loops.trio.port import TrioPort
    from aiorate._loops.trio.view import TrioLoop

    return Kind(TrioToken, running_trio, running_trio_task, TrioLoop, TrioPort)


# The table. asyncio's row stands apart because running_loop() asks for its loop first, without a call.
ASYNCIO = Kind(asyncio.AbstractEventLoop, lambda _: running_asyncio(), asyncio.current_task, AsyncioLoop, AsyncioPort)
KINDS: dict[str, Callable[[], Kind]] = {"trio": cache(_trio)}
"""The other rows. One is loaded once the program has imported the library by whose name it stands here."""


def running_loop() -> object | None:
    """The event loop that runs in this thread; None: none does."""
    loop = running_asyncio()
    for library in KINDS:
        if library in modules:
            # Where one loop is the guest of the other, both run in this thread. Then the running task decides.
            native = KINDS[library]().running(loop is not None)
            if native is not None:
                return native
    return loop


def running_task() -> object | None:
    """The task that runs in this thread; None: none does."""
    native = running_loop()
    return None if native is None else _kind_of(native).task()


def view_of(native: object, clock: Clock | None, precise: bool) -> EventLoop:
    """The view of the loop that runs in this thread: one for all limiters that have neither a clock nor ``precise``.

    Raises RuntimeError for a loop of a kind that is not in the table.
    """
    shared = clock is None and not precise
    if shared:
        view = _views.get(id(native))
        if view is not None and not view.forked:
            return view
    view = _kind_of(native).view(native, clock, precise)
    if shared:
        _views[id(native)] = view
    return view


# By id: a view holds its loop, so no other loop has that id meanwhile. A view goes with the last limiter that uses it.
_views: WeakValueDictionary[int, EventLoop] = WeakValueDictionary()


def port_of(native: object) -> Port:
    """A port to that loop. Raises RuntimeError for a loop of a kind that is not in the table."""
    return _kind_of(native).port(native)


def _kind_of(native: object) -> Kind:
    if isinstance(native, ASYNCIO.loop):
        return ASYNCIO
    for library, load in KINDS.items():
        if library in modules and isinstance(native, load().loop):
            return load()
    kind = f"{type(native).__module__}.{type(native).__qualname__}"
    raise RuntimeError(f"a limiter cannot wait in an event loop of the class {kind}. Use a loop of asyncio (or uvloop) or trio.")


class _Here(threading.local):
    view: EventLoop | None = None


class _RealTime:
    now = staticmethod(monotonic_ns)


_here = _Here()


def view_here() -> EventLoop | None:
    """A view of the loop that runs in this thread, by real time also where the loop's is virtual; None: no loop runs here."""
    native, view = running_loop(), _here.view
    if view is None or view.native is not native:
        view = _here.view = None if native is None else _kind_of(native).view(native, _RealTime(), False)
    return view


def starved_here() -> bool:
    """Whether the loop that runs in this thread is starved, by real time; False: no loop runs here."""
    view = _here.view
    if view is not None and monotonic_ns() < view.check_after:  # a loop that began to run since is not starved either
        return False
    view = view_here()
    return view is not None and view.starved()
