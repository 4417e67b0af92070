"""What a limit asks its store, in the words of the script, and what the answers mean for its pool: the same for all stores.

A limit asks for the requests in line and, with a lease, for those to come. The answers have durations, so the wall clock of this machine
books nothing. The subclasses of `Talk` know how a question reaches the store, and when.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import chain, groupby, islice
from math import ceil
from random import getrandbits
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from aiorate._rate import NS_PER_SECOND
from aiorate._schedulers.amounts import count_of
from aiorate._store.script import HEAD, MOST, MOST_RUNS, OF_RATE, Question, row
from aiorate._store.slots import MOST_NS, MS, US, Run
from aiorate._tree.provider import Provider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._loops.loop import Handle
    from aiorate._schedulers.amounts import Permits
    from aiorate._store.pool import Pool
    from aiorate._store.script import Answer
    from aiorate._store.slots import Part
    from aiorate._tree.limit import Limit


FLUSH_NS = 50 * MS  # after which the store hears what came back, if nothing is asked before
_RECHECK_NS = NS_PER_SECOND  # how often to ask whether a pause goes on, while a request waits
_PORTION = 500  # slots in one question, if a horizon has fewer: the loop wakes as many waiters before slots lapse
_CHUNK = 12  # a budget books no further ahead than the time of so many requests like the first in line, ...
_SHORTEST_US = 20_000  # ... or than this
_SOONEST_NS, _LATEST_NS = 20 * MS, 250 * MS  # after which to ask again for a reservation that was not booked
_RECHECKS, _LONGEST_RECHECK_NS = 64, 60 * NS_PER_SECOND  # of a used up window: permits may come back
_ROUGHLY_NS = 100 * US  # a grant is at most so much older than its question
Runs = list[tuple[int, tuple[int, ...]]]  # how many requests of which amounts


class Sent(NamedTuple):
    """A question that is not answered yet."""

    at: int  # the reading when it was asked
    now: int  # the limit's time then
    runs: Runs
    parts: tuple[Part, ...]  # by which it was asked
    whole: bool  # whether requests are granted whole or not at all
    more: Sequence[int] = ()  # the corrections that it tells
    oldest: int | None = None  # since when
    news: Sequence[int] = ()  # what it tells of pauses


class Talk(Provider):
    """Between a limit and its store: it watches the node, and fills the pool. Durations are in ns.

    All processes together aim to book a ``horizon`` ahead. With a ``lease``, slots that nobody asked for yet are taken so far ahead.
    """

    state: str = "shared"  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self, node: Limit, pool: Pool, horizon: int, lease: int, slack: int) -> None:
        self._node, self._pool = node, pool
        self._horizon, self._lease, self._slack = max(horizon, lease), lease, slack
        self._paused: bool = False  # whether the store pauses all processes
        self._edges: list[int] = [0] * 4  # of the present window and the next two; Unix times in ns
        self._use: tuple[int, int] = (-MOST_NS, 0)  # when the measurement of use began, and the permits spent until then
        pool.patient = node.above is not None
        pool.wanted, pool.corrected, node.provider = self.wanted, self.corrected, self
        Talk.forked(self)
        _talks.add(self)

    def forked(self) -> None:
        """Begin as a new client, also in a child process: slots, questions and news are its parent's."""
        pool = self._pool
        pool.clear()
        pool.unanswered()
        pool.corrections, pool.oldest = [0] * len(pool.parts), None
        self._sent: Sent | None = None  # the question under way
        self._number: int = getrandbits(48) + 1
        self._seat: float = 0.0  # see `Question.seat`
        self._news: list[int] = []  # pauses that the store is yet to hear of: readings at which they end; 0: they are over
        self._tail: Run | None = None  # the last slots of all, as far as is known
        self._timer: Handle | None = None
        self._timer_at: int = 0

    # What is lacking.

    def _first(self) -> Permits:
        """The permits of the first in line, or 0."""
        first = self._node.first()
        return 0 if first is None else first.wanted

    def _uncovered(self, now: int) -> list[Any]:
        """The first requests in line, in about the order of service, for which there are not enough slots."""
        pool, line, first = self._pool, self._node.line, self._node.first()
        below = sorted(line.below(), key=lambda limit: limit is not first)
        some = [*islice((each for each in chain(below, line) if any(pool.need(each.wanted))), 2 * MOST_RUNS)]
        left = [(run.n - run.lapsed(now), run.amounts) for run in pool.runs]
        have = [sum([n * amounts[j] for n, amounts in left]) for j in range(len(pool.parts))]
        for place, each in enumerate(some):
            have = [own - of for own, of in zip(have, pool.need(each.wanted), strict=True)]
            if min(have) < 0:
                return some[place:]
        return []

    def _lack(self) -> Runs:
        """The runs to ask for."""
        pool, now = self._pool, self._node.now()
        if not pool.unit:
            needs = [pool.need(each.wanted) for each in self._uncovered(now)]
            return [(len([*same]), need) for need, same in groupby(needs)][:MOST_RUNS]
        first, line = count_of(self._first()), self._node.line
        waiting = sum([count_of(below.wanted) for below in line.below()], count_of(line.total))
        ready = pool.usable(first or 1, now)
        expected = self._expected(first, waiting) if self._lease else 0
        most = max(_PORTION, first, *[part.rate._permits_in(self._horizon) for part in pool.parts])
        missing = min(waiting + expected - ready, most)
        return [(missing, (1,) * len(pool.parts))] if missing > 0 else []

    def _expected(self, first: int, waiting: int) -> int:
        """How many permits the next lease will take, if use goes on as in the last one or two. Those of the first question do not count:
        a process that makes a request once in a while takes nothing ahead."""
        pool, lease, reading, (since, before) = self._pool, self._lease, self._node.tree.now(), self._use
        refused, granted = pool.refused[0] if pool.refused else 0, count_of(self._node.granted)
        age, used = reading - since, max(granted - before, 0)
        if age >= 3 * lease:
            age, used = 0, 0
            self._use = reading, granted + (first or refused)
        elif age >= 2 * lease:
            age, used = lease, used * lease // age
            self._use = reading - lease, granted - used
        expected = min(used * lease // max(age, lease), pool.rate._permits_in(lease))
        return expected if waiting else max(expected, refused)  # a request was refused and does not wait

    # The question.

    @property
    def busy(self) -> bool:
        return self._sent is not None or bool(self._news) or any(self._pool.corrections)

    def _ask_for(self, runs: Runs, within: float, age: float, unix: int, gone: int = 0) -> tuple[Sent, Question]:
        """What to ask for these requests, and to tell. ``unix``: the time in ns. ``age``: how long ago the store said something, in us.

        Each request is granted if it is due ``within`` so many us, whole or not at all; -1: at any time. The last ``gone`` slots come back
        unless somebody has booked since.
        """
        pool, reading, now = self._pool, self._node.tree.now(), self._node.now()
        more, oldest, news = pool.corrections, pool.oldest, self._news[:1]  # taken first: a finalizer may tell more
        pool.corrections, pool.oldest, pool.refused, self._news = [0] * len(more), None, None, self._news[1:]
        pause = (news[0] and (news[0] - reading or -1)) / US if news else -1.0  # one that is over is not told
        since = 0.0 if oldest is None else max(now - oldest - _ROUGHLY_NS, 0) / US
        if pool.calendar is not None and not self._edges[0] <= unix < self._edges[1]:
            edges = pool.calendar._edges(unix - 2 * pool.rate.period_ns, 8)
            place = max([i for i, edge in enumerate(edges) if edge <= unix], default=0)
            self._edges = edges[place : place + 4]
        rows = [row(part, own - gone, self._edges) for part, own in zip(pool.parts, more, strict=True)]
        horizon, reach, took = self._horizon / US, MOST, pool.answer_ns / US
        if not pool.unit and pool.calendar is None:  # a budget
            costs = [min(part.time_of(of), MOST_NS) / US for _, need in runs[:1] for of, part in zip(need, pool.parts, strict=True)]
            horizon = min(horizon, max(_CHUNK * max(costs, default=0.0), _SHORTEST_US))
            reach = max(horizon, took)
        told = pause, horizon, reach, within, age, self._number, since, took if pool.answer_ns > 1 else -1.0, self._seat, int(gone > 0)
        capped = [(min(n, MOST), [min(of, MOST) for of in need]) for n, need in runs]
        return Sent(reading, now, runs, pool.parts, within >= 0, more, oldest, news), Question(*told, self._slack / US, rows, capped)

    def _take_back(self, sent: Sent, nothing: bool) -> None:
        """A question has no answer. The store may have heard what it told, or ``nothing``."""
        pool = self._pool
        # What came back may have arrived, and must not come back twice.
        more = [each if nothing or each > 0 else 0 for each in sent.more]
        pool.corrections = [own + its for own, its in zip(pool.corrections, more, strict=True)]
        if nothing and sent.oldest is not None:
            pool.oldest = sent.oldest if pool.oldest is None else min(sent.oldest, pool.oldest)
        if self._news[:1] != [0]:
            self._news = [*sent.news, *self._news]

    # The answer.

    def _book(self, answer: Answer, sent: Sent, now: int) -> None:
        """Put what was assigned into the pool. Durations count from the instant ``now``."""
        pool, numbers, slots, closes = self._pool, answer.numbers, [], None
        first = sent.parts[0]  # those of "local", or from before a change, are not the pool's
        if first.calendar is not None:
            used, _, ends = numbers[HEAD : HEAD + 3]
            closes = int((ends - numbers[1]) * US)
            first.used, first.ends = int(used), now + closes + 1
        else:
            for part, ahead in zip(sent.parts, numbers[HEAD::OF_RATE], strict=True):
                part.full = now + ceil(ahead * US)
        for (n, place, starts), (_, need) in zip(answer.runs, sent.runs, strict=False):
            if n and closes is not None:  # used only before the earliest instant at which the window may end here
                slots.append(Run(need, n, closes - self._slack - 1, [(sent.now, 1, 0)]))
            elif n and any(need):  # a reservation of nothing stands in line, too
                slots.append(pool.run(n, place, starts, need, sent.parts, now))
        self._seat, self._tail = answer.seat, slots[-1] if slots else None
        pool.unanswered()
        pool.add(*slots)
        if answer.wait and not sent.whole and not numbers[2]:
            wait = ceil(answer.wait * US)
            if closes is not None:  # permits may come back meanwhile
                wait = min(wait, max(wait // _RECHECKS, NS_PER_SECOND), _LONGEST_RECHECK_NS)
            else:
                wait = min(max(wait // 4, _SOONEST_NS), _LATEST_NS)
            pool.look_at = now + wait
            pool.waits_for = answer.place - 1 if answer.place else pool.waits_for

    def _follow(self, us: float) -> None:
        """The store pauses all processes for so long, or 0, unless it is yet to hear something else."""
        if not self._news:
            self._paused = self._node.pause_with_store(ceil(us * US), self._paused)

    # What the pool and the node tell.

    def wanted(self, now: int) -> bool:
        """Slots may be wanted. Returns whether they are on their way then."""
        raise NotImplementedError

    def corrected(self, at_once: bool) -> None:
        if at_once or not self._pool.answer_ns:
            self._tell()
        else:
            self._later(FLUSH_NS)

    def _tell(self, gone: int = 0) -> object:
        """Have the store hear what is untold; see `_ask_for`."""
        raise NotImplementedError

    def pausing(self, ns: int) -> None:
        until = self._node.tree.now() + ns
        if self._news and self._news[-1]:
            until = max(until, self._news.pop())
        self._news.append(until)
        self._tell()

    def resumed(self) -> None:
        self._news = [0]
        self._tell()

    def held_up(self) -> None:
        """A request waits for the end of a pause: keep asking whether it goes on."""
        if self._paused:
            self._later(_RECHECK_NS)

    def shared(self) -> None:
        self._pool.patient = True

    # Later.

    def _later(self, ns: int) -> None:
        """Look after what is in hand, untold or paused, within ``ns``."""
        node, loop = self._node, self._node.tree.loop
        at = node.tree.now() + ns
        if loop is None or loop.closed or node.closed or (self._timer is not None and self._timer_at <= at):
            return
        self._no_timer()
        self._timer, self._timer_at = node.tree.call_at(at, self._on_timer), at

    def _no_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        raise NotImplementedError


_talks: WeakSet[Talk] = WeakSet()


def _after_fork() -> None:
    for talk in list(_talks):
        talk.forked()


with suppress(AttributeError):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)
