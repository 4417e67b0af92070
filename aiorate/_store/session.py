"""One limit's talk with the store: what to ask next, and what an answer means for its pool. Sends nothing itself: `StoreClient` does."""

from __future__ import annotations

import os
from functools import partial
from itertools import groupby, islice
from logging import getLogger
from math import ceil
from random import getrandbits
from typing import TYPE_CHECKING, NamedTuple

from aiorate._rate import NS_PER_SECOND
from aiorate._store.client import sessions
from aiorate._store.once import OneAnswer, refuse
from aiorate._store.outage import Outage
from aiorate._store.place import LoopPlace
from aiorate._store.pool import MOST_NS, Level, Pool, Run
from aiorate._store.script import HEAD, MOST, MOST_RUNS, OF_RATE, OF_WINDOW, Question, pack, read_answer
from aiorate._tree.changes import on_pause_end
from aiorate._tree.line import StandIn
from aiorate._tree.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from fractions import Fraction

    from aiorate._loops.clock import Handle
    from aiorate._store.asking import Asked
    from aiorate._store.client import StoreClient
    from aiorate._store.place import Place, Returned
    from aiorate._store.pool import Part
    from aiorate._store.script import Answer
    from aiorate._tree.line import Ticket
    from aiorate._tree.node import Node

__all__ = ["StoreSession", "Terms"]

_logger = getLogger("aiorate")

_US, _MS = 1_000, 1_000_000  # ns
_BELOW: Ticket = StandIn(False)  # of the first of a limit below
_INTEREST_NS = NS_PER_SECOND  # how long a store that is lost is asked after slots were wanted last
_CONNECTING_NS = NS_PER_SECOND // 20  # how long aclose() trusts that a store answers which has not answered before
_LONGEST_ANSWER_NS = NS_PER_SECOND  # a slower round trip counts as this
_PORTION = 500  # slots asked for at once, if a horizon has fewer: the loop wakes as many waiters before slots lapse
_MANY = 5  # requests in line for which a budget books far ahead; fewer cost a call each
_CHUNK = 16  # average requests of a budget, whose time is the horizon if the one given is longer
_SHORTEST_US = 20_000  # of such a horizon
_REACH_US = 50_000  # of a budget's short line: a booking is firm, and what comes back until then is of no use to it
_SOONEST_NS, _LATEST_NS = 20 * _MS, 250 * _MS  # after which to ask again for a reservation that was not booked
_RECHECKS, _LONGEST_RECHECK_NS = 64, 60 * NS_PER_SECOND  # of a window that is used up: permits may come back
_RETURNS = 12  # the store hears of this many at once, whatever is in hand
_FLUSH_SECONDS = 0.05  # after which the store hears what came back, if no question is to be expected
_PAUSE_SECONDS = 1.0  # how often a process in which a request waits asks whether a pause goes on
_LATEST_UNIX_NS = 10**19  # the year 2286

Runs = list[tuple[int, tuple[int, ...]]]


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


class Sent(NamedTuple):
    """The question under way."""

    at: int
    """The reading when it was sent."""
    runs: Runs
    parts: tuple[Part, ...]
    """By which it was asked."""
    whole: bool
    """Whether requests are granted whole or not at all, for those who wait for one answer."""
    more: list[int]
    """The corrections that it tells, ..."""
    oldest: int | None
    """... and since when."""
    resumes: bool
    pause_at: int | None
    closed: bool
    """Whether the limit was closed by then."""


