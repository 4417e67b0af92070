"""One limit's talk with the store: what to ask next, and what an answer means. Sends nothing itself: `StoreClient` does."""

from __future__ import annotations

import os
from fractions import Fraction
from gc import collect
from logging import getLogger
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

from aiorate._loops.table import running_loop
from aiorate._rate import NS_PER_SECOND
from aiorate._store.address import identity
from aiorate._store.client import client_of
from aiorate._store.exchange import NO_NEWS, Exchange
from aiorate._store.failures import Refusal
from aiorate._store.outage import Outage
from aiorate._store.script import MOST_RUNS
from aiorate._store.slots import check_pause
from aiorate._store.word import Word
from aiorate._tree.limit import Provider
from aiorate._tree.questions import above_on_demand, wait_for
from aiorate._tree.refusals import Refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiorate._errors import LimiterClosed, WaitTooLong
    from aiorate._loops.loop import Handle
    from aiorate._schedulers.amounts import Permits
    from aiorate._store.client import StoreClient
    from aiorate._store.exchange import Runs
    from aiorate._store.options import Terms
    from aiorate._store.pool import Pool
    from aiorate._store.slots import Part
    from aiorate._store.store import Asked
    from aiorate._tree.limit import Limit, Taken
    from aiorate._tree.line import Request
    from aiorate._tree.node import Node


_logger = getLogger("aiorate")

_INTEREST_NS = NS_PER_SECOND  # how long a store that is lost is asked after slots were wanted last
_CONNECTING_NS = NS_PER_SECOND // 20  # how long aclose() trusts that a store answers which has not answered before
_RETURNS = 12  # the store hears of this many at once, whatever is in hand
_FLUSH_NS = NS_PER_SECOND // 20  # after which the store hears what came back, if no question is to be expected
_RECHECK_NS = NS_PER_SECOND  # how often a process in which a request waits asks whether a pause goes on
_ANSWER_NS = NS_PER_SECOND * 9 // 10  # for which requests that ask once wait for it
_FRESH_NS = NS_PER_SECOND  # for which they rely on the latest answer
_ONCE = 1 << 190  # since when they stand in line, and the ns that they may wait: later than any instant


class _Once(Refusals):
    """The errors of requests that ask once: those of others, with the ns that they may wait."""

    __slots__ = ("_limit", "_of")

    def __init__(self, of: Refusals, limit: int) -> None:
        self._of, self._limit = of, limit

    def closed(self, node: Limit) -> LimiterClosed:
        return self._of.closed(node)

    def too_long(self, permits: Permits, limit: int, wait: int | None) -> WaitTooLong:
        return self._of.too_long(permits, self._limit, wait)

    def overdue(self, permits: Permits, limit: int, more: int | None) -> WaitTooLong:
        return self._of.too_long(permits, self._limit, more)


