"""When a request would be granted, and what lies ready, here and above. A question takes nothing; what is due is granted first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._schedulers.amounts import count_of
from aiorate._schedulers.interface import NOBODY_KNOWS

if TYPE_CHECKING:
    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.limit import Limit


def wait_for(limit: Limit, permits: Permits, now: int) -> int | None:
    """Nanoseconds until a request made now would be granted, those in line included, or less; None: unknown.

    It is exact in a line of its own where permits lie on a straight line. Where lines share a limit, those that are not there yet may
    come before it: then it takes longer.
    """
    return _wait(limit, permits, now, limit.line.total, None)


def _wait(limit: Limit, permits: Permits, now: int, ahead: Permits, below: Limit | None) -> int | None:
    """Nanoseconds until the permits are granted here and above to a request with ``ahead`` permits before it in its own line."""
    above = limit.above
    for each in limit.line.ahead(ahead, None if below is None else below.flow):
        ahead += each[1] if isinstance(each, tuple) else each.stood
    at = max(_peek(limit, permits, now, ahead), now)
    reading = None if at >= NOBODY_KNOWS else limit.reading_at(at)
    if reading is None:
        return None
    wait = max(0, reading - limit.read()) if at != now or limit.held_at is not None else 0
    if above is None:
        return wait
    up, ahead_up = limit.permits_above(permits), limit.permits_above(ahead) if ahead else 0
    if not up and isinstance(ahead_up, int) and ahead_up:  # it takes nothing above, but comes after those that do
        up, ahead_up = 1, ahead_up - 1
    if not up:
        return wait
    if above.shut or above.exceeded(up) is not None:
        return None
    there = _wait(above, up, above.look_now(), ahead_up, limit)
    return None if there is None else max(wait, there)


def _peek(limit: Limit, permits: Permits, now: int, ahead: Permits) -> int:
    """When the scheduler would grant them, once the present pause is over, which matters to one that follows the calendar."""
    scheduler, pause = limit.permitted, limit.pause_length
    if not pause:
        return scheduler.peek(permits, now, ahead)
    scheduler.shift(pause)
    try:
        return scheduler.peek(permits, now, ahead)
    finally:
        scheduler.shift(-pause)


def next_reading(limit: Limit) -> int | None:
    """What the clock reads when the first in line is granted, or less; None: unknown, as before a stopped limiter is started."""
    first = limit.first()
    assert first is not None
    if limit.above is None and limit.due is not None:
        return limit.reading_at(limit.due)
    permits, below = (first[1], None) if isinstance(first, tuple) else (first.stood, first)
    wait = _wait(limit, permits, limit.now(), 0, below)
    return None if wait is None else limit.read() + wait


def above_on_demand(limit: Limit) -> bool:
    """Whether a limit above has permits only for requests that wait."""
    above = limit.above
    return above is not None and (above.provider.on_demand or above_on_demand(above))


def informed(limit: Limit) -> int:
    """The present instant, once it is known what a store has left."""
    limit.look_now()
    limit.provider.look()
    return limit.look_now()


def in_line(limit: Limit) -> int:
    """The permits of all who wait there; of each limit below, those of its first."""
    return sum([count_of(below.stood) for _, below in limit.line.below()], count_of(limit.line.total))


def available(limit: Limit) -> int:
    """How many permits a newcomer would get at once."""
    limit.here()  # a limit above may not have been used yet: see is_rested()
    now = limit.now()  # which ends a pause that is over
    if limit.is_held:
        return 0
    permitted = limit.permitted
    if limit.provider.state == "local":
        own = permitted.available(now)
    else:  # a store that processes share has more than is in hand here
        own = min(left for left, _ in permitted._standings(now))
    return own if limit.above is None else min(own, available(limit.above))


def is_rested(limit: Limit) -> bool:
    """Whether nothing would be lost, and nothing granted sooner, with a new limiter in its place."""
    loop = limit.loop
    if loop is None or (limit.line.is_waited_in and loop.closed):
        limit.here()
    elif not limit.begun:
        limit.follow(loop.read)  # a schedule begins at the first instant that it is given, which must be one of the loop's clock
    now = limit.now()  # which ends a pause that is over
    if limit.returnable or limit.altered or limit.is_held or limit.provider.busy:
        return False
    return limit.permitted._rested(now)
