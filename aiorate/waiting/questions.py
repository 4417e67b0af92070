"""What a limiter would do: how long a request would wait, what is available, and whether nothing is owed. Answers change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.schedulers.interface import NOBODY_KNOWS
from aiorate.waiting.estimate import ahead
from aiorate.waiting.rehearsal import wait_in_line

if TYPE_CHECKING:
    from aiorate.waiting.dispatcher import Dispatcher

__all__ = ["available", "estimate", "is_rested", "next_reading", "shared_wait"]


def estimate(dispatcher: Dispatcher, permits: int, now: int) -> int | None:
    """Nanoseconds until a request made now would be granted, the line included; None: unknown."""
    timeline, gate, waiters = dispatcher.timeline, dispatcher.gate, dispatcher.waiters
    if gate is not None and waiters.line:
        return wait_in_line(dispatcher, gate, permits)
    scheduler = dispatcher.scheduler
    if waiters.line:
        instant = waiters.estimate.instant(scheduler, timeline, waiters.line, permits, now, dispatcher.catch_up)
    else:
        instant = max((ahead(scheduler, timeline) if timeline.pause_length else scheduler).peek(permits, now), now)
    if instant >= NOBODY_KNOWS:
        return None
    wait = 0
    if instant != now or timeline.held_at is not None:
        reading = timeline.reading_at(instant)
        if reading is None:
            return None
        wait = max(0, reading - timeline.read())
    shared = shared_wait(dispatcher, permits)
    return None if shared is None else max(wait, shared)


def shared_wait(dispatcher: Dispatcher, permits: int) -> int | None:
    """Nanoseconds until the shared limit, if there is one, would grant them to a limiter whose own line is empty; None: unknown."""
    if dispatcher.gate is None:
        return 0
    shared, permits = dispatcher.gate.shared, dispatcher.gate.permits_of(permits)
    if not permits:
        return 0
    return None if shared.is_closed else estimate(shared, permits, shared.look())


def next_reading(dispatcher: Dispatcher) -> int | None:
    """What the clock reads when the first in line is granted; None: unknown, as before a stopped limiter is started."""
    timeline, waiters = dispatcher.timeline, dispatcher.waiters
    if dispatcher.gate is not None:
        wait = wait_in_line(dispatcher, dispatcher.gate, None)
        return None if wait is None else timeline.read() + wait
    request = waiters.line.first()
    assert request is not None
    due = waiters.due
    if due is None:
        scheduler, now = dispatcher.scheduler, timeline.now()
        due = max((ahead(scheduler, timeline) if timeline.pause_length else scheduler).peek(request[1], now), now)
    return None if due >= NOBODY_KNOWS else timeline.reading_at(due)


def available(dispatcher: Dispatcher) -> int:
    """How many permits a newcomer would get at once."""
    if dispatcher.is_held:
        return 0
    own = dispatcher.scheduler.available(dispatcher.timeline.now())
    return own if dispatcher.gate is None else min(own, available(dispatcher.gate.shared))


def is_rested(dispatcher: Dispatcher) -> bool:
    """Whether nothing would be lost, and nothing granted sooner, with a new limiter in its place."""
    if dispatcher.loop is None:
        dispatcher.find_loop()  # a schedule begins at the first instant that it is given, which must be one of the loop's clock
    elif dispatcher.waiters.head is not None and dispatcher.loop.closed:
        dispatcher.find_loop()  # its waiters are gone
    if dispatcher.returnable or dispatcher.counters.altered or dispatcher.is_held:
        return False
    now = dispatcher.timeline.now()
    if dispatcher.batch.opened:
        dispatcher.settle(now)
    return dispatcher.scheduler.rested(now)
