"""One limiter's talk with the store: what to ask next, and what an answer means for its scheduler. Sends nothing itself.

The states are drawn in docs/design.md. A `Ledger` says what the limiter lacks, and `StoreClient` sends the questions. A few lines longer
than other files, because each state relies on what the others leave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._errors import EngineUnavailable
from aiorate._rate import NS_PER_SECOND
from aiorate._schedulers.amounts import count_of
from aiorate._schedulers.supplied import MOST_NS
from aiorate._store.client import sessions
from aiorate._store.crowd import Crowd
from aiorate._store.exchange import News, Sent
from aiorate._store.failures import said
from aiorate._store.immediate import Immediate
from aiorate._store.pauses import SharedPause
from aiorate._store.place import LoopPlace
from aiorate._store.spare import Spare
from aiorate._store.switch import FallbackSwitch
from aiorate._tree.watcher import Watcher

if TYPE_CHECKING:
    from aiorate._schedulers.amounts import Permits
    from aiorate._schedulers.supplied import Supplied
    from aiorate._store.asking import Asked
    from aiorate._store.client import StoreClient
    from aiorate._store.ledger import Ledger
    from aiorate._store.outage import Outage
    from aiorate._store.place import Place, Returned
    from aiorate._tree.node import Node

__all__ = ["StoreSession"]

_INTEREST_NS = NS_PER_SECOND  # how long a store that is lost is asked after slots were wanted last
_CONNECTING_NS = NS_PER_SECOND // 20  # how long aclose() trusts that a store answers which has not answered before


class StoreSession(Watcher):
    """Between a limiter, whose node it watches and whose scheduler it supplies, and the client that asks the store."""

    __slots__ = (
        "__weakref__",
        "_closed",
        "_lapsed",
        "_ledger",
        "_news",
        "_node",
        "_outage",
        "_pause",
        "_place",
        "_returned",
        "_scheduler",
        "_sent",
        "_silent",
        "_spare",
        "_switch",
        "_wanted_at",
        "client",
        "immediate",
        "key",
    )

    def __init__(self, source: object, key: str, node: Node, ledger: Ledger, outage: Outage, place: Place | None = None) -> None:
        self.key: str = key
        """Of the store."""
        self.client: StoreClient | None = None
        """The client that asks on behalf of this limiter; None: nothing was asked yet in this event loop."""
        self.immediate: Immediate = Immediate(node, ledger.scheduler, ledger.slack)
        """Requests with ``max_wait=0``."""
        self._closed: bool = False  # nothing is asked, except to return slots
        self._place: Place = place or LoopPlace(source)
        self._node: Node = node
        self._ledger: Ledger = ledger
        self._scheduler: Supplied = ledger.scheduler
        self._outage: Outage = outage
        self._switch: FallbackSwitch = FallbackSwitch(node, ledger.scheduler, outage)
        self._pause: SharedPause = SharedPause(node, self._tell)
        self._spare: Spare = Spare(node, ledger, self._tell)
        self._sent: Sent | None = None  # None: no question is under way
        self._news: News = News()  # what the store is yet to hear
        self._lapsed: int = 0  # ns of schedule that were reported as skipped
        self._wanted_at: int = 0  # the reading when slots were wanted last
        self._silent: bool = False  # whether there was nothing to ask when the client was ready to
        self._returned: Returned | None = None  # while aclose() waits until the store has heard of slots that come back
        ledger.scheduler.link = self
        node.watcher = self
        sessions.add(self)

    # What the scheduler and the node tell.

    def wanted(self, now: int) -> bool:
        """Slots may be wanted at that instant. Returns whether the store will be asked."""
        node = self._node
        if self._closed or not self._place.open:
            return False
        if self._silent and self._outage.degraded:
            self._scheduler.fallback = None  # the store was not asked for a while: requests wait until it is known whether it answers
        self._silent = False
        self._wanted_at = node.timeline.read()
        if self._ledger.is_met(Crowd(node), now):
            return False
        self._wake()
        return True

    def charged(self, permits: Permits) -> None:
        """The store has to hear of permits that were used without slots."""
        self._news.charged += permits
        self._tell()

    @property
    def state(self) -> str:
        return "degraded" if self._outage.degraded else "shared"

    @property
    def busy(self) -> bool:
        return self._sent is not None or bool(self._news)

    @property
    def on_demand(self) -> bool:
        return not self._ledger.lease

    def pausing(self, ns: int) -> None:
        """The store has to hear of a pause. Raises ValueError for more than 317 years."""
        if ns > MOST_NS:
            seconds, longest = ns // NS_PER_SECOND, MOST_NS // NS_PER_SECOND
            raise ValueError(f"pause({seconds}): a limit in a store is paused for at most {longest} seconds, which are 317 years.")
        self._news.pause(self._node.timeline.read() + ns)
        self._tell()
        self.immediate.refuse()

    def resumed(self) -> None:
        """The store has to hear that a pause is over."""
        self._news.resume()
        self._tell()

    def held_up(self) -> None:
        """A request waits for the end of a pause, which other processes may end earlier."""
        timers = self._place.timers
        if timers is not None and not self._closed:
            self._pause.recheck_later(timers)

    def shared(self) -> None:
        """The first in line keeps its slots while another limit is asked after this one."""
        self._scheduler.patient = True

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
        sent, self._sent = self._sent, None
        if sent is not None:
            self._news.again(sent.news)
        self.client = self._returned = None
        self._scheduler.unanswered()

    def forked(self) -> None:
        """This is a child process now: the slots in hand and the connection are the parent's."""
        self._scheduler.clear()
        self.immediate.waiting.clear()
        self._forget_question()

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
                self._switch.await_end_of_grace(place.timers)
            client = found
        if not place.wake(client, self):
            self._wake()  # it is no longer there

    # What the limiter does.

    def recheck(self) -> None:
        """Ask for the next request, whatever the store said last."""
        self._scheduler.recheck()

    @property
    def answer_ns(self) -> int:
        """How long an answer of the store takes."""
        return self._scheduler.answer_ns

    @property
    def coming(self) -> bool:
        """Whether an answer is on its way that may have slots for the next request."""
        return self._scheduler.asking and not self._closed and self._node.timeline.held_at is None

    async def aclose(self) -> None:
        """Tell the store what it is yet to hear, and return the slots in hand, if nobody has asked it since.

        No task, no timer, and no connection that was opened here is left.
        """
        client, returned = self._node.tree.run(self._close)
        if returned is not None:
            await returned.wait()
        if self._node.tree.run(self._leave) and client is not None:
            await self._place.detach(client, self)

    def _close(self) -> tuple[StoreClient | None, Returned | None]:
        """Ask nothing from now on, except to return what is in hand. Returns the client, and the wait until the store has heard."""
        place = self._place
        client = self.client if self.client is not None and place.has(self.client) else None
        self._closed = True
        self._cancel_timers()
        if client is not None and self._returned is None and self._outage.began is None:
            unsaid = self._news or (self._sent is not None and (self._sent.news or self._answer_is_near(client)))
            if unsaid or self._scheduler.returnable(self._node.timeline.now()):
                self._returned = place.returned()
                if not place.wake(client, self):
                    self._settle()
        return client, None if client is None else self._returned

    def _answer_is_near(self, client: StoreClient) -> bool:
        """Whether the question under way will be answered soon, it seems: permits that come with the answer can go back."""
        sent = self._sent
        return sent is not None and (client.connected or self._node.timeline.read() - sent.at < _CONNECTING_NS)

    def _leave(self) -> bool:
        """Have nothing in hand. False if the limiter was started again meanwhile."""
        if self._closed:
            self._scheduler.clear()
            self._forget_question()
        return self._closed

    def reopen(self) -> None:
        """Ask again. An `aclose` that waits for the store ends."""
        self._node.tree.run(self._reopen)

    def _reopen(self) -> None:
        self._closed = False
        self._settle()

    # What the client asks and hears.

    @property
    def limits(self) -> object:
        """What all limiters of one key must have in common."""
        return self._ledger.limits

    @property
    def in_grace(self) -> bool:
        """Whether the store does not answer, for less than the grace."""
        return self._outage.due is not None

    def question(self) -> Asked | None:
        """What to ask now; None: nothing."""
        node, ledger = self._node, self._ledger
        reading, now = node.timeline.read(), node.timeline.now()
        returns = self._returned is not None
        if self._closed and not returns:
            self._scheduler.unanswered()
            return None
        held = self._closed or node.timeline.held_at is not None
        question = ledger.draw(None if held else Crowd(node), self.immediate, reading, now)
        if returns:
            ledger.give_up(question, now)
        news = self._news.take(reading)
        probes = self._outage.degraded and reading - self._wanted_at < _INTEREST_NS
        if not (question.want or question.back or news or self._pause.rechecks or probes):
            self._nothing_to_ask(now)
            return None
        if self._news:
            self._tell()  # in the next question
        question.charge, question.pause = news.charged, news.pause_us(reading)
        self._sent = Sent(reading, news, self._closed)
        return ledger.written(self.key, question, reading)

    def _nothing_to_ask(self, now: int) -> None:
        self._silent = True
        self._switch.nobody_waits()
        self._scheduler.unanswered()
        if self._returned is not None:
            self._settle()
            return
        self._spare.look(self._place.timers)
        first = Crowd(self._node).first()
        if first is not None and self._scheduler.ready(permits := count_of(first[1]), now) < permits:
            self._node.changed()  # nothing is on its way that would wake it
        self.immediate.refuse()

    def answered(self, reply: object) -> None:
        """The script's reply. Raises `BadAnswer` if it makes no sense."""
        sent = self._sent
        if sent is None:  # its question was forgotten
            return
        answer = self._ledger.read(reply)
        self._sent = None
        node, scheduler, timeline = self._node, self._scheduler, self._node.timeline
        received = timeline.read()
        now = received - timeline.offset
        unused = self._ledger.heard(sent.at, received)
        if self._outage.concerns_answer:
            length, owed = self._outage.ended(received, unused)
            self._switch.restore(length)
            if owed:
                self.charged(owed)
        self._pause.rechecks = False
        if answer.granted < 0:
            self._news.again(sent.news)
            self._wake()
            return
        if self._returned is not None and sent.closed:
            scheduler.clear()
            self._settle()
            return
        self._ledger.book(now)
        if self._closed:  # while the question was under way; the next one returns these slots
            return
        if answer.paused or self._pause.on:
            self._pause.follow(answer.paused, self._news.pause_at is not None)
        waited = bool(Crowd(node))
        node.changed()
        if scheduler.lapsed > self._lapsed:
            if waited:
                node.skip(scheduler.lapsed - self._lapsed)
            self._lapsed = scheduler.lapsed
        self._spare.look(self._place.timers)
        if self.immediate:
            self.immediate.refuse(coming=self.immediate.any_unasked and self._asks_on())

    def _asks_on(self) -> bool:
        """Have the store asked for the line, unless the first in it has its slots and will be granted in the loop's next iteration."""
        node, scheduler = self._node, self._scheduler
        first = Crowd(node).first()
        if first is None or node.timeline.held_at is not None:
            return False
        now = node.timeline.now()
        if count_of(first[1]) <= scheduler.available(now):
            return True
        scheduler.want(now)
        return self.coming

    def unreachable(self, cause: BaseException, silent: float) -> None:
        """The store did not answer, and had not for ``silent`` seconds before the question. It will be asked again."""
        sent, self._sent = self._sent, None
        if sent is not None:
            self._news.again(sent.news)
            self._no_answer(sent.at - round(silent * NS_PER_SECOND), cause)
            self.immediate.refuse()

    def late(self, cause: BaseException) -> None:
        """The answer takes long enough to count as an outage. It may still come."""
        if self._sent is not None:
            self._no_answer(self._sent.at, cause)

    def _no_answer(self, began: int, cause: BaseException) -> None:
        self._switch.no_answer(began, cause)
        if self._returned is not None:
            self._settle()
        elif self.client is not None:
            self._switch.await_end_of_grace(self._place.timers)

    def refused(self, cause: BaseException) -> None:
        """The store will not answer until somebody mends the reason: requests in line fail, whatever the policy."""
        if self._sent is None:
            return
        self._sent = None
        self._pause.rechecks = False
        self._switch.restore(self._outage.refused(self._node.timeline.read()))
        error = EngineUnavailable(f"{self._outage.call}: the store refuses: {said(cause)}")
        error.__cause__ = cause
        self._fail(error)

    def failed(self, error: BaseException) -> None:
        """The client's task ended with an error, or this limiter's clock failed: nobody hangs."""
        sent, self._sent = self._sent, None
        if sent is not None:
            self._news.again(sent.news)
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._scheduler.unanswered()
        self._settle()
        if not self._closed:
            self._node.fail(error)
            self._node.changed()

    def _cancel_timers(self) -> None:
        self._switch.cancel()
        self._pause.cancel()
        self._spare.cancel()

    def _settle(self) -> None:
        """Have `aclose` go on."""
        returned, self._returned = self._returned, None
        if returned is not None:
            returned.over()
