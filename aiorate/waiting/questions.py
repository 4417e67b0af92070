"""What a limiter would do: how long a request would wait, what is available, and whether nothing is owed. Answers change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.schedulers.interface import NOBODY_KNOWS
from aiorate.waiting.fair_line import FairLine
from aiorate.waiting.moving import find_loop

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
    """Nanoseconds until a request made now would be granted, those in line included, or less; None: unknown.

    It is exact in a line of its own where permits lie on a straight line. Where lines share a limit, those that are not there yet may
    come before it: then it takes longer. ``below`` is the gate through which it comes, if another line's request is asked about.
    """
    return _wait(dispatcher, permits, now, _in_line(dispatcher), below)


def shared_wait(dispatcher: Dispatcher, permits: int) -> int | None:
    """Nanoseconds until the shared limit, if there is one, would grant them to the first in line here, or less; None: unknown."""
    gate = dispatcher.gate
    if gate is None or not (above := gate.permits_of(permits)):
        return 0
    return None if is_closed(gate.shared) else _wait(gate.shared, above, gate.shared.look(), 0, gate)


def next_reading(dispatcher: Dispatcher) -> int | None:
    """What the clock reads when the first in line is granted, or less; None: unknown, as before a stopped limiter is started."""
    timeline, waiters = dispatcher.timeline, dispatcher.waiters
    request = waiters.line.first()
    assert request is not None
    if dispatcher.gate is None and waiters.due is not None:
        return None if waiters.due >= NOBODY_KNOWS else timeline.reading_at(waiters.due)
    wait = _wait(dispatcher, request[1], timeline.now(), 0, None)
    return None if wait is None else timeline.read() + wait


def _in_line(dispatcher: Dispatcher) -> int:
    """The permits of those who wait in this line, and not in another one for a limit that is shared."""
    line = dispatcher.line
    return line.own_total if isinstance(line, FairLine) else line.total


def _wait(dispatcher: Dispatcher, permits: int, now: int, ahead: int, below: Gate | None) -> int | None:
    """Nanoseconds until the permits are granted here and above to a request with ``ahead`` permits before it in its own line."""
    timeline, line, gate = dispatcher.timeline, dispatcher.line, dispatcher.gate
    if isinstance(line, FairLine):
        ahead += line.before(None if below is None else below.flow)
    at = max(_peek(dispatcher, permits, now, ahead), now)
    reading = None if at >= NOBODY_KNOWS else timeline.reading_at(at)
    if reading is None:
        return None
    wait = max(0, reading - timeline.read()) if at != now or timeline.held_at is not None else 0
    if gate is None or not (above := gate.permits_of(permits)):
        return wait
    if is_closed(gate.shared):
        return None
    there = _wait(gate.shared, above, gate.shared.look(), gate.permits_of(ahead) if ahead else 0, gate)
    return None if there is None else max(wait, there)


def _peek(dispatcher: Dispatcher, permits: int, now: int, ahead: int) -> int:
    """When the scheduler would grant them, once the present pause is over, which matters to one that follows the calendar."""
    scheduler, pause = dispatcher.scheduler, dispatcher.timeline.pause_length
    if not pause:
        return scheduler.peek(permits, now, ahead)
    scheduler.shift(pause)
    try:
        return scheduler.peek(permits, now, ahead)
    finally:
        scheduler.shift(-pause)


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
