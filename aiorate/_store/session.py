"""One limit's talk with the store: when to ask, and what becomes of requests. Sends nothing itself: `StoreClient` does."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from aiorate._errors import EngineUnavailable
from aiorate._events import Event
from aiorate._loops.table import running_loop
from aiorate._rate import NS_PER_SECOND, ns_to_seconds
from aiorate._store.client import client_of
from aiorate._store.exchange import NO_NEWS, Exchange
from aiorate._store.failures import Refusal, said, said_by_server
from aiorate._store.once import Once
from aiorate._store.slots import check_pause
from aiorate._store.twin import Local
from aiorate._tree.limit import Provider

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._loops.loop import Handle
    from aiorate._store.client import StoreClient
    from aiorate._store.options import Terms
    from aiorate._store.pool import Pool
    from aiorate._store.store import Asked
    from aiorate._tree.node import Node
    from aiorate._tree.refusals import Refusals


_INTEREST_NS = NS_PER_SECOND  # how long a store that is lost is asked after slots were wanted last
_FLUSH_NS = NS_PER_SECOND // 20  # after which the store hears what came back, if no question is to be expected
_RECHECK_NS = NS_PER_SECOND  # how often a process in which a request waits asks whether a pause goes on

_FRESH_NS = NS_PER_SECOND  # for which requests that ask once rely on the latest answer


class StoreSession(Provider):
    """Between a limit, whose node it watches and whose pool it fills, and the client that asks the store.

    In an outage nothing happens within the grace, and then the policy decides.
    """

    def __init__(self, source: object, key: str, node: Node, pool: Pool, terms: Terms, refusals: Refusals) -> None:
        self.key: str = key
        """Of the store."""
        self.client: StoreClient | None = None
        """The client that asks on behalf of this limit; None: nothing was asked yet in this event loop."""
        self.once: Once = Once(node, pool, terms, refusals, self._may_ask)
        """Requests that ask once."""
        self._source, self._node, self._pool, self._terms = source, node, pool, terms
        self._exchange: Exchange = Exchange(node, pool, terms)
        self._closed: bool = False  # nothing is asked, except to return slots
        self._lost_at: int | None = None  # the reading at the first call without an answer; None: the store answers
        self._cause: BaseException | None = None  # of the last one
        self._degraded: bool = False  # whether that has gone on for longer than the grace
        self._local: Local | None = None  # the store meanwhile, by the policy "local"
        self._wanted_at: int = 0  # the reading when slots were wanted last
        self._timer: Handle | None = None
        self._timer_at: int = 0
        pool.link = node.provider = self
        _sessions.add(self)

    @property
    def run(self) -> Callable[..., Any]:
        """Calls a function in a decision of the limit."""
        return self._node.tree.run

    # What the pool and the node tell.

    def wanted(self, now: int) -> bool:
        """Slots may be wanted at that instant. Returns whether the store will be asked."""
        if not self._open:
            return False
        self._wanted_at = self._node.read()
        if self._pool.outage == "local" and self._local is not None:
            if self._node.held_at is None:
                self._exchange.ask_local(self._local, self.once.first())
                self.once.end(True)
            self._wake()
            return False
        if self._exchange.enough(now):
            return False
        self._wake()
        return True

    def corrected(self, at_once: bool) -> None:
        """The store has something to hear: permits that were used without slots, or that come back."""
        if at_once:
            self._tell()
        else:
            self._later(_FLUSH_NS)

    @property
    def state(self) -> str:
        return "degraded" if self._degraded else "shared"

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
        self.once.refuse()

    def resumed(self) -> None:
        self._exchange.resume()
        self._tell()

    def held_up(self) -> None:
        """A request waits for the end of a pause: ask in a second, and again, whether it goes on."""
        if self._exchange.may_be_resumed:
            self._later(_RECHECK_NS)

    def shared(self) -> None:
        """The first in line keeps its slots while another limit is asked after this one."""
        self._pool.patient = True

    def moved(self) -> None:
        """The event loop is gone, or another one is used, which may have asked already."""
        if self.client is not None and not self.client.here:
            self._forget()

    def forked(self) -> None:
        """This is a child process: the slots in hand, the connection, and what is to be told are the parent's."""
        pool = self._pool
        pool.clear()
        pool.unanswered()
        pool.corrections, pool.oldest = [0] * len(pool.parts), None
        self.client = self._timer = None
        self._exchange.forked()

    def _forget(self) -> None:
        """No client asks any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._exchange.forget()
        self.once.refuse()
        self.client = None
        self._pool.unanswered()

    # Asking.

    @property
    def _open(self) -> bool:
        """Whether the store may be asked from here: not for try_acquire() and delay() outside a loop."""
        return not self._closed and (self._node.tree.threads or running_loop() is not None)

    def _may_ask(self) -> bool:
        """Whether an answer is to be expected. Permits may have come back since the latest one, if that is no longer fresh."""
        if self._exchange.told_at < self._node.read() - _FRESH_NS:
            self._pool.levels = [None] * len(self._pool.parts)
        return self._open and (self._lost_at is None or self._degraded)

    def _tell(self) -> None:
        if self._open:
            self._wake()

    def _wake(self) -> None:
        """Have the client ask that is the right one here."""
        if self.client is not None and not self.client.here:
            self._forget()
        if self.client is None:
            self.client = client_of(self._source, self.key, self._node.tree.threads)
            self._node.tree.add(self._node)
        self.client.wake(self)

    def question(self) -> Asked | None:
        """What to ask now; None: nothing."""
        node, pool, exchange = self._node, self._pool, self._exchange
        if self._closed and self._lost_at is not None:
            return None
        exchange.forget()
        pool.drop(node.now())
        runs, whole = ([], False) if self._closed or node.held_at is not None else exchange.lack(self.once.first())
        probes = self._degraded and node.read() - self._wanted_at < _INTEREST_NS
        words = exchange.ask(runs, whole, self._closed, must=probes or (node.held_at is not None and node.first() is not None))
        if words is None:
            self._nothing_to_ask()
            return None
        return self.key.encode(), words  # whatever encoding the client has

    def _nothing_to_ask(self) -> None:
        pool, node = self._pool, self._node
        if self._degraded:  # requests wait until it is known whether the store answers
            pool.outage, pool.error = "", None
        else:
            self._lost_at = None
        pool.asked_at = None
        first = self._exchange.first()
        if first and pool.lacks(first, node.now()):
            node.changed()  # nothing is on its way that would wake it
        self.once.refuse()

    # What the client hears.

    def answered(self, reply: object) -> None:
        """The script's reply, or a `Refusal`. Raises `Unreachable` if it makes no sense."""
        exchange, sent = self._exchange, self._exchange.sent
        if sent is None:  # its question was forgotten
            return
        if isinstance(reply, Refusal):  # requests in line fail, whatever the policy
            exchange.forget()
            self._restored()
            self.failed(self._error(f"the store refuses: {said(reply.__cause__ or reply)}", reply.__cause__))
            return
        if self._local is not None:
            self._pool.clear()  # what was booked here counts no longer
        answer = exchange.heard(reply)
        self._restored()
        if exchange.news != NO_NEWS:
            self._tell()
        if not answer.value:
            self._wake()
        elif sent.closed:
            self._pool.clear()
        elif not self._closed:  # else the next question returns these slots
            exchange.follow(answer.numbers[2])
            if sent.whole:
                self.once.answered(answer)
            self._node.changed()
            if not self._pool.unit and self._pool.hand.count:
                self._later(_FLUSH_NS)
            self.once.end(sent.whole)

    def unreachable(self, cause: BaseException, silent: float | None) -> None:
        """The store did not answer, and had not for ``silent`` seconds before the question; None: the answer may still come."""
        sent = self._exchange.sent
        if sent is None:
            return
        if silent is not None:
            self._exchange.forget()
        if self._lost_at is None:
            self._lost_at = sent.at - round((silent or 0) * NS_PER_SECOND)
        self._cause = cause
        self._go_by_policy()
        self.once.refuse()

    def _go_by_policy(self) -> None:
        """In an outage: the policy decides after the grace."""
        node, pool, policy, cause = self._node, self._pool, self._terms.policy, self._cause
        if self._lost_at is None or cause is None:
            return
        if not self._degraded:
            left = self._lost_at + self._terms.grace - node.read()
            if left > 0:
                self._later(left)
                return
            self._degraded = True
            node.tell(Event("degraded", node.name, source=f"{said(cause).rstrip('.')}; on_unavailable={policy!r}"))
        pool.asked_at = None  # to hear whether slots are still wanted
        if pool.outage:
            return
        pool.unanswered()
        pool.outage = policy
        if policy == "raise":
            what = "answers with an error" if said_by_server(cause) else "does not answer"
            text = f"the store {what}: {said(cause).rstrip('.')}. It is asked again; on_unavailable= says what happens meanwhile."
            pool.error = self._error(text, cause)
        elif policy == "local" and self._local is None:
            self._local = Local(pool.parts, self._terms.share)
            pool.levels = [None] * len(pool.parts)
        node.changed()

    def _restored(self) -> None:
        """The store can be reached. What was granted here in an outage is charged, at most a share of the burst."""
        if self._lost_at is None:
            return
        node, pool, local, length = self._node, self._pool, self._local, self._node.read() - self._lost_at
        if self._degraded:
            node.tell(Event("restored", node.name, seconds=ns_to_seconds(length)))
        self._lost_at, self._degraded, self._cause, self._local, pool.outage, pool.error = None, False, None, None, "", None
        if local is not None:
            bursts = [int(part.burst * self._terms.share) if part.burst > 1 else 0 for part in pool.parts]
            owed = [min(spent, burst) for spent, burst in zip(local.spent, bursts, strict=True)]
            if any(owed):
                pool.correct(owed, node.now())

    def _error(self, text: str, cause: BaseException | None) -> EngineUnavailable:
        error = EngineUnavailable(f"{self._terms.call}: {text}")
        error.__cause__ = cause
        return error

    def failed(self, error: BaseException) -> None:
        """The store refuses, the client's task ended with an error, or this limit's clock failed: nobody hangs."""
        self._exchange.forget()
        self._pool.unanswered()
        if not self._closed:
            self._node.fail(error)
            self._node.changed()

    # Later.

    def _later(self, ns: int) -> None:
        """Within ``ns``, look after what comes back, and after a pause."""
        node, loop = self._node, self._node.loop
        at = node.read() + ns
        if loop is None or not self._open or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = loop.call_at(at, self._on_timer), at

    def _on_timer(self) -> None:
        self._timer = None
        if not self._degraded:
            self._go_by_policy()
        pool, node, now = self._pool, self._node, self._node.now()
        waits = node.first() is not None
        if waits:
            pool.drop(now)
        elif not pool.unit:
            pool.put_back(pool.clear(), now)  # those for whom they were have left
        if waits and node.paused:
            self._tell()
        elif pool.asked_at is not None or (pool.hand.count and not pool.unit):  # the next question tells of them
            self._later(_FLUSH_NS)
        elif any(pool.corrections):
            self._tell()

    # Closing.

    async def aclose(self) -> None:
        """Tell the store what it is yet to hear, and return the slots in hand.

        No task, no timer, and no connection that was opened here is left.
        """
        client = self.run(self._close)
        if client is not None:
            await client.detach(self)
        self.run(self._leave)

    def _close(self) -> StoreClient | None:
        """Ask nothing from now on, except to return what is in hand. Returns the client."""
        self._closed = True
        return self.client if self.client is not None and self.client.here else None

    def _leave(self) -> None:
        if self._closed:  # and not started again meanwhile
            self._pool.clear()
            self._forget()

    def reopen(self) -> None:
        """Ask again."""
        self._closed = False


_sessions: WeakSet[StoreSession] = WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session.forked()


with suppress(AttributeError):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)
