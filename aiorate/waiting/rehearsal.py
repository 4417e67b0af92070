"""Rehearsals of limits that share others: when would the waiting requests be granted, and one more after them?

The lines are rehearsed as they stand now. Other lines may bring more, so it may take longer. Knows nothing of loops or keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.waiting.estimate import ONE_BY_ONE, ahead

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.gate import Gate

__all__ = ["wait_in_line"]

_ROUNDS = 64  # how often two limits may name later instants in turn: enough for schedulers that keep the laws


def wait_in_line(dispatcher: Dispatcher, gate: Gate, permits: int | None) -> int | None:
    """Nanoseconds until every limit would grant ``permits`` at the end of the line; None: unknown.

    Without ``permits``: until they would grant the first in line.
    """
    level: Dispatcher | None = dispatcher
    while level is not None:
        if level.timeline.stopped or (level is not dispatcher and level.closed):
            return None
        level = None if level.gate is None else level.gate.shared
    rehearsal, first_at, _ = _rehearse(dispatcher, first_only=permits is None)
    return first_at if permits is None else rehearsal.next_due(permits)


def _rehearse(dispatcher: Dispatcher, below: Gate | None = None, first_only: bool = False) -> tuple[Rehearsal, int | None, int | None]:
    """Grant everything in the line of that limit.

    Returns the rehearsal, and how many ns from now the first is granted, and the request that stands there for the line ``below``.
    """
    gate = dispatcher.gate
    above, standing_above = None, None
    if gate is not None:
        gate.shared.look()
        above, _, standing_above = _rehearse(gate.shared, gate)
    rehearsal = Rehearsal(dispatcher, above, int if gate is None else gate.permits_of)
    first_at: int | None = None
    below_at: int | None = None
    head = dispatcher.line.head(1 if first_only else ONE_BY_ONE)
    for ticket, permits, since in head:
        if gate is not None and ticket is gate.first:
            at = rehearsal.take_standing(permits, standing_above or 0)  # far back in the shared line: some time from now
        elif rehearsal.allows(permits):
            at = rehearsal.take_next(permits, since)
        else:
            continue
        first_at = at if first_at is None else first_at
        below_at = at if below is not None and below.stands_as(ticket) else below_at
    if not first_only:
        rehearsal.take_ahead(dispatcher.line.rest(head))
    return rehearsal, first_at, below_at


class Rehearsal:
    """A rehearsal of a scheduler, and of those above it, in which waiting requests are granted.

    Time is in nanoseconds from now.
    """

    __slots__ = ("_above", "_begin", "_behind", "_catch_up", "_held_at", "_joined", "_permits_above", "_scheduler", "last")

    def __init__(self, dispatcher: Dispatcher, above: Rehearsal | None, permits_above: Callable[[int], int]) -> None:
        timeline = dispatcher.timeline
        self._held_at = timeline.now()
        self._scheduler = ahead(dispatcher.scheduler, timeline)
        self._catch_up = dispatcher.catch_up.limit
        self._behind = timeline.offset + timeline.pause_length
        self._begin = timeline.read()
        self._joined = self._held_at
        self._above = above
        self._permits_above = permits_above
        self.last: int = 0
        """When the latest of the requests is granted."""

    def allows(self, permits: int) -> bool:
        """Whether ``permits`` can ever be granted."""
        most = self._scheduler.max_permits
        if most is not None and permits > most:
            return False
        return self._above is None or self._above.allows(self._permits_above(permits))

    def due_own(self, permits: int, wait: int) -> int:
        """When ``permits`` are due here for a request that asks from ``wait`` on; 0 permits are due at once."""
        if not permits:
            return wait
        at = self._scheduler.peek(permits, self.instant(wait))
        return max(wait, at + self._behind - self._begin)

    def due(self, permits: int, wait: int) -> int:
        """When ``permits`` are due here and above for a request that asks from ``wait`` on."""
        permits_above = self._permits_above(permits)
        if self._above is None or not permits_above:
            return self.due_own(permits, wait)
        for _ in range(_ROUNDS):
            at = self.due_own(permits, self._above.due(permits_above, max(wait, self._above.last)))
            if at == wait:
                break
            wait = at
        return wait

    def next_due(self, permits: int) -> int:
        """When ``permits`` are due to the next in line, which joins the lines above when it is due here."""
        wait = self.due_own(permits, self.last)
        if self._above is not None:
            self._above.join(wait)
        return self.due(permits, wait)

    def join(self, wait: int) -> None:
        """The next request joins this line at ``wait``, and then the lines above."""
        self._joined = self.instant(wait)
        if self._above is not None:
            self._above.join(wait)

    def take(self, permits: int, wait: int, since: int | None = None) -> int:
        """Grant ``permits`` at ``wait``, when they are due here and above, to a request in line since ``since``; returns when."""
        if since is None and self._above is not None and self.due_own(permits, self.last) < wait:
            since = self.instant(wait)  # it stands in line above by then: not late here
        if self._above is not None:
            self._above.take(self._permits_above(permits), wait)
        return self.take_own(permits, wait, since)

    def take_next(self, permits: int, since: int) -> int:
        """Grant ``permits`` to the next in line, which has been there since ``since``; returns when."""
        due_here, wait = self.due_own(permits, self.last), self.next_due(permits)
        return self.take(permits, wait, since if wait == due_here else self.instant(wait))  # the limits above held it up: not late here

    def take_standing(self, permits: int, wait: int) -> int:
        """Grant ``permits`` to the first in line, which is granted above by ``wait``; returns when."""
        wait = self.due_own(permits, wait)
        return self.take_own(permits, wait, self.instant(wait))

    def take_own(self, permits: int, wait: int, since: int | None = None) -> int:
        """As `take`, where the permits above are taken already."""
        if not permits:
            return wait
        now = self.instant(wait)
        since = self._joined if since is None else since
        self._scheduler.take(permits, now, min(max(since, now - self._catch_up), now))
        self.last = wait
        return wait

    def take_ahead(self, permits: int) -> None:
        """Have the line take ``permits``, for which later requests wait; 0 does nothing."""
        if permits:
            self._scheduler.take_ahead(permits, self.instant(self.last))
            if self._above is not None:
                self._above.take_ahead(self._permits_above(permits))

    def instant(self, wait: int) -> int:
        """The limiter's own time after ``wait``."""
        return max(self._begin + wait - self._behind, self._held_at)
