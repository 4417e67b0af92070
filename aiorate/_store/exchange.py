"""What a limit asks its store, in the words of the script, and what the answers mean for its pool: ns of this process.

It lacks slots for the requests in line and, with a lease, for those to come. The wall clock of this machine decides nothing. The store
says what time it is, somewhere between question and answer: a permit of a window is used only before the earliest instant here at which
that may end.
"""

from __future__ import annotations

from itertools import chain, groupby, islice
from math import ceil
from random import getrandbits
from typing import TYPE_CHECKING, NamedTuple

from aiorate._rate import NS_PER_SECOND
from aiorate._schedulers.amounts import count_of
from aiorate._store.script import FORM, HEAD, MOST, MOST_RUNS, OF_RATE, OF_WINDOW, Question, pack, read_answer, row
from aiorate._store.slots import MOST_NS, Level, Run, portion
from aiorate._tree.changes import follow
from aiorate._tree.questions import in_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._schedulers.amounts import Permits
    from aiorate._store.options import Terms
    from aiorate._store.pool import Pool
    from aiorate._store.script import Answer
    from aiorate._store.slots import Part
    from aiorate._store.twin import Local
    from aiorate._tree.node import Node


_US, _MS = 1_000, 1_000_000  # ns
_MANY = 5  # requests in line for which a budget books far ahead; fewer cost a call each
_CHUNK = 16  # average requests of a budget, whose time is the horizon if the one given is longer
_SHORTEST_US = 20_000  # of such a horizon
_REACH_US = 50_000  # of a budget's short line: a booking is firm, and what comes back until then is of no use to it
_LONGEST_ANSWER_NS = NS_PER_SECOND  # a slower round trip counts as this
_LATEST_UNIX_NS = 10**19  # the year 2286
_SOONEST_NS, _LATEST_NS = 20 * _MS, 250 * _MS  # after which to ask again for a reservation that was not booked
_RECHECKS, _LONGEST_RECHECK_NS = 64, 60 * NS_PER_SECOND  # of a window that is used up: permits may come back
Runs = list[tuple[int, tuple[int, ...]]]
"""How many requests of which amounts."""
News = tuple[bool, int]
"""What the store is to hear of pauses: whether one is over, and the reading at which one is to end that began after that."""
NO_NEWS: News = (False, -MOST_NS)


class Sent(NamedTuple):
    """The question under way."""

    at: int
    """The reading when it was sent."""
    runs: Runs
    parts: tuple[Part, ...]
    """By which it was asked."""
    whole: bool
    """Whether requests are granted whole or not at all, for those that ask once."""
    closed: bool = False
    """Whether the limit was closed by then."""
    more: Sequence[int] = ()
    """The corrections that it tells, ..."""
    oldest: int | None = None
    """... and since when."""
    news: News = NO_NEWS


