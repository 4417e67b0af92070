"""Which event loop a limiter is used in. On another one the budget stays, and requests that wait on the old one fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.waiting.loops import running_loop, view_of
from aiorate.waiting.waiters import NOBODY, Waiters

if TYPE_CHECKING:
    from collections.abc import Sized

    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.view import EventLoop

__all__ = ["find_loop", "move_to", "waiters_here"]

_IN_USE = (
    "this limiter is in use by another running event loop. For several loops or threads, create it with scope='process'; two limiters"
    " would allow twice as much."
)


def find_loop(dispatcher: Dispatcher) -> None:
    """See which event loop runs, and move there. RuntimeError if the limiter is in use in another one that runs."""
    native, old = running_loop(), dispatcher.loop
    if old is None:
        if native is None:
            dispatcher.timeline.begun = True
            return
    elif native is old.native:
        return
    elif old.running:
        raise RuntimeError(_IN_USE)
    elif native is None and not old.closed:
        return
    move_to(dispatcher, None if native is None else view_of(native, dispatcher.extras.clock, dispatcher.extras.precise))
    if dispatcher.passes is not None:
        dispatcher.passes.serve()
    if old is not None and dispatcher.gate is not None:
        # Or a shared limit would keep a closed loop with its tasks, and these the places that they hold.
        dispatcher.gate.shared.look()


def move_to(dispatcher: Dispatcher, loop: EventLoop | None) -> None:
    """Serve the callers of that loop from now on."""
    if dispatcher.loop is not None:
        _leave(dispatcher, dispatcher.loop)
    dispatcher.loop = loop
    if loop is not None and dispatcher.extras.clock is None:
        dispatcher.timeline.follow(loop.read)
    dispatcher.open_meter()


def _leave(dispatcher: Dispatcher, old: EventLoop) -> None:
    waiters, dispatcher.waiters = dispatcher.waiters, NOBODY
    if waiters is not NOBODY:
        waiters.disband()
    if dispatcher.gate is not None:
        dispatcher.gate.withdraw()
    dispatcher.watcher.moved()
    dispatcher.catch_up.late = None
    # Grants whose tasks will never go on cannot come back; those that are held may.
    counters = dispatcher.counters
    counters.returnable = 0 if old.forked else counters.returnable - waiters.resuming
    dispatcher.scheduler.receipts = counters.returnable > 0


def waiters_here(dispatcher: Dispatcher, noted: Sized | None = None) -> Waiters:
    """The requests that wait in the running loop. RuntimeError without a loop, unless ``noted`` shows that a thread waits."""
    native = running_loop()
    if dispatcher.loop is None or native is not dispatcher.loop.native:
        find_loop(dispatcher)
    if dispatcher.loop is None or (native is None and noted is None):
        instead = "try_acquire() and delay() work without one." if dispatcher.section is None else "acquire_blocking() waits without one."
        raise RuntimeError(f"acquire() can only wait in a running event loop; {instead}")
    if dispatcher.waiters is NOBODY:
        dispatcher.waiters = Waiters.of(dispatcher, dispatcher.loop)
    return dispatcher.waiters
