"""Rehearsals of limits that share others: when would the waiting requests be granted, and one more after them?

The lines are rehearsed as they stand now. Other lines may bring more, so it may take longer. Knows nothing of loops or keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.waiting.estimate import ONE_BY_ONE, ahead
from aiorate.waiting.fair_line import FairLine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.fair_line import Order, Rehearsed
    from aiorate.waiting.gate import Gate
    from aiorate.waiting.line import Line, Ticket

__all__ = ["wait_in_line", "wait_of_first"]

_ROUNDS = 64  # how often two limits may name later instants in turn: enough for schedulers that keep the laws


def wait_in_line(dispatcher: Dispatcher, permits: int, below: Gate | None = None) -> int | None:
    """Nanoseconds until every limit would grant ``permits`` to a request that joins the line now; None: unknown.

    ``below``: the gate through which it joins; None: it asks this limit directly.
    """
    rehearsal = _rehearse(dispatcher, below)
    return None if rehearsal is None else rehearsal.next_due(permits)


def wait_of_first(dispatcher: Dispatcher) -> int | None:
    """Nanoseconds until every limit would grant the first in line; None: unknown."""
    rehearsal, first = _rehearse(dispatcher), dispatcher.line.first()
    return None if rehearsal is None or first is None else rehearsal.serve(*first)


def _rehearse(dispatcher: Dispatcher, below: Gate | None = None) -> Rehearsal | None:
    """A rehearsal of that limit, and of those above it, in which nothing is granted yet; None: one of them grants nothing."""
    gate, above = dispatcher.gate, None
    if dispatcher.timeline.stopped:
        return None
    if gate is not None:
        if gate.shared.closed:
            return None
        gate.shared.look()
        above = _rehearse(gate.shared, gate)
        if above is None:
            return None
    return Rehearsal(dispatcher, above, below)


class _Arrivals:
    """The requests in the line of a limit that no other line shares, in the order of service."""

    __slots__ = ("_line",)

    stands = False

    def __init__(self, line: Line) -> None:
        self._line: Line | None = line

    def next(self) -> Rehearsed | None:
        """None: all of them are served `before` the next request, whenever that joins."""
        return None

    def skip(self) -> None:
        """Never called."""

    def standing(self) -> Iterator[Rehearsed]:
        """Nothing: no line stands here."""
        return iter(())

    def before(self, permits: int) -> Iterator[Rehearsed]:
        """All of them, once."""
        line, self._line = self._line, None
        if line is not None:
            head = line.head(ONE_BY_ONE)
            yield from head
            yield None, line.rest(head), 0


class Rehearsal:
    """A rehearsal of a scheduler, and of those above it, in which waiting requests are granted.

    Requests of the line ``below``, or of direct callers, are granted as they are named, and others as it is their turn. Time is in
    nanoseconds from now.
    """

    __slots__ = (
        *("_above", "_begin", "_behind", "_catch_up", "_held_at", "_joined", "_order", "_permits_above", "_scheduler", "_standing_above"),
        "last",
    )

    def __init__(self, dispatcher: Dispatcher, above: Rehearsal | None, below: Gate | None) -> None:
        timeline, gate, line = dispatcher.timeline, dispatcher.gate, dispatcher.line
        self._held_at = timeline.now()
        self._scheduler = ahead(dispatcher.scheduler, timeline)
        self._catch_up = dispatcher.catch_up.limit
        self._behind = timeline.offset + timeline.pause_length
        self._begin = timeline.read()
        self._joined = self._held_at
        self._above = above
        self._permits_above = int if gate is None else gate.permits_of
        self._standing_above = None if gate is None else gate.first
        self._order: Order | _Arrivals
        if isinstance(line, FairLine):
            self._order = line.order(None if below is None else below.flow)
        else:
            self._order = _Arrivals(line)
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
        """When ``permits`` are due to a request that joins this line now, at its place."""
        for request in self._order.before(permits):
            self.serve(*request)
        return self._due_next(permits)

    def serve(self, ticket: Ticket | None, permits: int, since: int) -> int | None:
        """Grant a request that is in line since ``since``, or many at once if it has no ticket; returns when. None: it is too large."""
        if ticket is None:
            self.take_ahead(permits)
            return self.last
        if self._above is not None and ticket is self._standing_above and self._above.stands:
            wait = self.due_own(permits, self._above.serve_standing())
            return self.take_own(permits, wait, self.instant(wait))
        return self.take_next(permits, since) if self.allows(permits) else None

    @property
    def stands(self) -> bool:
        """Whether the first of the line below stands here."""
        return self._order.stands

    def serve_standing(self) -> int:
        """Grant the request that stands here for the line below, after those before it; returns when."""
        at: int | None = None
        for request in self._order.standing():
            at = self.serve(*request)
        return 0 if at is None else at

    def make_way(self, permits: int, wait: int) -> None:
        """Grant what is served before the next request of the line below, which joins this line at ``wait``, and then those above."""
        if permits:
            while (early := self._order.next()) is not None and self._is_due_before(wait, *early):
                self._order.skip()
                self.serve(*early)
            for request in self._order.before(permits):
                self.serve(*request)
            self._joined = self.instant(wait)
            if self._above is not None:
                self._above.make_way(self._permits_above(permits), wait)

    def _is_due_before(self, wait: int, ticket: Ticket | None, permits: int, since: int) -> bool:
        """Whether it is granted before a request that joins at ``wait``, or is too large; many at once are not."""
        return ticket is not None and (not self.allows(permits) or self.due(permits, self.last) < wait)

    def take(self, permits: int, wait: int, since: int | None = None) -> int:
        """Grant ``permits`` at ``wait``, when they are due here and above, to a request in line since ``since``; returns when."""
        if since is None and self._above is not None and self.due_own(permits, self.last) < wait:
            since = self.instant(wait)  # it stands in line above by then: not late here
        if self._above is not None:
            self._above.take(self._permits_above(permits), wait)
        return self.take_own(permits, wait, since)

    def take_next(self, permits: int, since: int) -> int:
        """Grant ``permits`` to the next in line, which has been there since ``since``; returns when."""
        due_here, wait = self.due_own(permits, self.last), self._due_next(permits)
        return self.take(permits, wait, since if wait == due_here else self.instant(wait))  # the limits above held it up: not late here

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
                self._above.make_way(self._permits_above(permits), self.last)
                self._above.take_ahead(self._permits_above(permits))

    def _due_next(self, permits: int) -> int:
        """When ``permits`` are due to the next to serve, which joins the lines above when it is due here."""
        wait = self.due_own(permits, self.last)
        if self._above is not None:
            self._above.make_way(self._permits_above(permits), wait)
        return self.due(permits, wait)

    def instant(self, wait: int) -> int:
        """The limiter's own time after ``wait``."""
        return max(self._begin + wait - self._behind, self._held_at)
