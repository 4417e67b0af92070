"""Which event loop runs here, and what limiters see of it: one table of the families of loops.

To add a family, write its `OneLoop` and a row of the table; docs/contributing.md says how.
"""

from __future__ import annotations

import threading
from asyncio import _get_running_loop as running_asyncio
from functools import cache
from sys import modules
from typing import TYPE_CHECKING, Any
from weakref import ref

from aiorate._loops.asyncio import AsyncioLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._loops.loop import OneLoop


@cache
def _trio() -> type[OneLoop]:
    from aiorate._loops.trio import TrioLoop

    return TrioLoop


# The table, by the library that a program has to import first. asyncio is not in it: running_loop() asks for its loop without a call.
_OTHERS: dict[str, Callable[[], type[OneLoop]]] = {"trio": _trio}


def running_loop() -> object | None:
    """The event loop that runs in this thread, if any."""
    native = running_asyncio()
    for library in _OTHERS:
        if library in modules:
            # Where one loop is the guest of the other, both run in this thread. Then the running task decides.
            family = _OTHERS[library]()
            if (native is None or family.task() is not None) and (guest := family.here()) is not None:
                return guest
    return native


def running_task() -> object | None:
    """The task that runs in this thread, if any."""
    loop = loop_here()
    return None if loop is None else loop.task()


class _Here(threading.local):
    loop: Callable[[], OneLoop | None] = staticmethod(lambda: None)  # a reference: it goes with the last limiter that uses it


_here = _Here()


def loop_here() -> OneLoop | None:
    """What limiters see of the loop that runs in this thread, if any."""
    native, loop = running_loop(), _here.loop()
    if native is None:
        return None
    if loop is None or loop.native is not native or loop.forked:
        families: list[Any] = [AsyncioLoop, *[load() for library, load in _OTHERS.items() if library in modules]]
        loop = next(family(native) for family in families if family.here() is native)
        _here.loop = ref(loop)
    return loop


def starved_here() -> OneLoop | None:
    """The loop that runs in this thread, if it is starved."""
    loop = _here.loop()
    if loop is not None and loop.monotonic and loop.read() < loop.check.until:  # a loop that began to run since is not starved either
        return None
    loop = loop_here()
    return None if loop is None else loop.starved()
