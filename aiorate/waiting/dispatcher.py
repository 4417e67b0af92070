"""The dispatcher decides which requests are granted, and when: ask, serve, grant, resume, leave.

A request is asked for once. It is granted at once, refused, or gets a ticket and joins the line; `Dispatcher.serve` decides about the
line whenever anything changes. All decisions are synchronous. Knows nothing of how a rate is computed (it never multiplies or
divides), of seconds, of the wording of errors, or of what kind of loop runs. One file, longer than others: each of the five steps relies
on the state in which the others leave the line.
"""

from __future__ import annotations

from asyncio import InvalidStateError
from functools import partial
from typing import TYPE_CHECKING

from aiorate.meter import FAR
from aiorate.schedulers.capped import Capped
from aiorate.schedulers.interface import NOBODY_KNOWS
from aiorate.waiting.asking import AskingMeter
from aiorate.waiting.catch_up import CatchUp
from aiorate.waiting.counters import Counters
from aiorate.waiting.deadlines import limit_wait
from aiorate.waiting.extras import NONE, Extras
from aiorate.waiting.fair_line import FairLine
from aiorate.waiting.granting import grant
from aiorate.waiting.line import outcome_of
from aiorate.waiting.loops import running_loop
from aiorate.waiting.moving import find_loop, waiters_here
from aiorate.waiting.notices import Notices
from aiorate.waiting.questions import admit, is_closed
from aiorate.waiting.receipts import drop, give_back, keep
from aiorate.waiting.refusals import ACQUIRE
from aiorate.waiting.timeline import NOT_ASKED, Timeline
from aiorate.waiting.turnstile import LOOP_CHECK_NS
from aiorate.waiting.waiters import NOBODY, Waiters
from aiorate.waiting.watcher import UNWATCHED

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from aiorate.meter import Meter
    from aiorate.schedulers.interface import Scheduler
    from aiorate.waiting.clock import Clock
    from aiorate.waiting.fair_line import AnyLine
    from aiorate.waiting.gate import Gate
    from aiorate.waiting.line import Noted, Outcome, Request, Ticket
    from aiorate.waiting.max_waiting import Admission
    from aiorate.waiting.passes import Passes
    from aiorate.waiting.process.section import Section
    from aiorate.waiting.refusals import Refusals
    from aiorate.waiting.view import EventLoop
    from aiorate.waiting.watcher import Watcher

    P = ParamSpec("P")
    T = TypeVar("T")

    Answer = tuple[Ticket | None, int, int]

__all__ = ["TURN", "Dispatcher"]


class _Turn:
    """The ticket of all requests that were refused in a starved loop: they are asked for again once it has turned."""

    def done(self) -> bool:
        return True

    def cancelled(self) -> bool:
        return False

    def result(self) -> Outcome:
        raise InvalidStateError

    def set_result(self, outcome: Outcome, /) -> None:
        """Never called."""


TURN = _Turn()


