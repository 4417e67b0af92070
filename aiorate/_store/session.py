"""One limit's talk with the store: what to ask next, and what an answer means for its pool. Sends nothing itself: `StoreClient` does."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from aiorate._rate import NS_PER_SECOND
from aiorate._store.client import sessions
from aiorate._store.demand import Demand
from aiorate._store.exchange import Exchange
from aiorate._store.once import Once
from aiorate._store.outage import Outage
from aiorate._store.pause import SharedPause
from aiorate._store.place import LoopPlace
from aiorate._store.script import HEAD, OF_RATE, read_answer
from aiorate._store.slots import Level, Run
from aiorate._tree.provider import Provider

if TYPE_CHECKING:
    from aiorate._loops.clock import Handle
    from aiorate._store.client import StoreClient
    from aiorate._store.demand import Runs, Terms
    from aiorate._store.pause import NewsOfPause
    from aiorate._store.place import Place, Returned
    from aiorate._store.pool import Pool
    from aiorate._store.script import Answer
    from aiorate._store.slots import Part
    from aiorate._store.store import Asked
    from aiorate._tree.node import Node

__all__ = ["StoreSession"]

_US, _MS = 1_000, 1_000_000  # ns
_INTEREST_NS = NS_PER_SECOND  # how long a store that is lost is asked after slots were wanted last
_CONNECTING_NS = NS_PER_SECOND // 20  # how long aclose() trusts that a store answers which has not answered before
_SOONEST_NS, _LATEST_NS = 20 * _MS, 250 * _MS  # after which to ask again for a reservation that was not booked
_RECHECKS, _LONGEST_RECHECK_NS = 64, 60 * NS_PER_SECOND  # of a window that is used up: permits may come back
_RETURNS = 12  # the store hears of this many at once, whatever is in hand
_FLUSH_SECONDS = 0.05  # after which the store hears what came back, if no question is to be expected


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
    news: NewsOfPause
    """... and that of a pause."""
    closed: bool
    """Whether the limit was closed by then."""


class StoreSession(Provider):
    """Between a limit, whose node it watches and whose pool it fills, and the client that asks the store."""

    __slots__ = (
        "__weakref__",
        "_closed",
        "_demand",
        "_exchange",
        "_flush",
        "_lapsed",
        "_node",
        "_outage",
        "_pause",
        "_place",
        "_pool",
        "_returned",
        "_returns",
        "_sent",
        "_silent",
        "_tail",
        "_terms",
        "_wanted_at",
        "client",
        "key",
        "once",
    )

    def __init__(self, source: object, key: str, node: Node, pool: Pool, terms: Terms) -> None:
        self.key: str = key
        """Of the store."""
        self.client: StoreClient | None = None
        """The client that asks on behalf of this limit; None: nothing was asked yet in this event loop."""
        self._place: Place = _place_of(source, node)
        self._node, self._pool, self._terms = node, pool, terms
        self.once: Once = Once(node, pool, terms.slack)
        """Requests in line that wait for one answer of the store only."""
        self._demand: Demand = Demand(node, pool, terms, self.once.waiting)
        self._exchange: Exchange = Exchange(pool, terms, self._demand)
        self._outage = self.once.outage = Outage(node, pool, terms.policy, terms.grace, terms.share, terms.call)
        self._closed: bool = False  # nothing is asked, except to return slots
        self._returned: Returned | None = None  # while aclose() waits until the store has heard of slots that come back
        self._sent: Sent | None = None  # None: no question is under way
        self._tail: Run | None = None  # the last slots of all, as far as is known
        self._returns: int = 0  # since a question told of them
        self._pause: SharedPause = SharedPause(node, self._tell)
        self._lapsed: int = 0  # ns of schedule that were reported as skipped
        self._wanted_at: int = 0  # the reading when slots were wanted last
        self._silent: bool = False  # whether there was nothing to ask when the client was ready to
        self._flush: Handle | None = None
        pool.link = self
        node.provider = self
        sessions.add(self)

    # What the pool and the node tell.

    def wanted(self, now: int) -> bool:
        """Slots may be wanted at that instant. Returns whether the store will be asked."""
        if self._closed or not self._place.open:
            return False
        if self._silent and self._outage.degraded:
            self._outage.suspend()
        self._silent = False
        self._wanted_at = self._node.read()
        if self._pool.outage == "local":
            self._ask_local(now)
            self._wake()
            return False
        if self._pool.hand.count:
            first = next(self._demand.line(), None)
            if self._demand.enough(1 if first is None else first[1], now):
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
        return self._sent is not None or bool(self._pause.news) or any(self._pool.corrections)

    @property
    def on_demand(self) -> bool:
        return not self._terms.lease

    def pausing(self, ns: int) -> None:
        self._pause.begin(ns)
        self.once.refuse()

    def resumed(self) -> None:
        self._pause.end()

    def held_up(self) -> None:
        timers = self._place.timers
        if timers is not None and not self._closed:
            self._pause.recheck_later(timers)

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
        self.once.waiting.clear()
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
        reading, now = node.read(), node.now()
        if self._closed and self._returned is None:
            pool.unanswered()
            return None
        self._untold()
        pool.drop(now)
        runs: Runs = []
        whole = gone = False
        if not self._closed and node.held_at is None:
            runs, whole = self._demand.lack(reading, now)
        elif self._closed:
            gone = self._give_up(now)
        news = self._pause.take(reading)
        probes = self._outage.degraded and reading - self._wanted_at < _INTEREST_NS
        if not (runs or any(pool.corrections) or news or self._pause.rechecks or probes):
            self._nothing_to_ask(now)
            return None
        self._sent = Sent(reading, runs, pool.parts, whole, pool.corrections, pool.oldest, news, self._closed)
        oldest = 0.0 if pool.oldest is None else max(now - pool.oldest, 0) / _US
        exchange = self._exchange
        question = exchange.question(runs, whole, reading, news.us(reading), oldest, gone)
        words = exchange.words(question, runs, reading)
        pool.corrections, pool.oldest, self._returns, pool.refused = [0] * len(pool.parts), None, 0, 0
        return self.key, words

    def _give_up(self, now: int) -> bool:
        """The limit is closed: have all in hand come back. Returns whether it only counts if nobody has asked since."""
        pool, tail = self._pool, self._tail
        runs = pool.clear()
        if not pool.unit:
            pool.put_back(runs, now)
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
        first = next(self._demand.line(), None)
        if first is not None and pool.lacks(first[1], now):
            self._node.changed()  # nothing is on its way that would wake it
        self.once.refuse()

    # What the client hears.

    def answered(self, reply: object) -> None:
        """The script's reply. Raises `BadAnswer` if it makes no sense."""
        sent, pool, node = self._sent, self._pool, self._node
        if sent is None:  # its question was forgotten
            return
        windows = sum([part.calendar is not None for part in sent.parts])
        answer = read_answer(reply, len(sent.parts) - windows, windows, [n for n, _ in sent.runs], sent.whole)
        received = node.read()
        now = received - node.offset
        self._exchange.heard(answer, sent.at, received)
        if self._outage.began is not None:
            owed = self._outage.ended()
            if any(owed):
                pool.correct(owed, now)
        self._pause.rechecks = False
        if not answer.value:  # it did nothing: it is another time than was thought
            self._untold(nothing=True)
            self._wake()
            return
        self._sent = None
        self._exchange.follow(answer, sent.parts, now)
        if self._returned is not None and sent.closed:
            pool.clear()
            self._settle()
            return
        self._book(answer, sent, now)
        if self._closed:  # while the question was under way; the next one returns these slots
            return
        self._pause.follow(answer.numbers[2])
        self._serve()

    def _serve(self) -> None:
        """Grant what has come."""
        node, pool, waited = self._node, self._pool, self._demand.waits
        node.changed()
        if pool.lapsed > self._lapsed:
            if waited:
                node.skip(pool.lapsed - self._lapsed)
            self._lapsed = pool.lapsed
        if not pool.unit and pool.hand.count:
            self._flush_later()
        self.once.answered()

    def _book(self, answer: Answer, sent: Sent, now: int) -> None:
        """Put what the answer assigned into the pool."""
        pool = self._pool
        opens = answer.numbers[HEAD + 2] if pool.calendar is not None else 0.0
        offset = self._node.offset
        runs: list[Run] = []
        for (n, place, starts), (_, need) in zip(answer.runs, sent.runs, strict=False):
            if not n:
                continue
            if pool.calendar is not None:
                closes = sent.at - offset + int((opens - answer.numbers[1]) * _US) - self._terms.slack
                runs.append(Run(need, n, sent.at - offset, (), (), closes - 1 - sent.at + offset))
                continue
            runs.append(self._exchange.run(n, place, starts, need, sent.parts, now))
        pool.asked_at = pool.look_at = None
        if answer.runs:
            self._demand.came = sum([run.n for run in runs])
            if self._terms.lease or not pool.unit:
                pool.asks_below = self._demand.came // 2
        self._tail = runs[-1] if runs else None
        pool.hand.add(runs)
        if answer.wait and not sent.whole and not answer.numbers[2]:
            wait = ceil(answer.wait * _US)
            if pool.calendar is not None:
                # Permits may come back meanwhile, and somebody waits for them.
                wait = min(wait, min(max(wait // _RECHECKS, NS_PER_SECOND), _LONGEST_RECHECK_NS))
            else:
                wait = min(max(wait // 4, _SOONEST_NS), _LATEST_NS)
            pool.look_at = now + wait
            pool.waits_for = answer.place - 1 if answer.place else pool.waits_for

    def _ask_local(self, now: int) -> None:
        """In an outage, under "local": the same question, to a store of this process."""
        local, pool, reading = self._outage.local, self._pool, self._node.read()
        if local is None or self._node.held_at is not None:
            return
        runs, whole = self._demand.lack(reading, now)
        if not runs:
            return
        question = self._exchange.question(runs, whole, reading)._replace(took=-1)
        answer = read_answer(local.ask(question, runs, reading), len(local.parts), 0, [n for n, _ in runs], whole)
        for (n, place, starts), (_, need) in zip(answer.runs, runs, strict=False):
            if n:
                local.spent = [own + n * of for own, of in zip(local.spent, need, strict=True)]
                pool.hand.add([self._exchange.run(n, place, starts, need, local.parts, now)])
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
        self._pause.untold(sent.news)

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
        self.once.refuse()

    def refused(self, cause: BaseException) -> None:
        """The store will not answer until somebody mends the reason: requests in line fail, whatever the policy."""
        if self._sent is None:
            return
        now = self._node.now()
        self._untold()
        self._pause.rechecks = False
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
        if self._demand.waits:
            pool.drop(self._node.now())
        elif not pool.unit:
            pool.put_back(pool.clear(), self._node.now())  # those for whom they were have left
        if pool.asked_at is not None or (pool.hand.count and not pool.unit):  # the next question tells of them
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
            unsaid = bool(self._pause.news) or any(pool.corrections)
            near = sent is not None and (client.connected or self._node.read() - sent.at < _CONNECTING_NS)
            told = sent is not None and (any(sent.more) or bool(sent.news))
            if unsaid or near or told or pool.usable(1, self._node.now()):
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
        self._pause.cancel()
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None

    def _settle(self) -> None:
        """Have `aclose` go on."""
        returned, self._returned = self._returned, None
        if returned is not None:
            returned.over()


def _place_of(source: object, node: Node) -> Place:
    """Where the client is, by the scope of the limit."""
    if not node.tree.threads:
        return LoopPlace(source)
    from aiorate._store.process_place import ProcessPlace

    return ProcessPlace(source, node)
