"""What a limit lacks: for the requests in line and, with a lease, for those to come. Knows nothing of questions and answers."""

from __future__ import annotations

from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple

from aiorate._store.script import MOST, MOST_RUNS
from aiorate._store.slots import MOST_NS
from aiorate._tree.line import StandIn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from aiorate._schedulers.amounts import Permits
    from aiorate._store.once import OneAnswer
    from aiorate._store.pool import Pool
    from aiorate._tree.line import Ticket
    from aiorate._tree.node import Node

__all__ = ["Demand", "Runs", "Terms"]

_US = 1_000  # ns
_BELOW: Ticket = StandIn(False)  # of the first of a limit below
_PORTION = 500  # slots asked for at once, if a horizon has fewer: the loop wakes as many waiters before slots lapse
_MANY = 5  # requests in line for which a budget books far ahead; fewer cost a call each
_CHUNK = 16  # average requests of a budget, whose time is the horizon if the one given is longer
_SHORTEST_US = 20_000  # of such a horizon
_REACH_US = 50_000  # of a budget's short line: a booking is firm, and what comes back until then is of no use to it
Runs = list[tuple[int, tuple[int, ...]]]
"""How many requests of which amounts."""


class Terms(NamedTuple):
    """How a limit uses its store. Durations are in ns."""

    kind: str
    """The kind of limit, as the value of the key has it."""
    horizon: int
    """How far ahead all processes together aim to book."""
    lease: int
    """How far ahead slots are taken that nobody asked for yet; 0: not at all."""
    slack: int
    """How late a slot may be used."""
    policy: str
    """What happens in an outage, ..."""
    grace: int
    """... once it has taken so long."""
    share: Fraction
    """This process's part of the limits then."""
    call: str
    """What errors name."""