class StoreSession(Provider):
    """Between a limit, whose node it watches and whose pool it fills, and the client that asks the store.

    Requests that may wait for less than an answer takes stand in line for it, and are refused by it: they ask once.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_exchange",
        "_flush",
        "_node",
        "_once",
        "_outage",
        "_pool",
        "_process",
        "_recheck",
        "_refusals",
        "_returned",
        "_returns",
        "_silent",
        "_some_once",
        "_source",
        "_terms",
        "_wanted_at",
        "client",
        "key",
    )

    def __init__(self, source: object, key: str, node: Node, pool: Pool, terms: Terms, refusals: Refusals) -> None:
        self.key: str = key
        """Of the store."""
        self.client: StoreClient | None = None
        """The client that asks on behalf of this limit; None: nothing was asked yet in this event loop."""
        self._source, self._node, self._pool, self._terms = source, node, pool, terms
        self._exchange: Exchange = Exchange(node, pool, terms)
        self._outage: Outage = Outage(node, pool, terms)
        self._process: int = 0  # in which the store was asked last
        self._closed: bool = False  # nothing is asked, except to return slots
        self._returned: list[Word] | None = None  # while aclose() waits until the store has heard of slots that come back
        self._refusals: Refusals = refusals
        self._some_once: bool = False  # whether there may be requests in line that ask once
        self._once: list[Request] = []  # those of the question under way
        self._returns: int = 0  # since a question told of them
        self._recheck: Handle | None = None  # the timer to ask whether it still does
        self._wanted_at: int = 0  # the reading when slots were wanted last
        self._silent: bool = False  # whether there was nothing to ask when the client was ready to
        self._flush: Handle | None = None
        pool.link = self
        node.provider = self

    @property
    def run(self) -> Callable[..., Any]:
        """Calls a function in a decision of the limit."""
        return self._node.tree.run

    @property
    def named(self) -> tuple[tuple[object, str, str], tuple[Part, ...]]:
        """What all limits of its name in this process have in common, and its dimensions."""
        return (identity(self._source), self.key, self._terms.kind), self._pool.parts

    @property
    def in_use(self) -> bool:
        """Whether it is neither closed, nor of an event loop that is."""
        loop = self._node.loop
        return not (self._closed or self._node.closed or (loop is not None and loop.closed))

    # What the pool and the node tell.

    def wanted(self, now: int) -> bool:
        """Slots may be wanted at that instant. Returns whether the store will be asked."""
        if not self._open:
            return False
        self._note_interest()
        if self._outage.local is not None and self._pool.outage == "local":
            if self._node.held_at is None:
                self._exchange.ask_local(self._outage.local, now, self._whole())
                self._end_once(True)
            self._wake()
            return False
        if self._pool.hand.count and self._exchange.enough(self._exchange.first() or 1, now):
            return False
        self._wake()
        return True

    # Requests that ask once.

    def asks_once(self, limit: int) -> bool:
        """Whether a request that may wait for ``limit`` ns is one. Below a limit that has to be asked as well, none is."""
        return limit < max(self._pool.answer_ns, 1) and not above_on_demand(self._node)

    async def ask_once(self, permits: Permits, limit: int) -> tuple[int, Taken]:
        """Take the permits if they are due. Returns the ns waited for the answer, and what was taken. Raises the error otherwise."""
        node, tree, refusals, since = self._node, self._node.tree, _Once(self._refusals, limit), _ONCE + limit
        ticket, _, asked, taken = tree.ask(node, permits, _ANSWER_NS, self, refusals, since)
        if ticket is None:
            return 0, taken
        waited, _, taken = await tree.wait(node, ticket, permits, asked, _ANSWER_NS, self, refusals, since)
        return waited, taken

    def ask_once_blocking(self, permits: Permits, limit: int) -> tuple[int, Taken]:
        """As `ask_once`, in a thread without an event loop, which it blocks."""
        from aiorate._tree.threads import wait_blocking

        return wait_blocking(self._node, self._node.tree, permits, _ANSWER_NS, self, _Once(self._refusals, limit), _ONCE + limit)

    def check(self, permits: Permits, refusals: Refusals) -> None:
        """Raise the error of such a request if the store cannot be asked. Permits may have come back since it said that none are due."""
        node, pool = self._node, self._pool
        if self._outage.in_grace or pool.outage == "wait" or node.held_at is not None or not self._open:
            node.noted.refused += 1
            raise refusals.too_long(permits, 0, wait_for(node, permits, node.now()))
        if not self._exchange.told_since(node.read() - _FRESH_NS):
            pool.levels = [None] * len(pool.parts)
        self._some_once = True

    def _in_line(self) -> list[Request]:
        """Those in line."""
        found = [request for request in self._node.line if request[2] >= _ONCE] if self._some_once else []
        self._some_once = bool(found)
        return found

    def _refuse(self, requests: Sequence[Request]) -> None:
        """Those are not granted."""
        over = [(ticket, permits, 0, _Once(self._refusals, since - _ONCE)) for ticket, permits, since in requests if not ticket.done()]
        if over:
            self._node.expire(over)

    def _end_once(self, whole: bool) -> None:
        """Those in line for which there are slots use them within the slack, or are refused then.

        If not, they are asked for again: they came after the question, or the process stood still. Of a question for all in line, there
        will be none.
        """
        node, tree = self._node, self._node.tree
        for request in self._in_line():
            ticket, permits, since = request
            if not self._pool.lacks(permits, node.now()):
                tree.limit_wait(node, ticket, permits, node.read(), self._terms.slack, _Once(self._refusals, since - _ONCE))
            elif not whole and request in self._once:
                self._refuse([request])

    def _note_interest(self) -> None:
        """Permits are wanted, perhaps for the first time in a while. Then it is not known whether an outage goes on."""
        if self._silent and self._outage.degraded:
            self._outage.suspend()
        self._silent = False
        self._wanted_at = self._node.read()

    def corrected(self, at_once: bool) -> None:
        """The store has something to hear: permits that were used without slots, or that come back."""
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
        return self._exchange.sent is not None or self._exchange.untold

    @property
    def on_demand(self) -> bool:
        return not self._terms.lease

    def pausing(self, ns: int) -> None:
        check_pause(ns)
        self._exchange.pause(self._node.read() + ns)
        self._tell()
        self._refuse(self._in_line())

    def resumed(self) -> None:
        self._exchange.news = True, NO_NEWS[1]
        self._tell()

    def held_up(self) -> None:
        """A request waits for the end of a pause: ask in a second, and again, whether it goes on."""
        if self._recheck is None and self._exchange.may_be_resumed:
            self._recheck = self._later(_RECHECK_NS, self._on_recheck)

    def _on_recheck(self) -> None:
        if self._node.first() is None or not self._node.paused:
            self._recheck = None
        else:
            self._tell()  # the timer, which has rung, says why

    def shared(self) -> None:
        """The first in line keeps its slots while another limit is asked after this one."""
        self._pool.patient = True

    def dismissed(self) -> None:
        client = self.client
        if client is not None and self._at_home:
            client.release(self)  # which ends with those that are left, before this one is collected
            self._forget_question()

    def moved(self) -> None:
        """The event loop is gone, another one is used, which may have asked already, or this is a child process."""
        forked = self._process != os.getpid()
        if forked:  # the slots in hand and the connection are the parent's
            self._pool.clear()
        if self.client is not None and not self._at_home:
            self._forget_question()
        if forked:
            self._pool.corrections, self._pool.oldest = [0] * len(self._pool.parts), None

    def _forget_question(self) -> None:
        self._cancel_timers()
        self._untold()
        self._settle()
        self._refuse(self._in_line())
        self.client = None
        self._pool.unanswered()

    # Its client.

    @property
    def _at_home(self) -> bool:
        """Whether its client is the one that asks here."""
        return self.client is not None and self.client.here

    @property
    def _open(self) -> bool:
        """Whether the store may be asked from here: not for try_acquire() and delay() outside a loop."""
        return not self._closed and (self._node.tree.threads or running_loop() is not None)

    def _tell(self) -> None:
        if self._open:
            self._wake()

    def _wake(self) -> None:
        """Have the client ask that is the right one here."""
        if self.client is not None and not self._at_home:
            self._forget_question()
        if self.client is None:
            if self._node.tree.threads:
                from aiorate._store.thread import client_of_process

                self.client = client_of_process(self._source)
            else:
                self.client = client_of(self._source, self.key)
            self._process = os.getpid()
            self._node.tree.add(self._node)
            check_alike(self)
            self._outage.await_end_of_grace()
        self.client.wake(self)

    def _later(self, ns: int, callback: Callable[[], None]) -> Handle | None:
        """A timer; None for a limit that is closed, or where no loop runs."""
        loop = self._node.loop
        return loop.call_at(self._node.read() + ns, callback) if self._open and loop is not None else None

    # What the client asks.

    def question(self, look: bool = False) -> Asked | None:
        """What to ask now; None: nothing. ``look``: something in any case."""
        node, pool, exchange = self._node, self._pool, self._exchange
        reading, now = node.read(), node.now()
        if self._closed and self._returned is None:
            pool.unanswered()
            return None
        self._untold()
        pool.drop(now)
        runs: Runs = []
        whole = gone = False
        if self._closed:
            gone = exchange.give_up(now)
        elif node.held_at is None:
            runs, whole = self._lack(reading, now)
        rechecks = self._recheck is not None and node.paused
        if self._recheck is not None:
            self._recheck.cancel()
            self._recheck = None
        probes = self._outage.degraded and reading - self._wanted_at < _INTEREST_NS
        words = exchange.ask(runs, reading, now, whole=whole, closed=self._closed, gone=gone, must=rechecks or probes or look)
        if words is None:
            self._nothing_to_ask(now)
            return None
        if exchange.news != NO_NEWS:
            self._tell()  # in the next question
        self._returns = 0
        return self.key.encode(), words  # whatever encoding the client has

    def _lack(self, reading: int, now: int) -> tuple[Runs, bool]:
        """The runs to ask for, and whether each is granted whole or not at all, for requests that ask once."""
        return self._exchange.lack(reading, now, self._whole())

    def _whole(self) -> list[Permits]:
        """The requests that ask once and are asked for before all others: nobody waits before them, and no lease has permits for them."""
        self._once, first = self._in_line()[:MOST_RUNS], self._node.first()
        alone = isinstance(first, tuple) and first[2] >= _ONCE and not self._terms.lease
        return [permits for _, permits, _ in self._once] if alone else []

    def _nothing_to_ask(self, now: int) -> None:
        self._silent = True
        if not self._outage.degraded:
            self._outage.forget()  # within the grace it does not matter
        pool = self._pool
        pool.asked_at = None
        if self._returned is not None:
            self._settle()
            return
        first = self._exchange.first()
        if first and pool.lacks(first, now):
            self._node.changed()  # nothing is on its way that would wake it
        self._refuse(self._in_line())

    # What the client hears.

    def answered(self, reply: object) -> None:
        """The script's reply, or a `Refusal`. Raises `Unreachable` if it makes no sense."""
        exchange, sent = self._exchange, self._exchange.sent
        if sent is None:  # its question was forgotten
            return
        if isinstance(reply, Refusal):  # requests in line fail, whatever the policy
            self._untold()
            self._outage.ended()
            self.failed(self._outage.refusal(reply.__cause__ or reply))
            return
        answer = exchange.heard(reply)
        if self._outage.began is not None:
            self._outage.ended()
        if not answer.value:  # it did nothing: it is another time than was thought
            self._untold(nothing=True)
            self._wake()
            return
        exchange.book(answer)
        if self._returned is not None and sent.closed:
            self._pool.clear()
            self._settle()
        elif not self._closed:  # else the next question returns these slots
            exchange.follow(answer.numbers[2])
            if sent.whole:
                self._refuse([request for request, run in zip(self._once, answer.runs, strict=False) if not run[0]])
            self._serve(sent.whole)

    def _serve(self, whole: bool) -> None:
        """Grant what has come."""
        pool = self._pool
        self._node.changed()
        if not pool.unit and pool.hand.count:
            self._flush_later()
        self._end_once(whole)

    def _untold(self, nothing: bool = False) -> None:
        """The question under way is not answered."""
        if self._exchange.sent is not None:
            self._exchange.forget(nothing)

    def unreachable(self, cause: BaseException, silent: float | None) -> None:
        """The store did not answer, and had not for ``silent`` seconds before the question; None: the answer may still come."""
        sent = self._exchange.sent
        if sent is not None:
            if silent is not None:
                self._untold()
            self._outage.no_answer(sent.at - round((silent or 0) * NS_PER_SECOND), cause)
            self._settle()
            self._refuse(self._in_line())

    def failed(self, error: BaseException) -> None:
        """The store refuses, the client's task ended with an error, or this limit's clock failed: nobody hangs."""
        self._untold()
        self._pool.unanswered()
        self._settle()
        if not self._closed:
            self._node.fail(error)
            self._node.changed()

    # What comes back.

    def _flush_later(self) -> None:
        if self._flush is None:
            self._flush = self._later(_FLUSH_NS, self._on_flush)

    def _on_flush(self) -> None:
        self._flush = None
        pool, now = self._pool, self._node.now()
        if self._node.first() is not None:
            pool.drop(now)
        elif not pool.unit:
            pool.put_back(pool.clear(), now)  # those for whom they were have left
        if pool.asked_at is not None or (pool.hand.count and not pool.unit):  # the next question tells of them
            self._flush_later()
        elif any(pool.corrections):
            self._tell()

    # Closing.

    async def aclose(self) -> None:
        """Tell the store what it is yet to hear, and return the slots in hand.

        No task, no timer, and no connection that was opened here is left.
        """
        told = Word()
        client = self.run(self._close, told)
        await told.heard()
        if self.run(self._leave) and client is not None:
            await client.detach(self)

    def _close(self, told: Word) -> StoreClient | None:
        """Ask nothing from now on, except to return what is in hand. Returns the client; ``told`` is told once the store has heard."""
        pool, client = self._pool, self.client if self._at_home else None
        self._closed = True
        self._cancel_timers()
        if client is not None and self._returned is None and self._outage.began is None:
            sent = self._exchange.sent
            near = sent is not None and (client.connected or self._node.read() - sent.at < _CONNECTING_NS)
            under_way = sent is not None and sent.tells
            if self._exchange.untold or near or under_way or pool.usable(1, self._node.now()):
                self._returned = []
                client.wake(self)
        if self._returned is None:
            told.tell()
        else:
            self._returned.append(told)
        return client

    def _leave(self) -> bool:
        """Have nothing in hand. False if the limit was started again meanwhile."""
        if self._closed:
            self._pool.clear()
            self._forget_question()
        return self._closed

    def reopen(self) -> None:
        """Ask again. An `aclose` that waits for the store ends."""
        self._closed = False
        self._settle()

    def _cancel_timers(self) -> None:
        self._outage.cancel()
        for timer in (self._recheck, self._flush):
            if timer is not None:
                timer.cancel()
        self._recheck = self._flush = None

    def _settle(self) -> None:
        """Have `aclose` go on."""
        returned, self._returned = self._returned, None
        for told in returned or ():
            told.tell()