class StoreSession(Watcher):
    """Between a limit, whose node it watches and whose pool it fills, and the client that asks the store."""

    __slots__ = (
        "__weakref__",
        "_ahead_us",
        "_came",
        "_clock",
        "_differs",
        "_closed",
        "_edges",
        "_flush",
        "_followed",
        "_lapsed",
        "_node",
        "_number",
        "_outage",
        "_pause_at",
        "_pause_timer",
        "_place",
        "_pool",
        "_rechecks",
        "_resumes",
        "_returned",
        "_returns",
        "_seat",
        "_sent",
        "_silent",
        "_tail",
        "_terms",
        "_then",
        "_told",
        "_told_at",
        "_took",
        "_use",
        "_wanted_at",
        "client",
        "key",
        "once",
    )

    def __init__(self, source: object, key: str, node: Node, pool: Pool, terms: Terms, place: Place | None = None) -> None:
        self.key: str = key
        """Of the store."""
        self.client: StoreClient | None = None
        """The client that asks on behalf of this limit; None: nothing was asked yet in this event loop."""
        self.once: dict[Ticket, OneAnswer] = {}
        """Requests in line that wait for one answer of the store only."""
        self._place: Place = place or LoopPlace(source)
        self._node, self._pool, self._terms = node, pool, terms
        self._outage: Outage = Outage(node, pool, terms.policy, terms.grace, terms.share, terms.call)
        self._closed: bool = False  # nothing is asked, except to return slots
        self._returned: Returned | None = None  # while aclose() waits until the store has heard of slots that come back
        self._sent: Sent | None = None  # None: no question is under way
        self._told, self._told_at = "", 0  # what the store said last, and the reading then
        self._took: int = 0  # how long an answer takes, smoothed; 0: none was measured
        self._number: tuple[int, int] = (0, 0)  # of this client, and its process
        self._seat: float = 0
        self._clock: int | None = None  # what the store's clock is ahead of readings; None: it has not said
        self._edges: tuple[object, list[int]] = (None, [])  # of windows; Unix times in ns, of that rate
        self._differs: bool = False  # whether the log was told that calendars differ
        self._came: int = 0  # how many slots came last
        self._tail: Run | None = None  # the last slots of all, as far as is known
        self._use: list[tuple[int, int]] = [(0, -MOST_NS), (0, -MOST_NS)]  # permits spent and the reading, when the latest leases began
        self._then: tuple[int, int] = (0, 0)  # permits waited for and permits spent, when slots were asked for last
        self._ahead_us: float = 0.0  # the horizon of a budget's latest question
        self._returns: int = 0  # since a question told of them
        self._resumes, self._pause_at = False, None  # what the store is to hear: a pause is over, and one ends at that reading
        self._followed: bool = False  # whether the store pauses all processes
        self._rechecks: bool = False  # whether the next question asks for nothing else than whether a pause goes on
        self._lapsed: int = 0  # ns of schedule that were reported as skipped
        self._wanted_at: int = 0  # the reading when slots were wanted last
        self._silent: bool = False  # whether there was nothing to ask when the client was ready to
        self._flush: Handle | None = None
        self._pause_timer: Handle | None = None
        pool.link = self
        node.watcher = self
        sessions.add(self)

    # What the pool and the node tell.

    def wanted(self, now: int) -> bool:
        """Slots may be wanted at that instant. Returns whether the store will be asked."""
        if self._closed or not self._place.open:
            return False
        if self._silent and self._outage.degraded:
            self._outage.suspend()
        self._silent = False
        self._wanted_at = self._node.timeline.read()
        if self._pool.outage == "local":
            self._ask_local(now)
            self._wake()
            return False
        first = next(self._line(), None)
        if self._pool.count and self._enough(1 if first is None else first[1], now):
            return False
        self._wake()
        return True

    def corrected(self, at_once: bool) -> None:
        self._returns += 1
        if at_once or (self._returns == _RETURNS and self._pool.asked_at is None):
            self._tell()
        else:
            self._flush_later()

    @property
    def state(self) -> str:
        return "degraded" if self._outage.degraded else "shared"

    @property
    def busy(self) -> bool:
        return self._sent is not None or self._resumes or self._pause_at is not None or any(self._pool.corrections)

    @property
    def on_demand(self) -> bool:
        return not self._terms.lease

    def pausing(self, ns: int) -> None:
        """The store has to hear of a pause. Raises ValueError for more than 317 years."""
        if ns > MOST_NS:
            seconds, longest = ns // NS_PER_SECOND, MOST_NS // NS_PER_SECOND
            raise ValueError(f"pause({seconds}): a limit in a store is paused for at most {longest} seconds, which are 317 years.")
        until = self._node.timeline.read() + ns
        self._pause_at = until if self._pause_at is None else max(until, self._pause_at)
        self._tell()
        self._refuse()

    def resumed(self) -> None:
        self._pause_at, self._resumes = None, True
        self._tell()

    def held_up(self) -> None:
        """A request waits for the end of a pause, which other processes may end earlier."""
        timers, timeline = self._place.timers, self._node.timeline
        until = timeline.paused_until
        long = until is not None and until - timeline.read() > _PAUSE_SECONDS * NS_PER_SECOND
        if timers is not None and not self._closed and self._followed and self._pause_timer is None and long:
            self._pause_timer = timers.call_later(_PAUSE_SECONDS, self._recheck_pause)

    def _recheck_pause(self) -> None:
        self._pause_timer = None
        if self._waits and self._node.timeline.paused:
            self._rechecks = True
            self._tell()

    def shared(self) -> None:
        """The first in line keeps its slots while another limit is asked after this one."""
        self._pool.patient = True

    def dismissed(self) -> None:
        if self.client is not None and self._place.has(self.client):
            self._place.release(self.client, self)  # which ends with those that are left, before this one is collected
            self._forget_question()

    def moved(self) -> None:
        """The event loop is gone, or another one is used, which may have asked already."""
        if self.client is not None and not self._place.has(self.client):
            self._forget_question()

    def _forget_question(self) -> None:
        self._cancel_timers()
        self._untold()
        self.client = self._returned = None
        self._pool.unanswered()

    def forked(self) -> None:
        """This is a child process now: the slots in hand and the connection are the parent's."""
        self._pool.clear()
        self._tail = None
        self.once.clear()
        self._forget_question()
        self._pool.corrections, self._pool.oldest = [0] * len(self._pool.parts), None

    def _tell(self) -> None:
        if not self._closed and self._place.open:
            self._wake()

    def _wake(self) -> None:
        """Have the client ask that is the right one here."""
        place = self._place
        if self.client is not None and not place.has(self.client):
            self._forget_question()
        client = self.client
        if client is None or (client.provisional and self._sent is None):
            found = place.find(self.key)
            if found is not client:
                if client is not None:
                    place.release(client, self)
                place.attach(found, self)
                self.client = found
                self._outage.await_end_of_grace(place.timers)
            client = found
        if not place.wake(client, self):
            self._wake()  # it is no longer there

    # Requests that wait for one answer.

    @property
    def answer_ns(self) -> int:
        """How long an answer of the store takes."""
        return self._pool.answer_ns

    def ask_once(self, ticket: Ticket, answer: OneAnswer) -> None:
        """That request, which is in line, waits for one answer of the store; for none if it does not answer at present."""
        self.once[ticket] = answer
        if not self._coming or self._outage.began is not None:
            self._refuse()

    def recheck(self) -> None:
        """Ask for the next request, whatever the store said last."""
        self._pool.look_at = None

    @property
    def _coming(self) -> bool:
        """Whether an answer is on its way that may have slots for the next request."""
        return self._pool.asked_at is not None and not self._closed and self._node.timeline.held_at is None

    def _refuse(self, coming: bool = False) -> None:
        if self.once:
            refuse(self._node, self._pool, self.once, self._terms.slack, coming)

    def _asks_on(self) -> bool:
        """Have the store asked for the line, unless the first in it has its slots and will be granted in the loop's next iteration."""
        node, pool, first = self._node, self._pool, next(self._line(), None)
        if first is None or node.timeline.held_at is not None:
            return False
        now = node.timeline.now()
        if pool.peek(first[1], now) <= now:
            return True
        self.recheck()
        pool.want(now)
        return self._coming

    # What is lacking.

    def _line(self) -> Iterator[tuple[Ticket, int]]:
        """The requests for the node that were not cancelled: the first one first, the others in about the order of service."""
        queue = self._node.queue
        first = queue.first()
        if first is None:
            return
        if not isinstance(first, tuple):
            yield _BELOW, first.stood
        for _, limit in queue.below():
            if limit is not first:
                yield _BELOW, limit.stood
        for ticket, permits, _ in queue.line:
            if not ticket.cancelled():
                yield ticket, permits

    @property
    def _waits(self) -> bool:
        return self._node.queue.first() is not None

    def _enough(self, first: int, now: int) -> bool:
        """Whether more than half of the slots that came last are left, and some last until others could be here.

        Slots that the first in line gathers, for ``first`` permits, do not count as left.
        """
        pool = self._pool
        if not pool.unit:
            return False
        ready = pool.usable(first, now)
        left = ready if ready >= first else pool.count - sum([run.by(now) for run in pool.runs])
        return 2 * left > self._came and pool.last_due() > now + self._took

    def _lack(self, reading: int, now: int) -> tuple[Runs, bool]:
        """The runs to ask for, and whether each request is granted whole or not at all."""
        return self._lacking_slots(reading, now) if self._pool.unit else self._lacking_requests(now)

    def _lacking_slots(self, reading: int, now: int) -> tuple[Runs, bool]:
        pool, line = self._pool, list(self._line())
        first = line[0][1] if line else 0
        waiting = sum([permits for _, permits in line])
        if pool.count and self._enough(first or 1, now):
            return [], False
        ready, of = pool.usable(first or 1, now), (1,) * len(pool.parts)
        expected = self._expected(first, waiting, reading) if self._terms.lease else 0
        most = max(_PORTION, first, *[part.rate.permits_in(self._horizon) for part in pool.parts])
        if not expected and line and all(ticket in self.once for ticket, _ in line):
            runs: Runs = []
            for ticket, permits in line:
                if permits > ready and (len(runs) == MOST_RUNS or (runs and sum([n for n, _ in runs]) + permits > most)):
                    break
                self.once[ticket].asked = True
                if permits <= ready:
                    ready -= permits
                else:
                    runs.append((permits - ready, of))
                    ready = 0
            return runs, True
        for ticket, _ in line if self.once else ():
            if ticket in self.once:
                self.once[ticket].asked = True
        waited, spent = self._then
        if ready and waiting >= waited and pool.spent > spent:
            # Grants since the last question did not make the line shorter. So they will not until the answer is here.
            coming = sum([run.by(now + self._took) for run in pool.runs])
            expected = max(expected, min(max(ready - pool.count + coming, 0), waiting))
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

    def _lacking_requests(self, now: int) -> tuple[Runs, bool]:
        pool, once = self._pool, self.once
        line = list(islice(((ticket, permits) for ticket, permits in self._line() if any(pool.need(permits))), 2 * MOST_RUNS))
        needs = [pool.need(permits) for _, permits in line]
        lacking = pool.uncovered(needs, now)
        if not lacking:
            return [], False
        enough = 2 * pool.usable(1, now) > self._came and pool.last_due() > now + self._took
        if len(lacking) < len(line) and enough and pool.calendar is None:
            return [], False
        for ticket, _ in line[: len(line) - len(lacking) + MOST_RUNS]:
            if ticket in once:
                once[ticket].asked = True
        if once and all(ticket in once for ticket, _ in line):
            return [(1, need) for need in lacking[:MOST_RUNS]], True
        return [(len([*same]), need) for need, same in groupby(lacking)][:MOST_RUNS], False

    @property
    def _horizon(self) -> int:
        return max(self._terms.horizon, self._terms.lease)

    def _far(self, runs: Runs) -> float:
        """How far ahead all processes together aim to book, in us: for a budget, the time of a few requests at most."""
        pool = self._pool
        horizon = self._horizon / _US
        if pool.unit or pool.calendar is not None:
            return horizon
        costs = [n * max([min(part.time_of(of), MOST_NS) for of, part in zip(need, pool.parts, strict=True)]) / _US for n, need in runs]
        if costs:
            self._ahead_us = _CHUNK * sum(costs) / sum([n for n, _ in runs])
        return min(horizon, max(self._ahead_us, _SHORTEST_US))

    # What the client asks.

    @property
    def limits(self) -> object:
        """What all limits of one key must have in common."""
        return [(part.rate, part.burst, part.calendar and part.calendar.described) for part in self._pool.parts]

    @property
    def in_grace(self) -> bool:
        """Whether the store does not answer, for less than the grace."""
        return self._outage.in_grace

    def question(self) -> Asked | None:
        """What to ask now; None: nothing."""
        node, pool = self._node, self._pool
        reading, now = node.timeline.read(), node.timeline.now()
        if self._closed and self._returned is None:
            pool.unanswered()
            return None
        self._untold()
        pool.drop(now)
        runs: Runs = []
        whole = gone = False
        if not self._closed and node.timeline.held_at is None:
            runs, whole = self._lack(reading, now)
        elif self._closed:
            gone = self._give_up(now)
        if self._pause_at is not None and self._pause_at <= reading:
            self._pause_at = None
        probes = self._outage.degraded and reading - self._wanted_at < _INTEREST_NS
        if not (runs or any(pool.corrections) or self._resumes or self._pause_at is not None or self._rechecks or probes):
            self._nothing_to_ask(now)
            return None
        pause = 0.0 if self._resumes else -1.0 if self._pause_at is None else (self._pause_at - reading) / _US
        self._sent = Sent(
            *(reading, runs, pool.parts, whole, pool.corrections, pool.oldest),
            *(self._resumes, None if self._resumes else self._pause_at, self._closed),
        )
        oldest = 0.0 if pool.oldest is None else max(now - pool.oldest, 0) / _US
        question = self._question(runs, whole, reading)._replace(pause=pause, oldest=oldest, gone=int(gone), seat=self._seat)
        words = [pack(question, self._rows(reading), runs), self._told, self._terms.kind]
        pool.corrections, pool.oldest, self._returns, pool.refused = [0] * len(pool.parts), None, 0, 0
        if self._resumes and self._pause_at is not None:
            self._tell()  # in the next question
        self._resumes, self._pause_at = False, self._pause_at if self._resumes else None
        return self.key, words

    def _question(self, runs: Runs, whole: bool, reading: int) -> Question:
        pool = self._pool
        far = self._far(runs)
        reach = MOST
        if not pool.unit and pool.calendar is None:
            trip = max(far, self._took / _US)
            reach = trip if len(self._node.queue.line) >= _MANY else min(_REACH_US, trip)
        if self._number[1] != os.getpid():
            self._number = getrandbits(48) + 1, os.getpid()
        return Question(
            horizon=far,
            reach=reach,
            within=self._terms.slack / _US if whole else -1,
            age=(reading - self._told_at) / _US,
            client=self._number[0],
            took=self._took / _US if self._took else -1,
            margin=self._terms.slack / _US,
        )

    def _rows(self, reading: int) -> list[list[float]]:
        rows: list[list[float]] = []
        for part, more in zip(self._pool.parts, self._pool.corrections, strict=True):
            least = max(min(more, MOST), -MOST)
            if part.calendar is None:
                rows.append([part.rate.period_ns / (part.rate.permits * _US), part.burst, least, 0, 0, 0, 0])
            else:
                rows.append([0, part.burst, least, *[edge / _US for edge in self._windows(part, reading)]])
        return rows

    def _windows(self, part: Part, reading: int) -> list[int]:
        """The edges of the present window and of the next two; Unix times in ns."""
        calendar, period = part.calendar, part.rate.period_ns
        assert calendar is not None
        # Until the store has said what time it is, the machine's clock is as good a guess as any.
        present = min(max(calendar.origin + reading if self._clock is None else self._clock + reading, 3 * period), _LATEST_UNIX_NS)
        rate, edges = self._edges
        if rate != part.rate or not edges[0] <= present < edges[1]:
            edges = calendar.edges(present - 2 * period, 8)
            place = max([i for i, edge in enumerate(edges) if edge <= present], default=0)
            edges = edges[place : place + 4]
            self._edges = part.rate, edges
        return edges

    def _give_up(self, now: int) -> bool:
        """The limit is closed: have all in hand come back. Returns whether it only counts if nobody has asked since."""
        pool, tail = self._pool, self._tail
        runs = pool.clear()
        if not pool.unit:
            for run in runs:
                pool.back([of * run.left for of in run.amounts], run.due)
            return False
        if tail is not None and tail in runs and not any(pool.corrections):
            ahead = tail.left - tail.by(now)
            if ahead:
                pool.correct([-ahead] * len(pool.parts), now)
                return True
        return False

    def _nothing_to_ask(self, now: int) -> None:
        self._silent = True
        if not self._outage.degraded:
            self._outage.forget()  # within the grace it does not matter
        pool = self._pool
        pool.asked_at = None
        if self._returned is not None:
            self._settle()
            return
        first = next(self._line(), None)
        if first is not None and pool.lacks(first[1], now):
            self._node.changed()  # nothing is on its way that would wake it
        self._refuse()

    # What the client hears.

    def answered(self, reply: object) -> None:
        """The script's reply. Raises `BadAnswer` if it makes no sense."""
        sent, pool, timeline = self._sent, self._pool, self._node.timeline
        if sent is None:  # its question was forgotten
            return
        windows = sum([part.calendar is not None for part in sent.parts])
        answer = read_answer(reply, len(sent.parts) - windows, windows, [n for n, _ in sent.runs], sent.whole)
        received = timeline.read()
        now = received - timeline.offset
        took = max(min(received - sent.at, _LONGEST_ANSWER_NS), 1)
        self._took = (3 * self._took + took) // 4 if self._took else took
        pool.answer_ns = self._took
        self._clock = int(answer.numbers[1 if answer.value else 0]) * _US - (sent.at + received) // 2
        if self._outage.began is not None:
            owed = self._outage.ended()
            if any(owed):
                pool.correct(owed, now)
        self._rechecks = False
        if not answer.value:  # it did nothing: it is another time than was thought
            self._untold(nothing=True)
            self._edges = None, []
            self._wake()
            return
        self._sent = None
        self._told, self._told_at, self._seat = answer.value, received, answer.seat
        self._follow_levels(answer, sent, now)
        if self._returned is not None and sent.closed:
            pool.clear()
            self._settle()
            return
        self._book(answer, sent, now)
        if self._closed:  # while the question was under way; the next one returns these slots
            return
        hush = answer.numbers[2]
        if hush or self._followed:
            self._follow_pause(hush)
        self._serve()

    def _serve(self) -> None:
        """Grant what has come."""
        node, pool, waited = self._node, self._pool, self._waits
        node.changed()
        if pool.lapsed > self._lapsed:
            if waited:
                node.skip(pool.lapsed - self._lapsed)
            self._lapsed = pool.lapsed
        if not pool.unit and pool.count:
            self._flush_later()
        if self.once:
            unasked = any([not each.asked for each in self.once.values()])
            self._refuse(coming=unasked and self._asks_on())

    def _follow_levels(self, answer: Answer, sent: Sent, now: int) -> None:
        place, written, levels = HEAD, answer.numbers[1], []
        for part in sent.parts:
            if part.calendar is None:
                levels.append(Level(now + ceil(answer.numbers[place] * _US)))
                place += OF_RATE
            else:
                used, _, ends = answer.numbers[place : place + 3]
                after = [edge for edge in self._edges[1] if edge > ends * _US]
                begins = [now + ceil((ends - written) * _US), *[now + edge - int(written) * _US for edge in after]]
                levels.append(Level(now, int(used), tuple(begins)))
                self._compare(part, ends)
                place += OF_WINDOW
        if not (len(levels) == 1 and sent.parts != self._pool.parts and sent.parts[0].calendar is not None):
            self._pool.levels = list(levels)

    def _compare(self, part: Part, ends: float) -> None:
        """Tell the log if the window ends at an instant at which none does here."""
        edges = self._edges[1]
        if not self._differs and edges[0] <= ends * _US <= edges[-1] and ends * _US not in edges:
            self._differs = True
            assert part.calendar is not None
            _logger.warning(
                "a RedisLimiter of %s shares windows that end otherwise, at %d s of Unix time: another process of this name has another"
                " period, time zone or tzdata. The windows of whichever process asks first hold. Give all the same.",
                part.calendar.described,
                ends // 1_000_000,
            )

    def _book(self, answer: Answer, sent: Sent, now: int) -> None:
        """Put what the answer assigned into the pool."""
        pool = self._pool
        opens = answer.numbers[HEAD + 2] if pool.calendar is not None else 0.0
        offset = self._node.timeline.offset
        runs: list[Run] = []
        for (n, place, starts), (_, need) in zip(answer.runs, sent.runs, strict=False):
            if not n:
                continue
            if pool.calendar is not None:
                closes = sent.at - offset + int((opens - answer.numbers[1]) * _US) - self._terms.slack
                runs.append(Run(need, n, sent.at - offset, (), (), closes - 1 - sent.at + offset))
                continue
            runs.append(self._run(n, place, starts, need, sent.parts, now))
        pool.asked_at = pool.look_at = None
        if answer.runs:
            self._came = sum([run.n for run in runs])
            if self._terms.lease and pool.unit:
                pool.ask_below(self._came // 2)
        self._tail = runs[-1] if runs else None
        pool.add(runs)
        if answer.wait and not sent.whole and not answer.numbers[2]:
            wait = ceil(answer.wait * _US)
            if pool.calendar is not None:
                # Permits may come back meanwhile, and somebody waits for them.
                wait = min(wait, min(max(wait // _RECHECKS, NS_PER_SECOND), _LONGEST_RECHECK_NS))
            else:
                wait = min(max(wait // 4, _SOONEST_NS), _LATEST_NS)
            pool.look_at = now + wait
            pool.waits_for = answer.place - 1 if answer.place else pool.waits_for

    def _run(self, n: int, place: int, starts: list[float], need: tuple[int, ...], parts: Sequence[Part], now: int) -> Run:
        """Slots that begin so many us after ``now``: the first of them, and by each rate."""
        pool = self._pool
        first, *times = [now + ceil(us * _US) for us in starts]
        paced = [(at, of, j) for j, (at, of) in enumerate(zip(times, need, strict=True)) if of]
        steps = [(parts[j].rate.permits, parts[j].rate.period_ns * of) for _, of, j in paced]
        slowest = max(paced, key=lambda each: parts[each[2]].time_of(each[1]))[2]
        if pool.unit:  # single permits are as late as those of the rates that rule at the ends
            ends = [at + parts[j].time_of(n - 1) for at, _, j in paced]
            late = min(pool.late_of(need, times.index(max(times))), pool.late_of(need, ends.index(max(ends))))
        else:
            late = pool.late_of(need)
        return Run((1,) if pool.unit else need, n, first, [at for at, _, _ in paced], steps, late, place - 1, slowest)

    def _follow_pause(self, us: float) -> None:
        """The store pauses all processes for so many us; 0: it does not."""
        timeline, unsaid = self._node.timeline, self._pause_at is not None
        if us > 0:
            self._followed = True
            ns, until = ceil(us * _US), timeline.paused_until
            if not unsaid and until is not None and until > timeline.read() + ns:
                timeline.resume()  # a longer one, which another process has ended
            timeline.pause(ns, partial(on_pause_end, self._node, timeline.now()))
        elif not unsaid:
            self._followed = False
            timeline.resume()

    def _ask_local(self, now: int) -> None:
        """In an outage, under "local": the same question, to a store of this process."""
        local, pool, reading = self._outage.local, self._pool, self._node.timeline.read()
        if local is None or self._node.timeline.held_at is not None:
            return
        runs, whole = self._lack(reading, now)
        if not runs:
            return
        question = self._question(runs, whole, reading)._replace(took=-1)
        answer = read_answer(local.ask(question, runs, reading), len(local.parts), 0, [n for n, _ in runs], whole)
        for (n, place, starts), (_, need) in zip(answer.runs, runs, strict=False):
            if n:
                local.spent = [own + n * of for own, of in zip(local.spent, need, strict=True)]
                pool.add([self._run(n, place, starts, need, local.parts, now)])
        pool.levels = [Level(now + ceil(ahead * _US)) for ahead in answer.numbers[HEAD::OF_RATE]]
        if answer.wait and not whole:
            pool.look_at = now + min(max(ceil(answer.wait * _US) // 4, _SOONEST_NS), _LATEST_NS)

    def _untold(self, nothing: bool = False) -> None:
        """The question under way is not answered: the store may not have heard what it told; ``nothing``: it has not."""
        sent, self._sent = self._sent, None
        if sent is None:
            return
        pool = self._pool
        # What came back may have arrived, and must not come back twice.
        more = [each if nothing or each > 0 else 0 for each in sent.more]
        pool.corrections = [own + its for own, its in zip(pool.corrections, more, strict=True)]
        if nothing and sent.oldest is not None:
            pool.oldest = sent.oldest if pool.oldest is None else min(sent.oldest, pool.oldest)
        if not self._resumes and sent.pause_at is not None:
            self._pause_at = sent.pause_at if self._pause_at is None else max(sent.pause_at, self._pause_at)
        self._resumes = self._resumes or sent.resumes

    def unreachable(self, cause: BaseException, silent: float) -> None:
        """The store did not answer, and had not for ``silent`` seconds before the question. It will be asked again."""
        sent = self._sent
        if sent is not None:
            self._untold()
            self._no_answer(sent.at - round(silent * NS_PER_SECOND), cause)

    def late(self, cause: BaseException) -> None:
        """The answer takes long enough to count as an outage. It may still come."""
        if self._sent is not None:
            self._no_answer(self._sent.at, cause)

    def alive(self) -> None:
        """The store is far away, and there: the answer is on its way."""
        if self._outage.in_grace:
            self._outage.forget()

    def _no_answer(self, began: int, cause: BaseException) -> None:
        self._outage.no_answer(began, cause, None if self.client is None or self._returned else self._place.timers)
        if self._returned is not None:
            self._settle()
        self._refuse()

    def refused(self, cause: BaseException) -> None:
        """The store will not answer until somebody mends the reason: requests in line fail, whatever the policy."""
        if self._sent is None:
            return
        now = self._node.timeline.now()
        self._untold()
        self._rechecks = False
        owed = self._outage.ended()
        if any(owed):
            self._pool.correct(owed, now)
        self._fail(self._outage.refusal(cause))

    def failed(self, error: BaseException) -> None:
        """The client's task ended with an error, or this limit's clock failed: nobody hangs."""
        self._untold()
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._pool.unanswered()
        self._settle()
        if not self._closed:
            self._node.fail(error)
            self._node.changed()

    # What comes back.

    def _flush_later(self) -> None:
        timers = self._place.timers
        if timers is not None and not self._closed and self._flush is None:
            self._flush = timers.call_later(_FLUSH_SECONDS, self._on_flush)

    def _on_flush(self) -> None:
        self._flush = None
        pool = self._pool
        if self._waits:
            pool.drop(self._node.timeline.now())
        elif not pool.unit:
            for run in pool.clear():  # those for whom they were have left
                pool.back([of * run.left for of in run.amounts], run.due)
        if pool.asked_at is not None or (pool.count and not pool.unit):  # the next question tells of them
            self._flush_later()
        elif any(pool.corrections):
            self._tell()

    # Closing.

    async def aclose(self) -> None:
        """Tell the store what it is yet to hear, and return the slots in hand.

        No task, no timer, and no connection that was opened here is left.
        """
        client, returned = self._node.tree.run(self._close)
        if returned is not None:
            await returned.wait()
        if self._node.tree.run(self._leave) and client is not None:
            await self._place.detach(client, self)

    def _close(self) -> tuple[StoreClient | None, Returned | None]:
        """Ask nothing from now on, except to return what is in hand. Returns the client, and the wait until the store has heard."""
        place, pool = self._place, self._pool
        client = self.client if self.client is not None and place.has(self.client) else None
        self._closed = True
        self._cancel_timers()
        if client is not None and self._returned is None and self._outage.began is None:
            sent = self._sent
            unsaid = self._resumes or self._pause_at is not None or any(pool.corrections)
            near = sent is not None and (client.connected or self._node.timeline.read() - sent.at < _CONNECTING_NS)
            told = sent is not None and (any(sent.more) or sent.resumes or sent.pause_at is not None)
            if unsaid or near or told or pool.usable(1, self._node.timeline.now()):
                self._returned = place.returned()
                if not place.wake(client, self):
                    self._settle()
        return client, None if client is None else self._returned

    def _leave(self) -> bool:
        """Have nothing in hand. False if the limit was started again meanwhile."""
        if self._closed:
            self._pool.clear()
            self._forget_question()
        return self._closed

    def reopen(self) -> None:
        """Ask again. An `aclose` that waits for the store ends."""
        self._node.tree.run(self._reopen)

    def _reopen(self) -> None:
        self._closed = False
        self._settle()

    def _cancel_timers(self) -> None:
        self._outage.cancel()
        for timer in (self._flush, self._pause_timer):
            if timer is not None:
                timer.cancel()
        self._flush = self._pause_timer = None

    def _settle(self) -> None:
        """Have `aclose` go on."""
        returned, self._returned = self._returned, None
        if returned is not None:
            returned.over()