class Exchange:
    """What the store said last, and what is to be said to it. Slots are asked for once half of those that came last are gone."""

    def __init__(self, node: Node, pool: Pool, terms: Terms) -> None:
        self._node, self._pool, self._terms = node, pool, terms
        self.sent: Sent | None = None
        """The question under way; None: none is."""
        self.told_at: int = 0
        """The reading when the store answered last, ..."""
        self._told: str = ""  # ... and the value of the key then
        self.news: News = NO_NEWS
        """What the store is yet to hear of pauses."""
        self._paused: bool = False  # whether the store pauses all processes
        self._tail: Run | None = None  # the last slots of all, as far as is known
        self._number: int = getrandbits(48) + 1  # of this client
        self._seat: float = 0
        self._clock: int | None = None  # what the store's clock is ahead of readings; None: it has not said
        self._edges: tuple[object, list[int]] = (None, [])  # of windows; Unix times in ns, of that rate
        self._came: int = 0  # how many slots came last
        self._took: int = 0  # how long an answer takes, smoothed; 0: none was measured
        self._then: tuple[int, int] = (0, 0)  # permits waited for and permits spent, when slots were asked for last
        self._ahead_us: float = 0.0  # the horizon of a budget's latest question

    # What is lacking.

    def first(self) -> Permits:
        """The permits of the first in line; 0: nobody waits."""
        first = self._node.first()
        return 0 if first is None else first[1] if isinstance(first, tuple) else first.stood

    def enough(self, now: int) -> bool:
        """Whether more than half of the slots that came last are left, and some last until others could be here.

        Slots that the first in line gathers, if it is for several permits, do not count as left.
        """
        pool, hand, first = self._pool, self._pool.hand, self.first() or 1
        if not hand.count:
            return False
        ready = pool.usable(first if isinstance(first, int) else 1, now)
        if isinstance(first, int) and pool.unit and ready < first:
            ready = hand.count - hand.by(now)
        if 2 * ready > self._came and hand.last_due() > now + self._took and (pool.unit or not (pool.calendar or pool.lacks(first, now))):
            return True
        return not (pool.unit or self._uncovered(now))

    def _uncovered(self, now: int) -> list[tuple[int, ...]]:
        """The first requests for which there are not enough slots, of those in line in about the order of service."""
        pool, line, first = self._pool, self._node.line, self._node.first()
        below = sorted([limit for _, limit in line.below()], key=lambda limit: limit is not first)
        waiting = chain([limit.stood for limit in below], (permits for ticket, permits, _ in line if not ticket.cancelled()))
        return pool.hand.uncovered([*islice((need for permits in waiting if any(need := pool.need(permits))), 2 * MOST_RUNS)], now)

    def lack(self, once: Sequence[Permits] = ()) -> tuple[Runs, bool]:
        """The runs to ask for, and whether each of them whole or not at all: those of requests that ask ``once``, before all in line."""
        pool, now = self._pool, self._node.now()
        if once:
            needs = [pool.need(permits) for permits in once]
            return [(need[0], (1,) * len(pool.parts)) if pool.unit else (1, need) for need in needs], True
        if self.enough(now):
            return [], False
        if not pool.unit:
            return [(len([*same]), need) for need, same in groupby(self._uncovered(now))][:MOST_RUNS], False
        first, waiting = count_of(self.first()), in_line(self._node)
        ready = pool.usable(first or 1, now)
        expected = self._expected(first, waiting) if self._terms.lease else 0
        waited, spent = self._then
        if ready and waiting >= waited and pool.spent > spent:
            # Grants since the last question did not make the line shorter. So they will not until the answer is here.
            expected = max(expected, min(max(ready - pool.hand.count + pool.hand.by(now + self._took), 0), waiting))
        missing = waiting + expected - ready
        if missing <= 0:
            return [], False
        self._then = waiting, pool.spent
        return [portion(pool.parts, missing, first, self._horizon)], False

    def _expected(self, first: int, waiting: int) -> int:
        """How many permits the next lease will take."""
        pool = self._pool
        expected = pool.expected(self._terms.lease, self._node.read(), first)
        return expected if waiting else max(expected, pool.refused)  # a request was refused and does not wait

    # The question.

    @property
    def untold(self) -> bool:
        """Whether the store is yet to hear something."""
        return self.news != NO_NEWS or any(self._pool.corrections)

    def pause(self, until: int) -> None:
        """The store is to hear of a pause until that reading."""
        self.news = self.news[0], max(self.news[1], until)

    def resume(self) -> None:
        """The store is to hear that a pause is over."""
        self.news = True, NO_NEWS[1]

    def give_up(self, now: int) -> bool:
        """The limit is closed: have all in hand come back. Returns whether it only counts if nobody has asked since."""
        pool = self._pool
        gone = pool.give_up(self._tail, now)
        if not gone or any(pool.corrections):
            return False
        pool.correct([-gone] * len(pool.parts), now)
        return True

    def ask(self, runs: Runs, whole: bool, closed: bool, must: bool) -> list[str | bytes] | None:
        """The script's arguments for these requests, each of which is granted ``whole`` or not at all, or at any time.

        None: there is nothing to ask or to tell, and nothing ``must`` be asked.
        """
        pool, reading, now, (over, until) = self._pool, self._node.read(), self._node.now(), self.news
        gone = closed and self.give_up(now)
        self.news = NO_NEWS
        if not (runs or must or over or until > reading or any(pool.corrections)):
            return None
        if over and until > reading:  # the end of a pause and the next pause take two questions
            self.news = False, until
        self.sent = Sent(reading, runs, pool.parts, whole, closed, pool.corrections, pool.oldest, (over, NO_NEWS[1] if over else until))
        question = self._question(
            runs,
            whole,
            pause=0.0 if over else (until - reading) / _US if until > reading else -1.0,
            oldest=0.0 if pool.oldest is None else max(now - pool.oldest, 0) / _US,
            gone=gone,
        )
        corrected = zip(pool.parts, pool.corrections, strict=True)
        rows = [row(part, more, () if part.calendar is None else self._windows(part, reading)) for part, more in corrected]
        pool.corrections, pool.oldest, pool.refused = [0] * len(pool.parts), None, 0
        return [pack(question, rows, runs), self._told or f"{FORM} {self._terms.kind}"]

    def _question(self, runs: Runs, whole: bool, pause: float = -1.0, oldest: float = 0.0, gone: bool = False) -> Question:
        """The question for these requests, and what else is told."""
        slack, far, age = self._terms.slack / _US, self._far(runs), (self._node.read() - self.told_at) / _US
        took, within = self._took / _US if self._took else -1.0, slack if whole else -1.0
        return Question(pause, far, self._reach(far), within, age, self._number, oldest, took, self._seat, int(gone), slack)

    def ask_local(self, local: Local, once: Sequence[Permits]) -> None:
        """The same question, to a store of this process."""
        runs, whole = self.lack(once)
        if runs:
            reading = self._node.read()
            self._book(local.ask(self._question(runs, whole), runs, reading), Sent(reading, runs, local.parts, whole), reading)

    def forget(self, nothing: bool = False) -> None:
        """The question under way, if there is one, is not answered: the store may have heard what it told; ``nothing``: it has not."""
        sent, self.sent, pool = self.sent, None, self._pool
        if sent is None:
            return
        # What came back may have arrived, and must not come back twice.
        more = [each if nothing or each > 0 else 0 for each in sent.more]
        pool.corrections = [own + its for own, its in zip(pool.corrections, more, strict=True)]
        if nothing and sent.oldest is not None:
            pool.oldest = sent.oldest if pool.oldest is None else min(sent.oldest, pool.oldest)
        if not self.news[0]:  # pauses merge by the later end
            self.news = sent.news[0], max(sent.news[1], self.news[1])

    def forked(self) -> None:
        """This is a child process, and another client."""
        self.sent, self.news, self._tail, self._number = None, NO_NEWS, None, getrandbits(48) + 1

    def _windows(self, part: Part, reading: int) -> list[int]:
        """The edges of the present window and of the next two; Unix times in ns."""
        calendar, period = part.calendar, part.rate.period_ns
        assert calendar is not None
        # Until the store has said what time it is, the machine's clock is as good a guess as any.
        present = min(max(calendar.origin + reading if self._clock is None else self._clock + reading, 3 * period), _LATEST_UNIX_NS)
        rate, edges = self._edges
        if rate != part.rate or not edges[0] <= present < edges[1]:
            edges = part.edges(present)
            self._edges = part.rate, edges
        return edges

    @property
    def _horizon(self) -> int:
        return max(self._terms.horizon, self._terms.lease)

    def _far(self, runs: Runs) -> float:
        """How far ahead all processes together aim to book, in us: for a budget, the time of a few requests at most."""
        pool, horizon = self._pool, self._horizon / _US
        if pool.unit or pool.calendar is not None:
            return horizon
        costs = [n * max([min(part.time_of(of), MOST_NS) for of, part in zip(need, pool.parts, strict=True)]) / _US for n, need in runs]
        if costs:
            self._ahead_us = _CHUNK * sum(costs) / sum([n for n, _ in runs])
        return min(horizon, max(self._ahead_us, _SHORTEST_US))

    def _reach(self, far: float) -> float:
        """How much later than the latest booking one may be, in us: for slots, any time."""
        pool = self._pool
        if pool.unit or pool.calendar is not None:
            return MOST
        trip = max(far, self._took / _US)
        return trip if len(self._node.line) >= _MANY else min(_REACH_US, trip)

    # The answer.

    def heard(self, reply: object) -> Answer:
        """The answer to the question under way, of which is remembered what the store said. Raises `Unreachable` if it makes no sense.

        What it assigned is put into the pool: the question is over. But one that named no window of the present did nothing.
        """
        sent, pool = self.sent, self._pool
        assert sent is not None
        parts, received = sent.parts, self._node.read()
        windows = 0 if pool.calendar is None else len(parts)
        answer = read_answer(reply, len(parts) - windows, windows, [n for n, _ in sent.runs], sent.whole)
        took = max(min(received - sent.at, _LONGEST_ANSWER_NS), 1)
        self._took = pool.answer_ns = (3 * self._took + took) // 4 if self._took else took
        self._clock = int(answer.numbers[1 if answer.value else 0]) * _US - (sent.at + received) // 2
        if not answer.value:  # it is another time than was thought
            self._edges = None, []
            self.forget(nothing=True)
            return answer
        self._told, self.told_at, self._seat, self.sent = answer.value, received, answer.seat, None
        if parts == pool.parts or pool.calendar is None:
            now, place, levels = received - self._node.offset, HEAD, []
            for part in parts:
                if part.calendar is None:
                    levels.append(Level(now + ceil(answer.numbers[place] * _US)))
                    place += OF_RATE
                else:
                    used, _, ends = answer.numbers[place : place + 3]
                    levels.append(Level(now, int(used), now + ceil((ends - answer.numbers[1]) * _US)))
                    place += OF_WINDOW
            pool.levels = levels
        self._tail = self._book(answer, sent, received)
        return answer

    def follow(self, us: float) -> None:
        """The store pauses all processes for so long; 0: it does not."""
        if self.news[1] <= self._node.read():  # else it has not heard of a pause yet
            self._paused = follow(self._node, ceil(us * _US), self._paused)

    @property
    def may_be_resumed(self) -> bool:
        """Whether another process may have ended the present pause, long before it is over here."""
        node = self._node
        return self._paused and node.paused_until is not None and node.paused_until - node.read() > NS_PER_SECOND

    def _book(self, answer: Answer, sent: Sent, received: int) -> Run | None:
        """Put what was assigned into the pool. Returns the last of it."""
        pool, slots, windows, now = self._pool, [], sent.parts[0].calendar is not None, received - self._node.offset
        for (n, place, starts), (_, need) in zip(answer.runs, sent.runs, strict=False):
            if n and windows:
                closes = int((answer.numbers[HEAD + 2] - answer.numbers[1]) * _US) - self._terms.slack
                slots.append(Run(need, n, sent.at - self._node.offset, (), (), closes - 1))
            elif n and any(need):  # a reservation of nothing stands in line, too
                slots.append(pool.run(n, place, starts, need, sent.parts, now))
        if answer.runs:
            self._came = sum([run.n for run in slots])
            if self._terms.lease or not pool.unit:
                pool.asks_below = self._came // 2
        pool.unanswered()
        pool.hand.add(slots)
        if answer.wait and not sent.whole and not answer.numbers[2]:
            wait = ceil(answer.wait * _US)
            if windows:  # permits may come back meanwhile, and somebody waits for them
                wait = min(wait, min(max(wait // _RECHECKS, NS_PER_SECOND), _LONGEST_RECHECK_NS))
            else:
                wait = min(max(wait // 4, _SOONEST_NS), _LATEST_NS)
            pool.look_at = now + wait
            pool.waits_for = answer.place - 1 if answer.place else pool.waits_for
        return slots[-1] if slots else None