_named: WeakValueDictionary[tuple[object, str, str], StoreSession] = WeakValueDictionary()
"""Of each client or URL, each name and each kind, one limit of this process."""
_told: WeakSet[StoreSession] = WeakSet()
"""Those of which the log was told that another one differs."""


def check_alike(session: StoreSession, names: Sequence[str] = ()) -> None:
    """Tell the log, or raise ValueError for a budget with these ``names``, if another limit in use there has other rates or bursts.

    All of one name share one schedule. A limiter may have another rate for a while, as in a rolling deployment.
    """
    (place, parts), name = session.named, session.key.partition(":")[2]
    differing = _differing(_named.get(place), parts)
    if differing and names:
        collect()  # a budget that nobody holds does not count, though a cycle may keep it for a while
        differing = _differing(_named.get(place), parts)
    if not differing:
        _named[place] = session
    elif names:
        number, its = differing
        raise ValueError(
            f"RedisBudget({names[number]}): a budget named {name!r} has {its.rate} with burst={its.burst} in this process. All of one name"
            " share one schedule: give both the same limits, or two names, or close the other one first."
        )
    elif _named[place] not in _told:
        _told.add(_named[place])
        _logger.warning(
            "limiter %r: another RedisLimiter of this name has other rates or bursts. All of one name share one schedule, and each moves"
            " it by its own rate: give both the same, or two names.",
            name,
        )


def _differing(other: StoreSession | None, parts: Sequence[Part]) -> tuple[int, Part] | None:
    """The first dimension of that one, with its number, that is not as in these parts."""
    if other is None or not other.in_use:
        return None
    its_parts = other.named[1]
    pairs = enumerate(zip(its_parts, parts, strict=False))
    first = next(((number, its) for number, (its, mine) in pairs if _schedule(its) != _schedule(mine)), None)
    return first or ((0, its_parts[0]) if len(its_parts) != len(parts) else None)


def _schedule(part: Part) -> tuple[object, ...]:
    return Fraction(part.rate.permits, part.rate.period_ns), part.burst, part.calendar and part.calendar.described
