"""What a limiter would do: how long a request would wait, what is available, and whether nothing is owed. Answers change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.schedulers.interface import NOBODY_KNOWS
from aiorate.waiting.estimate import ahead
from aiorate.waiting.fair_line import FairLine
from aiorate.waiting.moving import find_loop
from aiorate.waiting.rehearsal import wait_in_line, wait_of_first

if TYPE_CHECKING:
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.gate import Gate
    from aiorate.waiting.max_waiting import Admission
    from aiorate.waiting.refusals import Refusals

__all__ = [
    "admit",
    "available",
    "estimate",
    "is_closed",
    "is_rested",
    "look_from_top",
    "max_permits",
    "next_reading",
    "shared_wait",
    "shares_on_demand",
]


def admit(dispatcher: Dispatcher, permits: int, now: int, limit: int | None, most: Admission | None, refusals: Refusals) -> None:
    """Raise the error of a request that was refused and may not wait in line, or not for ``limit`` ns."""
    if is_closed(dispatcher):
        raise refusals.closed(dispatcher)
    if most is not None:
        most.check(permits, refusals)
    if limit is not None:
        wait = estimate(dispatcher, permits, now)
        if wait is None or wait > limit:
            if not limit and shares_on_demand(dispatcher):
                raise refusals.no_lease()
            dispatcher.counters.refused += 1
            raise refusals.too_long(permits, limit, wait, dispatcher, now)


def is_closed(dispatcher: Dispatcher) -> bool:
    """Whether the limiter is closed, or a limit that it shares is."""
    return dispatcher.closed or (dispatcher.gate is not None and is_closed(dispatcher.gate.shared))


def shares_on_demand(dispatcher: Dispatcher) -> bool:
    """Whether a limit that it shares has permits only for requests that wait."""
    shared = None if dispatcher.gate is None else dispatcher.gate.shared
    return shared is not None and (shared.watcher.on_demand or shares_on_demand(shared))


def max_permits(dispatcher: Dispatcher) -> int | None:
    """The largest request that can ever be granted; None: any."""
    own = dispatcher.scheduler.max_permits
    shared = None if dispatcher.gate is None else max_permits(dispatcher.gate.shared)
    return own if shared is None or (own is not None and own < shared) else shared


def look_from_top(dispatcher: Dispatcher) -> None:
    """Grant all that is due, first in the limits that are shared."""
    if dispatcher.gate is not None:
        look_from_top(dispatcher.gate.shared)
    dispatcher.look()


def estimate(dispatcher: Dispatcher, permits: int, now: int, below: Gate | None = None) -> int | None:
    """Nanoseconds until a request made now would be granted, the line included; None: unknown.

    ``below`` is the gate through which it comes, if another line's request is asked about.
    """
    timeline, line = dispatcher.timeline, dispatcher.line
    if line and (dispatcher.gate is not None or isinstance(line, FairLine)):
        return wait_in_line(dispatcher, permits, below)
    scheduler = dispatcher.scheduler
    if line and not isinstance(line, FairLine):
        instant = dispatcher.waiters.estimate.instant(scheduler, timeline, line, permits, now, dispatcher.catch_up.limit)
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
    if shared is None:
        return None
    if wait and shared and _stands_above(dispatcher):  # others may be served until this one stands there
        return wait_in_line(dispatcher, permits, below)
    return max(wait, shared)


def _stands_above(dispatcher: Dispatcher) -> bool:
    """Whether a request stands in the line of a limit that this one shares."""
    shared = None if dispatcher.gate is None else dispatcher.gate.shared
    return shared is not None and (bool(shared.line) or _stands_above(shared))


def shared_wait(dispatcher: Dispatcher, permits: int) -> int | None:
    """Nanoseconds until the shared limit, if there is one, would grant them to a limiter whose own line is empty; None: unknown."""
    if dispatcher.gate is None:
        return 0
    gate = dispatcher.gate
    shared, permits = gate.shared, gate.permits_of(permits)
    if not permits:
        return 0
    return None if is_closed(shared) else estimate(shared, permits, shared.look(), gate)


def next_reading(dispatcher: Dispatcher) -> int | None:
    """What the clock reads when the first in line is granted; None: unknown, as before a stopped limiter is started."""
    timeline, waiters = dispatcher.timeline, dispatcher.waiters
    if dispatcher.gate is not None:
        wait = wait_of_first(dispatcher)
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
    find_loop(dispatcher)  # a shared limit may not have been used yet: see is_rested()
    now = dispatcher.timeline.now()  # which ends a pause that is over
    if dispatcher.is_held:
        return 0
    scheduler = dispatcher.scheduler
    if dispatcher.watcher.state == "local":
        own = scheduler.available(now)
    else:  # a store that processes share has more than is in hand here
        own = min(left for left, _ in scheduler.standings(now))
    return own if dispatcher.gate is None else min(own, available(dispatcher.gate.shared))


def is_rested(dispatcher: Dispatcher) -> bool:
    """Whether nothing would be lost, and nothing granted sooner, with a new limiter in its place."""
    if dispatcher.loop is None:
        find_loop(dispatcher)  # a schedule begins at the first instant that it is given, which must be one of the loop's clock
    elif dispatcher.waiters.head is not None and dispatcher.loop.closed:
        find_loop(dispatcher)  # its waiters are gone
    now = dispatcher.timeline.now()  # which ends a pause that is over
    if dispatcher.counters.returnable or dispatcher.counters.altered or dispatcher.is_held or dispatcher.watcher.busy:
        return False
    return dispatcher.scheduler.rested(now)
