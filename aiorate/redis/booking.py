"""One limiter's side of the talk with the store: what to ask next, and what an answer means for its scheduler. Sends nothing itself."""

from __future__ import annotations

import asyncio
from math import ceil, inf
from typing import TYPE_CHECKING
from weakref import WeakSet

from aiorate.errors import EngineUnavailable
from aiorate.events import Event
from aiorate.rate import NS_PER_SECOND, ns_to_seconds
from aiorate.redis.failures import said
from aiorate.redis.fairness import FairShare
from aiorate.redis.immediate import Immediate
from aiorate.redis.script import Answer, BadAnswer, Question, limits_of, read_answer
from aiorate.schedulers.booked import MOST_NS
from aiorate.waiting.loops import running_loop
from aiorate.waiting.watcher import Watcher

if TYPE_CHECKING:
    from typing import Protocol

    from aiorate.rate import Rate
    from aiorate.redis.outage import Outage
    from aiorate.schedulers.booked import Booked
    from aiorate.waiting.deadlines import Patience
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.line import Ticket

    class Booker(Protocol):
        """What a booking knows of the task that asks the store."""

        loop: asyncio.AbstractEventLoop
        provisional: bool

        def wake(self, booking: Booking) -> None:
            """Ask the store in the loop's next turn, or when the call in flight is answered."""
            ...

        def attach(self, booking: Booking) -> None:
            """Stay until it is detached, or no more."""
            ...

        def release(self, booking: Booking) -> None:
            """Forget it: another asks for it from now on."""
            ...

        async def detach(self, booking: Booking) -> None:
            """Forget it. After the last, no task and no connection stays."""
            ...

    class FindBooker(Protocol):
        """How it finds the task of the loop that runs."""

        def __call__(self, source: object, loop: asyncio.AbstractEventLoop, key: str, /) -> Booker:
            """The one for that store, or for the node of a cluster that has the key, in that loop."""
            ...


__all__ = ["Booking", "bookings"]

_US = 1_000  # ns
_SHORTEST_NS = 1_000_000  # over which use is measured
_INTEREST_NS = NS_PER_SECOND  # a store that is lost is asked so long after the last who wanted it
_LONGEST_NS = NS_PER_SECOND  # a round trip counts for no more
_PORTION = 500  # slots asked for at once, if a horizon has fewer: the loop wakes as many waiters before slots lapse
_RECHECK_NS = NS_PER_SECOND  # so often a process in which somebody waits asks whether a pause still goes on