class Demand:
    """What to ask the store for on behalf of the node's line. Slots are asked for once half of those that came last are gone."""

    __slots__ = ("_ahead_us", "_node", "_once", "_pool", "_terms", "_then", "_use", "came", "took")

    def __init__(self, node: Node, pool: Pool, terms: Terms, once: dict[Ticket, OneAnswer]) -> None:
        self._node, self._pool, self._terms = node, pool, terms
        self._use: list[tuple[int, int]] = [(0, -MOST_NS), (0, -MOST_NS)]  # permits spent and the reading, when the latest leases began
        self._then: tuple[int, int] = (0, 0)  # permits waited for and permits spent, when slots were asked for last
        self._ahead_us: float = 0.0  # the horizon of a budget's latest question
        self.came: int = 0
        """How many slots came last."""
        self.took: int = 0
        """How long an answer takes, smoothed; 0: none was measured."""
        self._once: dict[Ticket, OneAnswer] = once  # requests in line that wait for one answer of the store only

    def line(self) -> Iterator[tuple[Ticket, Permits]]:
        """The requests for the node that were not cancelled: the first one first, the others in about the order of service."""
        node = self._node
        line, first = node.line, node.first()
        if first is None:
            return
        if not isinstance(first, tuple):
            yield _BELOW, first.stood
        for _, limit in line.below():
            if limit is not first:
                yield _BELOW, limit.stood
        for ticket, permits, _ in line:
            if not ticket.cancelled():
                yield ticket, permits

    @property
    def waits(self) -> bool:
        """Whether anybody does."""
        return self._node.first() is not None

    def enough(self, first: Permits, now: int) -> bool:
        """Whether more than half of the slots that came last are left, and some last until others could be here.

        Slots that the first in line gathers, if it is for several permits, do not count as left.
        """
        pool = self._pool
        if not pool.unit or not isinstance(first, int):
            if pool.calendar is None and self._lasts(now) and not pool.lacks(first, now):
                return True
            return not self._short(now)[1]
        ready = pool.usable(first, now)
        left = ready if ready >= first else pool.hand.count - pool.hand.by(now)
        return 2 * left > self.came and pool.hand.last_due() > now + self.took

    def _lasts(self, now: int) -> bool:
        """Whether what is in hand for requests lasts for a while."""
        pool = self._pool
        return 2 * pool.usable(1, now) > self.came and pool.hand.last_due() > now + self.took

    def lack(self, reading: int, now: int) -> tuple[Runs, bool]:
        """The runs to ask for, and whether each request is granted whole or not at all."""
        return self._lacking_slots(reading, now) if self._pool.unit else self._lacking_requests(now)

    def _lacking_slots(self, reading: int, now: int) -> tuple[Runs, bool]:
        pool, line = self._pool, [(ticket, permits) for ticket, permits in self.line() if isinstance(permits, int)]
        first = line[0][1] if line else 0
        waiting = sum([permits for _, permits in line])
        if pool.hand.count and self.enough(first or 1, now):
            return [], False
        ready, of = pool.usable(first or 1, now), (1,) * len(pool.parts)
        expected = self._expected(first, waiting, reading) if self._terms.lease else 0
        most = max(_PORTION, first, *[part.rate.permits_in(self._horizon) for part in pool.parts])
        if not expected and line and all(ticket in self._once for ticket, _ in line):
            runs: Runs = []
            for ticket, permits in line:
                if permits > ready and (len(runs) == MOST_RUNS or (runs and sum([n for n, _ in runs]) + permits > most)):
                    break
                self._once[ticket].asked = True
                if permits <= ready:
                    ready -= permits
                else:
                    runs.append((permits - ready, of))
                    ready = 0
            return runs, True
        for ticket, _ in line if self._once else ():
            if ticket in self._once:
                self._once[ticket].asked = True
        waited, spent = self._then
        if ready and waiting >= waited and pool.spent > spent:
            # Grants since the last question did not make the line shorter. So they will not until the answer is here.
            coming = pool.hand.by(now + self.took)
            expected = max(expected, min(max(ready - pool.hand.count + coming, 0), waiting))
        missing = waiting + expected - ready
        if missing <= 0:
            return [], False
        self._then = waiting, pool.spent
        return [(min(missing, most), of)], False

    def _expected(self, first: int, waiting: int, reading: int) -> int:
        """How many permits the next lease will take, if use goes on as it did in the last one or two.

        The measurement begins after the permits of the first question, and again after two leases without a question: a process that
        makes one request in a while takes nothing ahead.
        """
        lease, pool = self._terms.lease, self._pool
        old, new = self._use
        age = reading - new[1]
        if age >= 2 * lease:
            old = new = pool.spent + first, reading
        elif age >= lease:
            old, new = new, (pool.spent, reading)
        self._use = [old, new]
        expected = min(max(pool.spent - old[0], 0) * lease // max(reading - old[1], lease), pool.rate.permits_in(lease))
        return expected if waiting else max(expected, pool.refused)  # a request was refused and does not wait

    def _short(self, now: int) -> tuple[list[Ticket], list[tuple[int, ...]]]:
        """The first requests in line, and those that lack slots, unless those in hand last for a while."""
        pool = self._pool
        line = list(islice(((ticket, need) for ticket, permits in self.line() if any(need := pool.need(permits))), 2 * MOST_RUNS))
        lacking = pool.hand.uncovered([need for _, need in line], now)
        if len(lacking) < len(line) and pool.calendar is None and self._lasts(now):
            lacking = []
        return [ticket for ticket, _ in line], lacking

    def _lacking_requests(self, now: int) -> tuple[Runs, bool]:
        once, (line, lacking) = self._once, self._short(now)
        if not lacking:
            return [], False
        for ticket in line[: len(line) - len(lacking) + MOST_RUNS] if once else ():
            if ticket in once:
                once[ticket].asked = True
        if once and all(ticket in once for ticket in line):
            return [(1, need) for need in lacking[:MOST_RUNS]], True
        return [(len([*same]), need) for need, same in groupby(lacking)][:MOST_RUNS], False

    @property
    def _horizon(self) -> int:
        return max(self._terms.horizon, self._terms.lease)

    def far(self, runs: Runs) -> float:
        """How far ahead all processes together aim to book, in us: for a budget, the time of a few requests at most."""
        pool = self._pool
        horizon = self._horizon / _US
        if pool.unit or pool.calendar is not None:
            return horizon
        costs = [n * max([min(part.time_of(of), MOST_NS) for of, part in zip(need, pool.parts, strict=True)]) / _US for n, need in runs]
        if costs:
            self._ahead_us = _CHUNK * sum(costs) / sum([n for n, _ in runs])
        return min(horizon, max(self._ahead_us, _SHORTEST_US))

    def reach(self, far: float) -> float:
        """How much later than the latest booking one may be, in us: for slots, any time."""
        pool = self._pool
        if pool.unit or pool.calendar is not None:
            return MOST
        trip = max(far, self.took / _US)
        return trip if len(self._node.line) >= _MANY else min(_REACH_US, trip)
