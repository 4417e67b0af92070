"""Which event loop runs here, and what limiters see of it: one table of the families of loops. Knows nothing of rates.

To add a family, write its `OneLoop` and a row of the table; docs/contributing.md says how.
"""

from __future__ import annotations

import threading
from asyncio import _get_running_loop as running_asyncio
from functools import cache
from sys import modules
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from aiorate._loops.asyncio import AsyncioLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._loops.loop import Clock, OneLoop


@cache
def _trio() -> type[OneLoop]:
    from aiorate._loops.trio import TrioLoop

    return TrioLoop


# The table, without asyncio, whose loop is asked for first. A family is loaded once the program has imported the library of that name.
_OTHERS: dict[str, Callable[[], type[OneLoop]]] = {"trio": _trio}


def running_loop() -> object | None:
    """The event loop that runs in this thread; None: none does."""
    native = running_asyncio()
    for library in _OTHERS:
        if library in modules:
            # Where one loop is the guest of the other, both run in this thread. Then the running task decides.
            family = _OTHERS[library]()
            if (native is None or family.task() is not None) and (guest := family.here()) is not None:
                return guest
    return native


def running_task() -> object | None:
    """The task that runs in this thread; None: none does."""
    native = running_loop()
    return None if native is None else loop_of(native, None, precise=False).task()


def loop_of(native: object, clock: Clock | None, precise: bool) -> OneLoop:
    """That loop, which runs in this thread: one object for all limiters that have neither a clock nor ``precise``.

    Raises RuntimeError for a loop of a family that is not in the table.
    """
    plain = _loops.get(id(native))
    if plain is None or plain.forked:
        plain = _loops[id(native)] = _family_of(native)(native, None, False, None)
    return plain if clock is None and not precise else type(plain)(native, clock, precise, plain)


# By the id of the native loop, which each holds, so no other has that id meanwhile. It goes with the last limiter that uses it.
_loops: WeakValueDictionary[int, OneLoop] = WeakValueDictionary()


class _Here(threading.local):
    loop: OneLoop | None = None


_here = _Here()


def loop_here() -> OneLoop | None:
    """The loop that runs in this thread; None: none does."""
    native, loop = running_loop(), _here.loop
    if loop is None or loop.native is not native or loop.forked:
        loop = _here.loop = None if native is None else loop_of(native, None, precise=False)
    return loop


def starved_here() -> bool:
    """Whether the loop that runs in this thread is starved; False: no loop runs here."""
    loop = _here.loop
    if loop is not None and loop.monotonic and loop.read() < loop.check.until:  # a loop that began to run since is not starved either
        return False
    loop = loop_here()
    return loop is not None and loop.starved()


def _family_of(native: object) -> type[OneLoop]:
    families: list[type[OneLoop]] = [AsyncioLoop, *[load() for library, load in _OTHERS.items() if library in modules]]
    for family in families:
        if isinstance(native, family.natives):
            return family
    kind = f"{type(native).__module__}.{type(native).__qualname__}"
    raise RuntimeError(f"a limiter cannot wait in an event loop of the class {kind}. Use a loop of asyncio (or uvloop) or trio.")