class Dispatcher:
    """One scheduler, and the requests for it."""

    __slots__ = (
        "__weakref__",
        "catch_up",
        "closed",
        "counters",
        "extras",
        "gate",
        "loop",
        "meter",
        "notices",
        "passes",
        "scheduler",
        "taken",
        "timeline",
        "waiters",
        "watcher",
    )

    def __init__(self, scheduler: Scheduler, catch_up: int, precise: bool, clock: Clock | None, name: str | None) -> None:
        scheduler.claim("a limiter" if name is None else f"the limiter {name!r}")
        scheduler.receipts = False
        self.scheduler: Scheduler = scheduler
        self.catch_up: CatchUp = CatchUp(catch_up)
        self.notices: Notices = Notices(name)
        self.watcher: Watcher = UNWATCHED
        """Told of pauses and of the event loop."""
        self.timeline: Timeline = Timeline(clock)
        own = scheduler.meter
        self.meter: Meter = AskingMeter(scheduler) if own is None else own
        """The shortest way to a permit that lies ready.

        It is open while there is no line, pause, close, shared limit or quota of a server, and the loop was seen to run its other tasks.
        """
        self.taken: int = 0
        """Permits granted otherwise than by the meter."""
        self.counters: Counters = Counters()
        self.closed: bool = False
        self.loop: EventLoop | None = None
        """The loop of its callers; None: not used in a loop yet."""
        self.waiters: Waiters = NOBODY
        """The requests that wait in that loop."""
        self.gate: Gate | None = None
        """The way to a limit that other lines share; None: there is none."""
        self.passes: Passes | None = None
        """Requests of other lines, if others share this limit."""
        self.extras: Extras = NONE if clock is None and not precise else Extras(clock, precise)

    # Ask.

    def ask(self, permits: int, limit: int | None = None, most: Admission | None = None, refusals: Refusals = ACQUIRE) -> Answer:
        """As `decide`; where many threads ask, one at a time."""
        loop = self.loop
        if loop is None or loop.section is None:
            return self.decide(permits, limit, most, refusals)
        return loop.section.run(self.decide, permits, limit, most, refusals)

    def decide(
        self,
        permits: int,
        limit: int | None = None,
        most: Admission | None = None,
        refusals: Refusals = ACQUIRE,
        since: int | None = None,
        noted: list[Noted] | None = None,
        turned: bool = False,
    ) -> Answer:
        """Take the permits, or put the request in line for at most ``limit`` ns; raises the error if it may not wait there.

        Returns no ticket, the instant for which the request is scheduled, and its receipt, if it is granted at once; otherwise a ticket
        for `wait`, `NOT_ASKED`, and the clock's reading. In a starved loop, unless it has just ``turned``, grants and refusals come with
        a ticket too: the caller lets the loop turn before it goes on, and a refused request is asked for again. ``noted`` gets the
        ticket before the line does, or the grant, for a caller that may be interrupted.
        """
        loop = self.loop
        behind = self.waiters.head is not None and limit is None and most is None and self.gate is None and not self.closed
        if behind and loop is not None and loop.section is None:  # there is nothing else to ask
            now = self.timeline.now()
            return self.join(permits, NOT_ASKED, now, now if since is None else since)
        try:
            at, now = self.take(permits, since)
            loop = self.loop
            if at > now:
                if loop is not None and loop.section is not None and loop.clear_closed():
                    at, now = self.take(permits, since)
                if at > now and (limit is not None or most is not None or is_closed(self)):
                    if not turned and loop is not None and loop.starved():
                        return TURN, NOT_ASKED, 0
                    admit(self, permits, now, limit, most, refusals)
        except Exception:
            if turned or self.loop is None or not self.loop.starved():
                raise
            return TURN, NOT_ASKED, 0
        if at <= now:
            if turned or loop is None or now + self.timeline.offset < loop.check_after or not loop.starved():
                if noted is not None:
                    noted.append((at, now, now))
                return None, at, now
            keep(self)
            reading = self.timeline.read()
            waiters = waiters_here(self, noted)
            ticket = waiters.driver.ticket(permits)
            ticket.set_result((at, now, reading))
            waiters.resuming += 1
            return ticket, at, reading
        return self.join(permits, at, now, now if since is None else since, limit, refusals, noted)

    def take(self, permits: int, since: int | None = None, late: int = 0) -> tuple[int, int]:
        """Take the permits if nobody is in line, the limiter is open and not paused, and they are due.

        Returns the instant for which the request is scheduled, as `Scheduler.take` does, and the instant now, which is its receipt if
        it is granted. The first is `NOT_ASKED` if the scheduler was not asked. The first of another line may come ``late`` ns late, of
        which ``catch_up`` counts here.
        """
        timeline = self.timeline
        now = timeline.read() - timeline.offset if timeline.held_at is None else timeline.now()
        until = self.meter.until
        if until and now < until and self.catch_up.late is None and not late:
            at = self.scheduler.take(permits, now, since)
            if at <= now:
                self.taken += permits
            return at, now
        loop = self.loop
        if loop is None or not loop.monotonic:
            find_loop(self)
            if self.loop is not loop:
                loop, now = self.loop, timeline.now()  # by another clock
        elif now + timeline.offset >= loop.check_after and loop.section is None:
            find_loop(self)
            loop = self.loop
            if loop is not None:
                loop.starved()  # so that the meter is open for as long as that is known
        if self.waiters.head is not None or self.closed or timeline.held_at is not None:
            find_loop(self)  # a line of another loop, or of the process before a fork, does not count
            if self.waiters.head is not None or self.closed or timeline.held_at is not None:
                return NOT_ASKED, now
        if late:
            since = now - min(late, self.catch_up.limit)
        elif since is None and self.catch_up.late is not None:
            since = self.catch_up.since(now, self.waiters.resuming)
        if self.gate is None:
            at, receipt = self.scheduler.take(permits, now, since), now
        else:
            at, receipt = self.gate.take(self, permits, now, since, late)
        if at <= now:
            self.taken += permits
        elif at != NOT_ASKED:
            self.catch_up.late = None
        if loop is None or loop.section is None:  # else it is shut for good
            self.open_meter(now)
        return at, receipt

    def join(
        self,
        permits: int,
        at: int,
        now: int,
        since: int,
        limit: int | None = None,
        refusals: Refusals = ACQUIRE,
        noted: list[Noted] | None = None,
    ) -> tuple[Ticket, int, int]:
        """Put a request in line that was refused until ``at``. Returns as `decide` does."""
        waiters = self.waiters
        if waiters is NOBODY or running_loop() is not waiters.loop.native or noted is not None:
            waiters = waiters_here(self, noted)
        ticket = waiters.driver.ticket(permits)
        if noted is not None:
            noted.append(ticket)
        self.stand(ticket, permits, at, since)
        asked = now
        if self.timeline.held_at is not None:
            asked = self.timeline.read()
        elif self.timeline.offset:
            asked = now + self.timeline.offset  # else not another number for each of 100 000 waiters
        if limit is not None:
            limit_wait(self, ticket, permits, asked, limit, refusals)
        return ticket, NOT_ASKED, asked

    def stand(self, ticket: Ticket, permits: int, at: int, since: int) -> None:
        """Put a ticket in line that was refused until ``at``: that of a task, or that of the first of another line."""
        if self.waiters is NOBODY and self.loop is not None:  # the first of another line comes in a loop that stands still, too
            self.waiters = Waiters.of(self, self.loop)
        waiters = self.waiters
        comes_first = waiters.line.join(ticket, permits, since)
        if waiters.head is None:
            self.meter.until = self.meter.try_until = 0
            if at == NOT_ASKED:
                self.serve()
            else:
                self._await_head(ticket, at)
        elif comes_first and not waiters.granting:
            self.serve()

    # Wait, resume, leave.

    async def wait(
        self,
        ticket: Ticket,
        permits: int,
        asked: int,
        limit: int | None = None,
        most: Admission | None = None,
        refusals: Refusals = ACQUIRE,
        since: int | None = None,
    ) -> tuple[int, int, int]:
        """Wait until the ticket of `ask`, whose arguments these are, is decided and the loop has turned. Returns what `resume` does.

        Cancelled meanwhile, the request is undone. `aiorate.Limiter.acquire` has these lines too: a coroutine in between would cost
        each of 100 000 waiters 220 bytes and a twentieth of the time.
        """
        if ticket is TURN:
            assert self.loop is not None  # it is starved
            await self.loop.turn()
            again, at, now = self.run(self.decide, permits, limit, most, refusals, since, None, True)
            if again is None:
                return 0, at, now
            ticket, asked = again, asked or now
        waiters, decided = self.waiters, ticket.done()
        try:
            while not ticket.done():
                await waiters.driver.wait(ticket)
            # Of tasks that resume in one iteration, only the last may be sure that another follows.
            if (decided or waiters.resuming > 1) and waiters.loop.starved():
                await waiters.loop.turn()
        except BaseException:
            self.leave(waiters, ticket, permits)
            raise
        return self.resume(waiters, ticket, asked, permits, refusals)

    def resume(
        self, waiters: Waiters, ticket: Ticket, asked: int, permits: int, refusals: Refusals = ACQUIRE, inside: bool = False
    ) -> tuple[int, int, int]:
        """Go on with a decided request, which was asked for when the clock read ``asked``, or raise its error.

        Returns the nanoseconds waited, the instant for which the request was scheduled, and its receipt. ``inside``: in the critical
        section, if there is one, and nobody is told.
        """
        section = waiters.loop.section
        if not inside:
            watch = self.extras.watch
            if watch is not None:
                return watch.resume(self, waiters, ticket, asked, permits, refusals)
            if section is not None:
                return section.run(self.resume, waiters, ticket, asked, permits, refusals, True)
        if section is not None:
            waiters.driver.release(ticket)
        outcome = ticket.result()
        if isinstance(outcome, BaseException):
            raise outcome
        at, receipt, reading = outcome
        drop(self, receipt, waiters)
        waited = reading - asked
        if waited <= 0:
            return 0, at, receipt
        self.counters.note(waited)
        return waited, at, receipt

    def leave(self, waiters: Waiters, ticket: Ticket, permits: int) -> None:
        """Undo a request whose task was cancelled, in line or granted but not yet resumed. Never raises, and never waits."""
        if self.section is None:
            self.leave_once(waiters, ticket, permits)
        else:
            self.post(partial(self.leave_once, waiters, ticket, permits))

    def leave_once(self, waiters: Waiters, ticket: Ticket, permits: int) -> None:
        """As `leave`, inside the critical section. Does nothing if the task has gone on or left before."""
        if waiters.driver.release(ticket):
            outcome = outcome_of(ticket)
            if outcome is None:
                self.counters.cancelled += 1
                if waiters is self.waiters:
                    waiters.driver.leave(ticket)
            self.withdraw(waiters, ticket, permits, outcome)

    def withdraw(self, waiters: Waiters, ticket: Ticket, permits: int, outcome: Outcome | None) -> None:
        """Remove a request from the line, or give its grant back. The next in line moves up at once."""
        if outcome is not None:
            if not isinstance(outcome, BaseException):
                give_back(self, permits, outcome[1], waiters)
        elif waiters is self.waiters:  # else they were those of another loop
            waiters.leave(ticket, permits)
            waiters.interrupted = waiters.granting  # by a finalizer, or by a line that was served
            self.serve_unless_first()

    def serve_unless_first(self) -> None:
        """Serve the line if its first request is not the one for which the driver is armed."""
        first = self.waiters.line.first()
        if first is None or first[0] is not self.waiters.head:
            self.serve_if_alive()

    # Serve.

    def serve(self, again: bool = False) -> None:
        """Grant all that is due, in order, and arm the driver for the next.

        If that fails, everybody in line gets the error; where many threads ask, only if it fails ``again``, since the error may be a
        signal handler's.
        """
        timeline, waiters = self.timeline, self.waiters
        request: Request | None = None
        try:
            now = timeline.now()
            request = waiters.line.first()
            if self.gate is not None and (request is None or timeline.held_at is not None):
                self.gate.withdraw()
            if timeline.held_at is not None:
                waiters.due = None
                if request is not None:
                    self.watcher.held_up()
            elif waiters.granting:  # a finalizer's, in the middle of a decision
                waiters.interrupted = True
                return
            elif request is not None:
                request = grant(self, request, now)
                while waiters.interrupted:
                    waiters.interrupted = False
                    request = grant(self, waiters.line.first(), now)
        except Exception as error:
            if again or not self.cut():
                waiters.fail(error)
                if self.gate is not None:
                    self.gate.withdraw()
            request = None
        if request is not None:
            self._await_head(request[0], waiters.due, again)
        elif waiters is not NOBODY:
            waiters.head = None
            waiters.driver.arm(None)
        if waiters.head is None:
            self.open_meter()
        if waiters.deadlines is not None:
            waiters.deadlines.aim(len(waiters.line))
        if self.passes is not None:  # only now that everything here is in order again
            self.passes.serve()
            if isinstance(waiters.line, FairLine) and not waiters.line:
                waiters.line.forget()

    def _await_head(self, ticket: Ticket, due: int | None, again: bool = False) -> None:
        """Have the driver look when that ticket, the first in line, is due; during a pause, when time goes on."""
        waiters, timeline = self.waiters, self.timeline
        waiters.head, waiters.due = ticket, None if due is None or due >= NOBODY_KNOWS else due
        try:
            if waiters.due is None:
                waiters.driver.arm(None if timeline.stopped else timeline.paused_until)
            elif timeline.held_at is None:
                waiters.driver.arm(waiters.due + timeline.offset)
            else:
                waiters.driver.arm(timeline.reading_at(waiters.due))
        except Exception as error:  # a broken clock
            if again or not self.cut():
                waiters.driver.arm(None)
                self.fail(error)

    def serve_if_alive(self) -> None:
        """`serve`, unless the loop is closed, where nobody can be woken."""
        if self.loop is not None and not self.loop.closed:
            self.serve()

    def fail(self, error: BaseException) -> None:
        """Fail every request in line: nobody hangs, and the limiter works on."""
        self.waiters.fail(error)
        if self.gate is not None:
            self.gate.withdraw()
        self.open_meter()
        if self.passes is not None:  # only now that everything here is in order again
            self.passes.serve()

    @property
    def section(self) -> Section | None:
        """The critical section, if callers of several loops and threads may ask."""
        return None if self.loop is None else self.loop.section

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function that decides; where many threads ask, one at a time."""
        section = self.section
        return call(*args, **options) if section is None else section.run(call, *args, **options)

    def post(self, call: Callable[[], object]) -> None:
        """Call a function that decides, and never wait: where many threads ask, the thread inside may call it. So finalizers may use it."""
        section = self.section
        if section is None:
            call()
        else:
            section.post(call)

    def cut(self) -> bool:
        """A decision failed where many threads ask, so that `go_on` comes next; False: one loop asks, where no signal interrupts."""
        section = self.section
        if section is not None:
            section.cut()
        return section is not None

    # Looking and changing.

    @property
    def line(self) -> AnyLine:
        """The requests that wait."""
        return self.waiters.line

    @property
    def strategy(self) -> Scheduler:
        """The scheduler, without what a server said."""
        scheduler = self.scheduler
        return scheduler.inner if type(scheduler) is Capped else scheduler  # isinstance() is slow for classes with an ABC as their base

    @property
    def is_held(self) -> bool:
        """Whether no newcomer is granted now, whatever the scheduler says."""
        return self.waiters.head is not None or self.closed or self.timeline.held_at is not None

    def look(self) -> int:
        """Grant all that is due; returns the instant."""
        find_loop(self)
        if self.loop is not None and self.loop.section is not None:
            self.loop.clear_closed()
        now = self.timeline.now()
        waiters = self.waiters
        if waiters.line and (waiters.due is None or waiters.due <= now):
            self.serve()
        self.open_meter(now)
        return now

    def changed(self) -> None:
        """Something changed for those in line too: the rate, what lies ready, or whether time passes."""
        self.catch_up.late = None
        self.serve()

    @property
    def granted(self) -> int:
        """Permits granted in all."""
        return self.taken + self.meter.grabs

    def open_meter(self, now: int | None = None) -> None:
        """Open or shut the meter, after anything that matters to it; for callers that only try, too, if it is ``now`` known who calls."""
        meter, timeline, loop = self.meter, self.timeline, self.loop
        if type(self.scheduler) is Capped and timeline.held_at is None and self.scheduler.ended(timeline.now()):
            self.scheduler = self.scheduler.inner
        meter.until = meter.try_until = 0
        if loop is None or not loop.steady or timeline.held_at is not None or self.waiters.head is not None:
            return
        if not -FAR < timeline.offset < FAR:  # as after a loop in virtual time: more than the compiled meter holds
            return
        if not self.closed and self.gate is None and type(self.scheduler) is not Capped:
            meter.read, meter.offset, meter.since = timeline.read, timeline.offset, FAR
            until = loop.check_after - timeline.offset
            meter.until = until if until < FAR else FAR
            if now is not None:
                meter.try_until = now + LOOP_CHECK_NS
            if self.catch_up.late is not None:
                meter.since, meter.until = self.catch_up.span(meter.until)
                meter.try_until = min(meter.try_until, meter.until)