class Booking(Watcher):
    """Between a `Booked` scheduler and the store.

    ``lease``, ``horizon`` and ``slack`` are in ns. Slots are asked for on behalf of those in line and, with a lease, of those who will
    ask within it if use goes on as it does; but only when half of those that came last are gone.
    """

    __slots__ = (
        "__weakref__",
        "_ahead",
        "_answer_ns",
        "_asking",
        "_booker",
        "_charged",
        "_closed",
        "_dispatcher",
        "_find",
        "_immediate",
        "_interest",
        "_lapsed",
        "_last",
        "_lease",
        "_limits",
        "_limits_of",
        "_metered",
        "_metered_at",
        "_outage",
        "_pause_at",
        "_paused_here",
        "_recheck",
        "_rechecks",
        "_remembered",
        "_remembered_at",
        "_resumes",
        "_returned",
        "_scheduler",
        "_sent",
        "_sent_charge",
        "_sent_last",
        "_sent_pause",
        "_sent_rates",
        "_sent_resume",
        "_sent_want",
        "_share",
        "_silent",
        "_slack",
        "_source",
        "_spent",
        "_tail",
        "_timer",
        "_unused",
        "_waited",
        "_within",
        "key",
    )

    def __init__(
        self,
        source: object,
        key: str,
        dispatcher: Dispatcher,
        scheduler: Booked,
        lease: int,
        horizon: int,
        slack: int,
        outage: Outage,
        find: FindBooker,
    ) -> None:
        self.key: str = key
        """Of the store."""
        self._source: object = source
        self._find: FindBooker = find
        self._scheduler: Booked = scheduler
        self._dispatcher: Dispatcher = dispatcher
        self._booker: Booker | None = None
        self._outage: Outage = outage
        self._lease: int = lease
        self._slack: int = slack
        self._immediate: Immediate | None = None  # requests in line with max_wait=0; None: there were none
        self._within: int = -1  # the latest useful slot, in ns from now; -1: any slot is
        self._ahead: int = max(horizon, lease)  # how far all processes together aim to book, at least
        self._limits: str = ""
        self._limits_of: tuple[Rate, ...] = ()  # for which they were written
        self._remembered: str = ""
        self._remembered_at: int = 0
        self._tail: str = ""  # what was remembered when slots came last: if it is still that, they are the last of all
        self._share: FairShare = FairShare()
        self._waited: int = 0  # how many permits were waited for when slots were asked for last
        self._spent: int = 0  # how many were granted until then
        self._unused: float = inf  # permits, by the store's count when it answered last: before that, nothing counts as unused
        self._lapsed: int = 0  # of the schedule, as far as it was told
        self._last: int = 0  # how many slots came last
        self._answer_ns: int = 0  # how long an answer takes, smoothed
        self._charged: int = 0  # permits the store has yet to hear of
        self._pause_at: int | None = None  # the reading at which a pause of all is to end, of which the store has yet to hear
        self._resumes: bool = False  # whether it has yet to hear that a pause is over; before that
        self._paused_here: bool = False  # whether the store holds everybody up
        self._returned: asyncio.Future[None] | None = None  # done when the store has heard of slots that come back
        self._closed: bool = False
        self._interest: int = 0  # the reading when slots were wanted last
        self._metered: int = 0
        self._metered_at: int = 0
        self._asking: bool = False  # whether a call is under way
        self._silent: bool = False  # whether there was nothing to ask
        self._sent: int = 0
        self._sent_charge: int = 0
        self._sent_last: bool = False  # whether it was asked once the limiter was closed
        self._sent_pause: int | None = None
        self._sent_resume: bool = False
        self._sent_rates: tuple[Rate, ...] = ()
        self._sent_want: int = 0
        self._timer: asyncio.TimerHandle | None = None  # to the end of the grace
        self._recheck: asyncio.TimerHandle | None = None
        self._rechecks: bool = False  # whether to ask if a pause still goes on
        scheduler.desk = self
        dispatcher.watcher = self
        bookings.add(self)

    # What the scheduler and the limiter say.

    def wanted(self, now: int) -> bool:
        """Slots may be wanted at that instant. True if the store will be asked."""
        dispatcher = self._dispatcher
        native = running_loop()
        if native is None or self._closed:
            return False  # try_acquire() and delay() outside a loop
        reading = dispatcher.timeline.read()
        if self._silent and self._outage.degraded:
            self._scheduler.beyond = None  # nobody has asked the store since: who comes now waits for an answer, or for none
        self._silent = False
        self._interest = reading
        if self._scheduler.in_hand:
            first = dispatcher.line.first()
            if self._enough(1 if first is None else first[1], now):
                return False
        self._wake(native)
        return True

    def _enough(self, first: int, now: int) -> bool:
        """Whether more than half of the slots that came last are still there, while the first in line asks for so many.

        And whether they last until others could be here. Those that it gathers are as good as gone.
        """
        scheduler = self._scheduler
        ready = scheduler.ready(first, now)
        enough = 2 * (ready if ready >= first else scheduler.ahead(now)) > self._last
        return enough and scheduler.ahead(now + self._answer_ns) > 0

    @property
    def state(self) -> str:
        return "degraded" if self._outage.degraded else "shared"

    @property
    def on_demand(self) -> bool:
        return not self._lease

    @property
    def answer_ns(self) -> int:
        """How long an answer of the store takes."""
        return self._scheduler.answer_ns

    @property
    def coming(self) -> bool:
        """Whether an answer is on its way that may have slots for the next request."""
        return self._scheduler.asking and not self._closed and self._dispatcher.timeline.held_at is None

    def add_immediate(self, ticket: Ticket, patience: Patience) -> None:
        """A request with ``max_wait=0`` joined the line: it waits for one answer of the store."""
        if self._immediate is None:
            self._immediate = Immediate()
        self._immediate.add(ticket, patience)
        if not self.coming:
            self._refuse_immediate()

    def remove_immediate(self, ticket: Ticket) -> None:
        """A request with ``max_wait=0`` was decided, or left the line."""
        if self._immediate is not None:
            self._immediate.remove(ticket)

    def _refuse_immediate(self, asks_on: bool = False) -> None:
        """Refuse the requests with ``max_wait=0`` that had their answer, or get none, and are not due within the slack.

        ``asks_on``: the store will be asked for those for which it was not.
        """
        if not self._immediate:
            return
        dispatcher, now = self._dispatcher, self._dispatcher.timeline.now()
        gate, first = dispatcher.gate, dispatcher.line.first()
        held = dispatcher.timeline.held_at is not None or (gate is not None and first is not None and gate.estimate(first[1]) != 0)
        due = 0 if held else self._scheduler.due_by(now + self._slack, now)
        over = self._immediate.refused(dispatcher.line, due, asks_on)
        if over:
            dispatcher.send_away(over)

    def _asks_on(self) -> bool:
        """Have the store asked for those in line, unless the first has its slots and will be granted once the loop has turned."""
        dispatcher, scheduler = self._dispatcher, self._scheduler
        first = dispatcher.line.first()
        if first is None or dispatcher.timeline.held_at is not None:
            return False
        now = dispatcher.timeline.now()
        if first[1] <= scheduler.available(now):
            return True
        scheduler.want(now)
        return self.coming

    def _wake(self, native: object) -> None:
        if self._booker is not None and self._booker.loop is not native:
            self.moved()
        booker = self._booker
        if booker is None or (booker.provisional and not self._asking):
            if not isinstance(native, asyncio.AbstractEventLoop):
                raise RuntimeError("RedisLimiter works on asyncio and uvloop, because its client does; this is another event loop.")
            found = self._find(self._source, native, self.key)
            if found is not booker:
                if booker is not None:
                    booker.release(self)
                found.attach(self)
                self._booker = found
                self._await_end_of_grace()
            booker = found
        booker.wake(self)

    def charged(self, permits: int) -> None:
        """The store has to hear of permits that were used without slots."""
        self._charged += permits
        self._tell()

    def pausing(self, ns: int) -> None:
        """The store has to hear of a pause. Raises ValueError for more than 317 years."""
        if ns > MOST_NS:
            seconds, longest = ns // NS_PER_SECOND, MOST_NS // NS_PER_SECOND
            raise ValueError(f"pause({seconds}): a limit in a store is paused for at most {longest} seconds, which are 317 years.")
        until = self._reading() + ns
        if self._pause_at is None or until > self._pause_at:
            self._pause_at = until
        self._tell()
        self._refuse_immediate()

    def resumed(self) -> None:
        """The store has to hear that a pause is over."""
        self._pause_at, self._resumes = None, True
        self._tell()

    def held_up(self) -> None:
        """Somebody waits for the end of a pause, which others may end before."""
        native, until = running_loop(), self._dispatcher.timeline.paused_until
        if not self._paused_here or self._recheck is not None or until is None or until - self._reading() <= _RECHECK_NS:
            return
        if isinstance(native, asyncio.AbstractEventLoop) and not self._closed:
            self._recheck = native.call_later(_RECHECK_NS / NS_PER_SECOND, self._on_recheck)

    def shared(self) -> None:
        """The first in line keeps its slots while another limit is asked after this one."""
        self._scheduler.patient = True

    def moved(self) -> None:
        """The loop in which the store was asked is gone."""
        self._scheduler.unanswered()
        self._cancel_timer()
        self._cancel_recheck()
        self._booker = self._returned = None
        self._asking = False

    def _tell(self) -> None:
        native = running_loop()
        if native is not None and not self._closed:
            self._wake(native)

    def forked(self) -> None:
        """Another process goes on with the slots in hand, and with the connection."""
        self._scheduler.clear()
        self._scheduler.unanswered()
        self._booker = self._timer = self._recheck = self._returned = None
        self._asking = False
        if self._immediate is not None:
            self._immediate.clear()

    async def aclose(self) -> None:
        """Tell the store what it has yet to hear of, and return the slots in hand, if nobody has asked it since.

        No task, no timer, and no connection of our own is left.
        """
        booker = self._booker
        native = running_loop()
        self._closed = True
        self._cancel_timer()
        self._cancel_recheck()
        if booker is not None and booker.loop is native:
            unsaid = self._charged or self._pause_at is not None or self._resumes
            if self._returned is None and (unsaid or self._scheduler.last_run(self._now())) and self._outage.began is None:
                self._returned = booker.loop.create_future()
                booker.wake(self)
            if self._returned is not None:
                await asyncio.shield(self._returned)  # for which another call may wait too
            await booker.detach(self)
        self._booker = None
        self._scheduler.clear()
        self._scheduler.unanswered()

    def reopen(self) -> None:
        """Ask again."""
        self._closed = False

    # What the task asks and hears.

    def question(self) -> Question | None:
        """What to ask now; None: nothing."""
        timeline = self._dispatcher.timeline
        reading, now = timeline.read(), timeline.now()
        returned = self._returned
        if self._closed and returned is None:
            self._scheduler.unanswered()
            return None
        back = self._scheduler.last_run(now) if returned is not None and self._remembered == self._tail else 0
        want = 0 if self._closed else self._missing(reading, now)
        if self._pause_at is not None and self._pause_at <= reading:
            self._pause_at = None
        resume, pause_at = self._resumes, self._pause_at
        if resume and pause_at is not None:
            pause_at = None  # one after the other
            self._tell()
        unsaid = self._charged or resume or pause_at is not None
        if not (want or back or unsaid or self._rechecks or self._probes(reading)):
            self._silent = True
            if not self._outage.degraded:
                self._outage.began = None  # nobody waits any more
                self._cancel_timer()
            self._scheduler.unanswered()
            if returned is not None:
                self._settle()
            else:
                first = self._dispatcher.line.first()
                if first is not None and self._scheduler.ready(first[1], now) < first[1]:
                    self._dispatcher.changed()  # nothing is on its way that would wake it
                self._refuse_immediate()
            return None
        self._asking = True
        self._sent, self._sent_charge, self._sent_last, self._sent_rates = reading, self._charged, self._closed, self._scheduler.rates
        self._sent_pause, self._sent_resume, self._resumes = pause_at, resume, False
        self._sent_want = want
        horizon = max(self._ahead, self._answer_ns)
        return Question(
            want,
            self._charged,
            0 if resume else -1 if pause_at is None else (pause_at - reading) / _US,
            back,
            horizon / _US,
            self._share.asked(want, reading, horizon),
            (reading - self._remembered_at) / _US,
            self._remembered,
            *self._near(),
        )

    def _near(self) -> tuple[float, int, int]:
        """The last three numbers of a question: the latest useful slot, the size of a request, and the slots of one in hand."""
        if self._within < 0 or self._immediate is None:
            return -1, 1, 0
        return self._within / _US, self._immediate.unit, self._immediate.have

    @property
    def limits(self) -> str:
        """Interval and tolerance of each rate, for the script."""
        if self._limits_of is not self._scheduler.rates:
            self._limits_of = self._scheduler.rates
            self._limits = limits_of(self._limits_of, self._scheduler.bursts)
        return self._limits

    def answered(self, reply: object) -> None:
        """The script's reply. Raises `BadAnswer` if it is none."""
        self._asking = False
        answer = read_answer(reply, len(self._sent_rates))
        most = 0 if answer.paused else self._sent_want
        if not (min(most, 1) if self._within < 0 else 0) <= answer.granted <= most:
            raise BadAnswer(f"the store assigned {answer.granted} slots where {self._sent_want} were asked for")
        dispatcher = self._dispatcher
        received = self._reading()
        now = received - dispatcher.timeline.offset
        self._measure(received - self._sent)
        if self._outage.concerns_answer:
            self._restore(*self._outage.ended(received, answer.unused - self._unused))
        self._unused = answer.unused
        self._charged -= self._sent_charge
        self._rechecks = False
        if self._pause_at == self._sent_pause:
            self._pause_at = None
        self._remembered, self._remembered_at = answer.value, received
        scheduler = self._scheduler
        if self._returned is not None and self._sent_last:
            scheduler.clear()
            self._settle()
            return
        if answer.granted:
            self._last, self._tail = answer.granted, answer.value
            self._share.answered(answer, _us_apart(self._scheduler.rate))
            if self._lease:
                scheduler.low(self._last // 2)
        starts, nexts = _instants(answer.starts, now), _instants(answer.nexts, now)
        scheduler.book(starts, answer.granted, now, nexts, self._answer_ns, self._sent_rates)
        if self._closed:  # while this call was under way; the next one returns these
            return
        if answer.paused or self._paused_here:
            self._heed_pause(answer, dispatcher)
        waited = bool(dispatcher.line)
        dispatcher.changed()
        if scheduler.lapsed > self._lapsed:
            if waited:
                dispatcher.skip(scheduler.lapsed - self._lapsed)
            self._lapsed = scheduler.lapsed
        if self._immediate:
            self._refuse_immediate(self._immediate.has_more and self._asks_on())

    def unreachable(self, cause: BaseException) -> None:
        """The store did not answer. It will be asked again."""
        self._asking = False
        self._resumes |= self._sent_resume
        self.late(cause)
        self._refuse_immediate()

    def late(self, cause: BaseException) -> None:
        """The answer takes so long that it counts for an outage, and may yet come."""
        outage, scheduler = self._outage, self._scheduler
        outage.failed(self._sent, cause)
        if outage.degraded:
            scheduler.unanswered()  # to hear whether anybody still wants something
            if scheduler.beyond is None:
                scheduler.beyond = outage.beyond
                self._dispatcher.changed()
        if self._returned is not None:
            self._settle()
        else:
            self._await_end_of_grace()

    def refused(self, cause: BaseException) -> None:
        """The store will not answer until somebody puts it right: everybody in line hears of it, whatever the policy."""
        self._asking = False
        self._scheduler.unanswered()
        self._charged -= self._sent_charge
        self._pause_at, self._rechecks = None, False
        if self._returned is not None:
            self._settle()
        self._restore(self._outage.refused(self._reading()))
        error = EngineUnavailable(f"acquire(): the store refuses: {said(cause)}")
        error.__cause__ = cause
        self._dispatcher.fail(error)
        self._dispatcher.changed()

    def failed(self, error: BaseException) -> None:
        """The task that asks has ended with an error: nobody hangs."""
        self._asking = False
        self._scheduler.unanswered()
        if self._returned is not None:
            self._settle()
        if not self._closed:
            self._dispatcher.fail(error)
            self._dispatcher.changed()

    # How much.

    def _missing(self, reading: int, now: int) -> int:
        """How many slots are missing, if it is time to ask for them."""
        dispatcher, scheduler = self._dispatcher, self._scheduler
        if dispatcher.timeline.held_at is not None:
            return 0
        waiting, first = 0, 0
        for ticket, permits, _ in dispatcher.line:
            if not ticket.cancelled():
                first = first or permits
                waiting += permits
        ready = 0
        if scheduler.in_hand:
            first = first or 1
            if self._enough(first, now):
                return 0
            ready = scheduler.ready(first, now)
        expected = 0
        if self._lease:
            expected = self._expected(reading)
            if not waiting:  # somebody has tried, and not waited
                expected = max(expected, scheduler.refused)
        self._within = -1
        # Of a burst, no more than the loop wakes in time: the rest stays in the store, and is asked for next.
        most = max(_PORTION, first, *[rate.permits_in(max(self._ahead, self._answer_ns)) for rate in scheduler.rates])
        at_once = self._immediate.ask(dispatcher.line, ready, ready + most, not expected) if self._immediate else 0
        if at_once:
            self._within = self._slack
            return max(at_once - ready, 0)
        if waiting >= self._waited and scheduler.spent > self._spent:
            # Since the last question the line got no shorter for what was granted. So it will not before the answer is here.
            expected = max(expected, min(ready - scheduler.ahead(now + self._answer_ns), waiting))
        missing = max(waiting + expected - ready, 0)
        if missing:
            self._waited, self._spent = waiting, scheduler.spent
        return min(missing, most)

    def _expected(self, reading: int) -> int:
        """How many permits the next ``lease`` will take, if use goes on as it did since the last question."""
        used, length = self._scheduler.spent - self._metered, max(reading - self._metered_at, _SHORTEST_NS)
        self._metered, self._metered_at = self._scheduler.spent, reading
        return min(used * self._lease // length, self._scheduler.rate.permits_in(self._lease))

    @property
    def in_grace(self) -> bool:
        """Whether an outage is no change yet."""
        return self._outage.due is not None

    def _probes(self, reading: int) -> bool:
        """Whether the store is asked for nothing but an answer."""
        return self._outage.degraded and reading - self._interest < _INTEREST_NS

    def _measure(self, ns: int) -> None:
        if ns > _LONGEST_NS:
            ns = _LONGEST_NS
        before = self._answer_ns
        self._answer_ns = (3 * before + ns) // 4 if before else max(ns, 1)

    # What changes.

    def _heed_pause(self, answer: Answer, dispatcher: Dispatcher) -> None:
        timeline = dispatcher.timeline
        if answer.paused > 0:
            self._paused_here = True
            ns, until = ceil(answer.paused * _US), timeline.paused_until
            if self._pause_at is None and until is not None and until > timeline.read() + ns:
                timeline.resume()  # a longer one that was ended elsewhere
            timeline.pause(ns, dispatcher.on_pause_end)
        elif self._paused_here and self._pause_at is None:
            self._paused_here = False
            timeline.resume()

    def _on_recheck(self) -> None:
        """Somebody else may have ended the pause."""
        self._recheck = None
        if self._dispatcher.line and self._dispatcher.timeline.paused:
            self._rechecks = True
            self._tell()

    def _await_end_of_grace(self) -> None:
        due = self._outage.due
        if self._timer is None and due is not None and self._booker is not None:
            self._timer = self._booker.loop.call_later(max(due - self._reading(), 0) / NS_PER_SECOND, self._on_grace)

    def _on_grace(self) -> None:
        self._timer = None
        dispatcher = self._dispatcher
        beyond = self._outage.over(self._reading(), self._now())
        if beyond is None:
            self._await_end_of_grace()  # a timer may be early
            return
        self._scheduler.beyond = beyond
        source = f"{self._outage.why}; on_unavailable={self._outage.policy!r}"
        dispatcher.tell(Event("degraded", dispatcher.name, source=source))
        dispatcher.changed()

    def _restore(self, length: int, owed: int = 0) -> None:
        """The store is there again, after ``length`` ns."""
        self._cancel_timer()
        self._scheduler.beyond = None
        if owed:
            self.charged(owed)
        if length:
            self._dispatcher.tell(Event("restored", self._dispatcher.name, seconds=ns_to_seconds(length)))

    def _settle(self) -> None:
        returned, self._returned = self._returned, None
        if returned is not None and not returned.done():
            returned.set_result(None)

    def _cancel_recheck(self) -> None:
        if self._recheck is not None:
            self._recheck.cancel()
            self._recheck = None

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _reading(self) -> int:
        return self._dispatcher.timeline.read()

    def _now(self) -> int:
        return self._dispatcher.timeline.now()


def _us_apart(rate: Rate) -> float:
    return rate.period_ns / (rate.permits * _US)


def _instants(durations: list[float], now: int) -> list[int]:
    """The instants so many us from now, rounded up: nobody is early."""
    return [now + ceil(us * _US) for us in durations]


bookings: WeakSet[Booking] = WeakSet()
"""All that there are in this process."""
