"""The dispatcher decides which requests are granted, and when: ask, serve, grant, resume, leave.

A request is asked for once. It is granted at once, refused, or gets a ticket and joins the line; `Dispatcher.serve` decides about the
line whenever anything changes. All decisions are synchronous. Knows nothing of how a rate is computed (it never multiplies or
divides), of seconds, of the wording of errors, or of what kind of loop runs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate.schedulers.capped import Capped
from aiorate.schedulers.interface import NOBODY_KNOWS
from aiorate.waiting.batch import Batch
from aiorate.waiting.counters import Counters
from aiorate.waiting.deadlines import Deadlines
from aiorate.waiting.line import outcome_of
from aiorate.waiting.loops import running_loop, view_of
from aiorate.waiting.notices import Notices
from aiorate.waiting.questions import estimate
from aiorate.waiting.refusals import ACQUIRE
from aiorate.waiting.timeline import Timeline
from aiorate.waiting.turnstile import MOST
from aiorate.waiting.waiters import NOBODY, Waiters
from aiorate.waiting.watcher import UNWATCHED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import ParamSpec, Protocol, TypeVar

    from aiorate.events import Event
    from aiorate.schedulers.interface import Scheduler
    from aiorate.waiting.clock import Clock, ReadClock
    from aiorate.waiting.deadlines import Overdue
    from aiorate.waiting.gate import Gate, Passes, Receipt
    from aiorate.waiting.line import Line, Outcome, Request, Ticket
    from aiorate.waiting.process.section import Section
    from aiorate.waiting.refusals import Refusals
    from aiorate.waiting.view import EventLoop
    from aiorate.waiting.watcher import Watcher

    P = ParamSpec("P")
    T = TypeVar("T")

    Answer = tuple[Ticket | None, int, int]

    class Admission(Protocol):
        """What a request has to pass before it may wait."""

        def check(self, permits: int, refusals: Refusals) -> None:
            """Raise its error if it may not."""
            ...


__all__ = ["NOT_ASKED", "Dispatcher"]

NOT_ASKED = 1 << 200  # in place of an instant: the scheduler was not asked, because of a line, a pause, a stop or a close
_SAME_WAKE_UP_NS = 1_500_000  # the average distance of two wake-ups
_ESTIMATED = 32  # requests that time out in one wake-up whose errors say how long each would have waited
_IN_USE = (
    "this limiter is in use by another running event loop, and its scope is one loop. For one limit in several loops and threads, make it"
    " with scope='process' (two limiters would allow twice as much), or call this one in its own loop through"
    " asyncio.run_coroutine_threadsafe(), which is the way for a KeyedLimiter and a Budget."
)


class _AskAgain(Exception):
    """The outcome of a request that was refused in a starved loop."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        super().__init__()
        self.ask: Callable[[], Answer] = ask


class Dispatcher:
    """One scheduler, and the requests for it."""

    __slots__ = (
        "__weakref__",
        "_late",
        "_made_for",
        "batch",
        "catch_up",
        "closed",
        "counters",
        "fast_until",
        "gate",
        "granted",
        "loop",
        "notices",
        "now",
        "passes",
        "returnable",
        "scheduler",
        "timeline",
        "waiters",
        "watcher",
    )

    def __init__(self, scheduler: Scheduler, catch_up: int, precise: bool, clock: Clock | None, name: str | None) -> None:
        scheduler.claim("a limiter" if name is None else f"the limiter {name!r}")
        scheduler.receipts = False
        self.scheduler: Scheduler = scheduler
        self.catch_up: int = catch_up
        """How many ns a late event loop may make up for."""
        self.notices: Notices = Notices(name)
        self.watcher: Watcher = UNWATCHED
        """Told of pauses and of the event loop."""
        self.timeline: Timeline = Timeline(clock)
        self.now: ReadClock = self.timeline.read
        """The shortest way to the instant, while nothing is held up."""
        self.fast_until: int = 0
        """Before that instant a request may go straight to the scheduler.

        No line, no pause, no batch, no late wake-up to make up for; not closed; and the loop was seen to run its other tasks.
        """
        self.granted: int = 0
        """Permits, in all."""
        self.batch: Batch = Batch(scheduler)
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
        self.returnable: int = 0
        """Grants that may still come back by receipt."""
        self._made_for = (clock, precise)
        self._late: tuple[int, int] | None = None  # of a late wake-up: the instant up to which it served the schedule, and its own

    # Ask.

    def ask(self, permits: int, limit: int | None = None, most: Admission | None = None, refusals: Refusals = ACQUIRE) -> Answer:
        """As `decide`; where many threads ask, one at a time."""
        section = self.section
        if section is None:
            return self.decide(permits, limit, most, refusals)
        return section.run(self.decide, permits, limit, most, refusals)

    def decide(
        self,
        permits: int,
        limit: int | None = None,
        most: Admission | None = None,
        refusals: Refusals = ACQUIRE,
        since: int | None = None,
        noted: list[Ticket] | None = None,
        turned: bool = False,
    ) -> Answer:
        """Take the permits, or put the request in line for at most ``limit`` ns; raises the error if it may not wait there.

        Returns no ticket, the instant for which the request is scheduled, and its receipt, if it is granted at once; otherwise a ticket
        for `wait`, `NOT_ASKED`, and the clock's reading. In a starved loop, unless it has just ``turned``, grants and refusals come with
        a ticket too: the caller lets the loop turn before it goes on, and a refused request is asked for again. ``noted`` gets the
        ticket before the line does, for a caller that may be interrupted.
        """
        try:
            at, now = self.take(permits, since, limit is None and most is None)
            if at > now and self.clear_closed():
                at, now = self.take(permits, since)
            if at > now and (limit is not None or most is not None or self.is_closed):
                self._admit(permits, now, limit, most, refusals)
        except Exception:
            if turned or self.loop is None or not self.loop.starved():
                raise
            again = partial(self.decide, permits, limit, most, refusals, since, turned=True)
            return self._decided(_AskAgain(again), noted), NOT_ASKED, self.timeline.read()
        if at <= now:
            loop = self.loop
            if turned or loop is None or now + self.timeline.offset < loop.check_after or not loop.starved():
                return None, at, now
            self.keep_receipt()
            reading = self.timeline.read()
            ticket = self._decided((at, now, reading), noted)
            self.waiters.resuming += 1
            return ticket, at, reading
        return self.join(permits, at, now, now if since is None else since, limit, refusals, noted)

    def take(self, permits: int, since: int | None = None, patient: bool = False, late: int = 0) -> tuple[int, int]:
        """Take the permits if nobody is in line, the limiter is open and not paused, and they are due.

        Returns the instant for which the request is scheduled, as `Scheduler.take` does, and the instant now, which is its receipt if
        it is granted. The first is `NOT_ASKED` if the scheduler was not asked. A patient caller, which would wait in line without a
        limit, may be refused a permit that has just fallen due. The first of another line may come ``late`` ns late, of which
        ``catch_up`` counts here.
        """
        timeline, loop = self.timeline, self.loop
        if loop is None or not loop.monotonic:
            self.find_loop()
            loop = self.loop
        now = self.now() if timeline.held_at is None else timeline.now()
        if loop is not None and loop.section is None and now + timeline.offset >= loop.check_after:
            self.find_loop()
            loop = self.loop
            if loop is not None:
                loop.starved()  # has the view look, for decide() and the fast path
        if self.is_held:
            self.find_loop()  # a line of another loop, or of the process before a fork, does not count
            if self.is_held:
                return NOT_ASKED, now
        if self.batch.opened:
            self.settle(now)
        if patient and self.batch.outstayed(now) and loop is not None and not loop.manual:
            return now + 1, now
        if late:
            since = now - min(late, self.catch_up)
        elif since is None and self._late is not None:
            since = self._made_up_from(now)
        receipt = now
        if self.gate is None:
            at = self.scheduler.take(permits, now, since)
        else:
            at = self.scheduler.peek(permits, now)
            if at <= now:
                shared = self.gate.ask(permits, now, late)
                if shared is None:
                    return NOT_ASKED, now
                at, receipt = self._take_both(self.gate, shared, permits, now, since), shared
        if at > now:
            self._late = None
        else:
            self.granted += permits
            if self.batch.worthwhile and self.gate is None and loop is not None and loop.section is None:
                self._open_batch(now)
        self.update_fast_path()
        return at, receipt

    def _take_both(self, gate: Gate, receipt: Receipt, permits: int, now: int, since: int | None) -> int:
        """Take what is due here, after the shared limit was taken from; from neither if a strategy fails."""
        at = NOT_ASKED
        try:
            at = self.scheduler.take(permits, now, since)
        finally:
            if at > now:
                gate.keep_receipt()
                gate.give_back(permits, receipt)
        return at

    def _admit(self, permits: int, now: int, limit: int | None, most: Admission | None, refusals: Refusals) -> None:
        """Raise the error of a request that may not wait in line."""
        if self.is_closed:
            raise refusals.closed(self)
        if most is not None:
            most.check(permits, refusals)
        if limit is not None:
            wait = estimate(self, permits, now)
            if wait is None or wait > limit:
                if not limit and self.shares_on_demand:
                    raise refusals.no_lease()
                self.counters.refused += 1
                raise refusals.too_long(permits, limit, wait, self, now)

    def join(
        self,
        permits: int,
        at: int,
        now: int,
        since: int,
        limit: int | None = None,
        refusals: Refusals = ACQUIRE,
        noted: list[Ticket] | None = None,
    ) -> tuple[Ticket, int, int]:
        """Put a request in line that was refused until ``at``. Returns as `decide` does."""
        waiters = self._waiters_here(noted)
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
            self._limit_wait(ticket, permits, asked, limit, refusals)
        return ticket, NOT_ASKED, asked

    def stand(self, ticket: Ticket, permits: int, at: int, since: int) -> None:
        """Put a ticket in line that was refused until ``at``: that of a task, or that of the first of another line."""
        waiters = self._waiters_here() if self.waiters is NOBODY else self.waiters
        waiters.line.join(ticket, permits, since)
        if waiters.estimate.kept:
            waiters.estimate.joined(permits, since, self.catch_up)
        if waiters.head is None:
            self.fast_until = 0
            if at == NOT_ASKED:
                self.serve()
            else:
                self._await_head(ticket, at)

    def _waiters_here(self, noted: list[Ticket] | None = None) -> Waiters:
        """Those of the running loop. Raises RuntimeError without one, unless ``noted`` says that a thread waits."""
        native = running_loop()
        if self.loop is None or native is not self.loop.native:
            self.find_loop()
        if self.loop is None or (native is None and noted is None):
            instead = "try_acquire() and delay() work without one." if self.section is None else "acquire_blocking() waits without one."
            raise RuntimeError(f"acquire() can only wait in a running event loop; {instead}")
        if self.waiters is NOBODY:
            self.waiters = Waiters.of(self, self.loop)
        return self.waiters

    def _decided(self, outcome: Outcome, noted: list[Ticket] | None) -> Ticket:
        """A ticket of a request that never was in line."""
        ticket = self._waiters_here(noted).driver.ticket(1)
        ticket.set_result(outcome)
        return ticket

    # Wait, resume, leave.

    async def wait(self, ticket: Ticket, permits: int, asked: int) -> tuple[int, int, int]:
        """Wait until the ticket is decided and the loop has turned; returns what `resume` does.

        Cancelled meanwhile, the request is undone. `aiorate.Limiter.acquire` has these lines too: a coroutine in between would cost
        each of 100 000 waiters 220 bytes and a twentieth of the time.
        """
        waiters = self.waiters
        try:
            while not ticket.done():
                await waiters.driver.wait(ticket)
            if waiters.loop.starved():
                await waiters.loop.turn()
        except BaseException:
            self.leave(waiters, ticket, permits)
            raise
        try:
            return self.resume(waiters, ticket, asked)
        except _AskAgain as refused:
            ask = refused.ask
        again, at, receipt = self.run(ask)
        return (0, at, receipt) if again is None else await self.wait(again, permits, asked)

    def resume(self, waiters: Waiters, ticket: Ticket, asked: int) -> tuple[int, int, int]:
        """Go on with a decided request, which was asked for when the clock read ``asked``, or raise its error.

        Returns the nanoseconds waited, the instant for which the request was scheduled, and its receipt.
        """
        section = self.section
        if section is not None:
            return section.run(self._resume_once, waiters, ticket, asked)
        return self._resume(waiters, ticket, asked)

    def _resume_once(self, waiters: Waiters, ticket: Ticket, asked: int) -> tuple[int, int, int]:
        waiters.driver.release(ticket)
        return self._resume(waiters, ticket, asked)

    def _resume(self, waiters: Waiters, ticket: Ticket, asked: int) -> tuple[int, int, int]:
        outcome = ticket.result()
        if isinstance(outcome, BaseException):
            raise outcome
        at, receipt, reading = outcome
        self.drop_receipt(receipt, waiters)
        waited = reading - asked
        if waited <= 0:
            return 0, at, receipt
        self.counters.note(waited)
        return waited, at, receipt

    def leave(self, waiters: Waiters, ticket: Ticket, permits: int) -> None:
        """Undo a request whose task was cancelled, in line or granted but not yet resumed. Never raises, and never waits."""
        section = self.section
        if section is not None:
            section.post(partial(self.leave_once, waiters, ticket, permits))
        else:
            self._leave(waiters, ticket, permits)

    def leave_once(self, waiters: Waiters, ticket: Ticket, permits: int) -> None:
        """As `leave`, in the critical section, unless the task has gone on or left before."""
        if waiters.driver.release(ticket):
            self._leave(waiters, ticket, permits)

    def _leave(self, waiters: Waiters, ticket: Ticket, permits: int) -> None:
        outcome = outcome_of(ticket)
        if outcome is None:
            self.counters.cancelled += 1
            if waiters is self.waiters:
                waiters.driver.leave(ticket)
        self._withdraw(waiters, ticket, permits, outcome)

    def withdraw(self, waiters: Waiters, ticket: Ticket, permits: int) -> None:
        """As `leave`, for the first of another line, of which no driver knows. The next in line moves up at once."""
        self._withdraw(waiters, ticket, permits, outcome_of(ticket))

    def _withdraw(self, waiters: Waiters, ticket: Ticket, permits: int, outcome: Outcome | None) -> None:
        if outcome is not None:
            if not isinstance(outcome, BaseException):
                self.give_back(permits, outcome[1], waiters=waiters)
        elif waiters is self.waiters:  # else they were those of another loop
            waiters.leave(ticket, permits)
            self._serve_unless_first()

    def _serve_unless_first(self) -> None:
        """Serve the line if its first request is not the one for which the driver is armed."""
        first = self.waiters.line.first()
        if first is None or first[0] is not self.waiters.head:
            self.serve_if_alive()

    # Receipts: each of these reaches every limit that the grant took from.

    def keep_receipt(self) -> None:
        """Have the scheduler record takes: one more grant may still come back."""
        self.returnable += 1
        self.scheduler.receipts = True
        if self.gate is not None:
            self.gate.keep_receipt()

    def drop_receipt(self, receipt: int | None = None, waiters: Waiters | None = None) -> None:
        """One grant stands: that of a task that waited with ``waiters``, or one that `keep_receipt` announced. The last stops recording."""
        self._forget_grant(waiters)
        if self.gate is not None:
            self.gate.drop_receipt(receipt)

    def give_back(self, permits: int, receipt: int, waiters: Waiters | None = None, whole: bool = True) -> None:
        """Take back permits by receipt: the whole grant, of a request that is undone, or a part. The next in line moves up at once.

        ``waiters`` is as in `drop_receipt`. A grant in the line of an earlier event loop stays spent.
        """
        if self.batch.opened:
            self.settle(self.timeline.now())
        if waiters is None or waiters is self.waiters:
            self._credit(permits, receipt)
        if whole:
            self.counters.cancelled += 1
            self._forget_grant(waiters)
        if self.gate is not None:
            self.gate.give_back(permits, receipt, whole)
        self.waiters.estimate.departed()
        self.serve_if_alive()

    def _credit(self, permits: int, receipt: int) -> None:
        if self.counters.since is None or receipt > self.counters.since:  # else it is of the schedule before a reset
            self.counters.given_back += permits
            self.scheduler.give_back(permits, self.timeline.now(), int(receipt))

    def _forget_grant(self, waiters: Waiters | None) -> None:
        if waiters is not None:
            if waiters is not self.waiters:  # of a loop that is gone, with which it was forgotten
                return
            waiters.resuming -= 1
        if self.returnable:
            self.returnable -= 1
        if not self.returnable:
            self.scheduler.receipts = False

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
            elif request is not None:
                request = self._grant(request, now)
        except Exception as error:
            if again or not self._cut():
                self._fail(error)
            request = None
        if request is not None:
            self._await_head(request[0], waiters.due, again)
        elif waiters is not NOBODY:
            waiters.head = None
            waiters.estimate.emptied()
            waiters.driver.arm(None)
        if waiters.head is None:
            self.update_fast_path()
        if waiters.deadlines is not None:
            waiters.deadlines.aim(len(waiters.line))
        self._serve_passes()

    def _grant(self, request: Request | None, now: int) -> Request | None:
        """Grant what is due, from that request on. Returns the next one, which is due at ``waiters.due``, or None."""
        waiters, scheduler, gate, loop = self.waiters, self.scheduler, self.gate, self.loop
        line, earliest, reading = waiters.line, now - self.catch_up, now + self.timeline.offset
        due = now if waiters.due is None else waiters.due
        spilled = scheduler.spilled if due < earliest else None  # too late to make up for all
        behind = min(max(now - due, 0), self.catch_up)
        room = MOST if loop is None or loop.manual else loop.room(waiters.resuming)
        woken, receipt, served = 0, now, now
        passed: Receipt | None = None  # granted by the shared limit, and not granted here yet
        permits = 0
        try:
            while request is not None:
                ticket, permits, since = request
                if woken >= room and loop is not None and not loop.manual:
                    waiters.due = now  # that is, as soon as the loop has turned
                    break
                if self.passes is not None:
                    self.passes.late = behind
                stood = False
                if gate is not None:
                    answer = self._pass(gate, request, now, behind)
                    if answer is None:
                        break
                    if isinstance(answer, BaseException):
                        ticket.set_result(answer)
                        request = line.pop_first()
                        continue
                    receipt = passed = answer
                    stood = answer.waiters is not None
                    if stood:  # no catch-up for time spent behind other lines, only for a late wake-up
                        since = now - answer.late
                        if self.passes is not None:
                            self.passes.late = min(answer.late, self.catch_up)
                at = scheduler.take(permits, now, since if since > earliest else earliest)
                if at > now:
                    waiters.due = at
                    break
                if not woken:
                    scheduler.receipts = True
                woken += 1
                self.granted += permits
                ticket.set_result((at, receipt, reading))
                passed = None
                served = max(at, since) if stood else at
                request = line.pop_first()
            else:
                waiters.due = None
                if served < now:
                    self._late = served, now
        finally:  # a strategy may fail in the middle
            waiters.resuming += woken
            self.returnable += woken
            if gate is not None and passed is not None:
                gate.give_back(permits, passed)
        if spilled is not None:
            self.skip(scheduler.spilled - spilled)
            waiters.estimate.forget()
        return request

    def _pass(self, gate: Gate, request: Request, now: int, behind: int) -> Receipt | BaseException | None:
        """The shared limit's grant for the first in line, or its error; None: it has to wait, until ``waiters.due`` or in that line."""
        ticket, permits, _ = request
        at = self.scheduler.peek(permits, now)
        if at > now:
            gate.withdraw()
            self.waiters.due = at
            return None
        answer = gate.pass_through(ticket, permits, now, self.on_pass, behind)
        if answer is None:
            self.waiters.due = None
        return answer

    def _await_head(self, ticket: Ticket, due: int | None, again: bool = False) -> None:
        """Have the driver look when that ticket, the first in line, is due; during a pause, when time goes on."""
        waiters, timeline = self.waiters, self.timeline
        if due is not None and due >= NOBODY_KNOWS:
            due = None
        waiters.head, waiters.due = ticket, due
        try:
            if due is None:
                waiters.driver.arm(None if timeline.stopped else timeline.paused_until)
            elif timeline.held_at is None:
                waiters.driver.arm(due + timeline.offset)
            else:
                waiters.driver.arm(timeline.reading_at(due))
        except Exception as error:  # a broken clock
            if again or not self._cut():
                waiters.driver.arm(None)
                self.fail(error)

    def serve_if_alive(self) -> None:
        """`serve`, unless the loop is closed, where nobody can be woken."""
        if self.loop is not None and not self.loop.closed:
            self.serve()

    def on_pass(self) -> None:
        """The first in line was decided by the limit that is shared."""
        self.find_loop()
        self.serve_if_alive()

    def _serve_passes(self) -> None:
        """Serve the lines whose first requests were decided here; only once everything here is in order again."""
        if self.passes is not None:
            self.passes.serve()

    def skip(self, ns: int) -> None:
        """Give up ``ns`` of the schedule, which fell due while somebody waited."""
        counters = self.counters
        permits, counters.unused = self.scheduler.rate.permits_and_rest(ns, counters.unused)
        counters.skipped += permits
        if permits:
            self.notices.skipped(permits, self.loop)

    def fail(self, error: BaseException) -> None:
        """Fail every request in line: nobody hangs, and the limiter works on."""
        self._fail(error)
        self._serve_passes()

    def _fail(self, error: BaseException) -> None:
        waiters = self.waiters
        request = waiters.line.first()
        while request is not None:  # one by one: if this is interrupted, no request is out of the line and undecided
            request[0].set_result(again(error))
            request = waiters.line.pop_first()
        if self.gate is not None:
            self.gate.withdraw()
        if waiters is not NOBODY:
            waiters.head = None
            waiters.estimate.forget()
        self.update_fast_path()

    # Deadlines.

    def _limit_wait(self, ticket: Ticket, permits: int, asked: int, limit: int, refusals: Refusals) -> None:
        waiters = self.waiters
        try:
            if waiters.deadlines is None:
                waiters.deadlines = Deadlines(waiters.loop, self._on_deadline)
            waiters.deadlines.add(ticket, permits, asked, limit, refusals, len(waiters.line))
        except BaseException:  # no timer
            self._leave(waiters, ticket, permits)
            raise

    def _on_deadline(self) -> None:
        """Grant what is due, and fail the requests whose time is over."""
        self.look_from_top()
        waiters = self.waiters
        if waiters.deadlines is None:  # the line is that of another loop
            return
        # As many at most as are woken in one iteration of the loop; the timer is due at once for the others.
        most = len(waiters.line) if waiters.loop.manual else MOST
        self.time_out(waiters.deadlines.overdue(self.timeline.read(), most))
        waiters.deadlines.aim(len(waiters.line))

    def time_out(self, over: Sequence[Overdue]) -> None:
        """Fail undecided requests in line, which wait no longer."""
        for ticket, permits, _, _ in over:
            self.counters.refused += 1
            self.waiters.leave(ticket, permits)
        more: int | None = 0
        for place, (ticket, permits, limit, refusals) in enumerate(over):
            if place < _ESTIMATED:
                more = estimate(self, permits, self.timeline.now())
            ticket.set_result(refusals.overdue(permits, limit, more))
        self._serve_unless_first()

    # The event loop.

    def find_loop(self) -> None:
        """See which event loop runs. On another one the budget stays; requests that wait on the old one fail."""
        native, old = running_loop(), self.loop
        if old is None:
            if native is None:
                self.timeline.begun = True
                return
        elif native is old.native:
            return
        elif old.running:
            raise RuntimeError(_IN_USE)
        elif native is None and not old.closed:
            return
        clock, precise = self._made_for
        self.move_to(None if native is None else view_of(native, clock, precise))
        self._serve_passes()
        if old is not None and self.gate is not None:
            # Or a shared limit would keep a closed loop with its tasks, and these the places that they hold.
            self.gate.shared.look()

    def move_to(self, loop: EventLoop | None) -> None:
        """Serve the callers of that loop from now on."""
        if self.loop is not None:
            self._desert(self.loop)
        self.loop = loop
        if loop is not None and self._made_for[0] is None:
            self.timeline.follow(loop.read)
        self.update_fast_path()

    def _desert(self, old: EventLoop) -> None:
        waiters, self.waiters = self.waiters, NOBODY
        if waiters is not NOBODY:
            waiters.disband()
        if self.gate is not None:
            self.gate.withdraw()
        self.watcher.moved()
        self._late = None
        self.batch.settling = False
        # Grants whose tasks will never go on cannot come back; those that are held may.
        self.returnable = 0 if old.forked else self.returnable - waiters.resuming
        self.scheduler.receipts = self.returnable > 0

    def clear_closed(self) -> bool:
        """Have requests of closed loops leave, where many loops ask; True if there were any."""
        return self.loop is not None and self.loop.clear_closed()

    @property
    def section(self) -> Section | None:
        """The critical section, if callers of several loops and threads may ask."""
        return None if self.loop is None else self.loop.section

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function that decides; where many threads ask, one at a time."""
        section = self.section
        return call(*args, **options) if section is None else section.run(call, *args, **options)

    def go_on(self, resuming: int) -> None:
        """After a decision that a signal handler interrupted: serve. ``resuming`` grants have not gone on yet."""
        self.returnable += resuming - self.waiters.resuming
        self.waiters.resuming = resuming
        self.waiters.line.recount()
        self.serve(again=True)

    def _cut(self) -> bool:
        """A decision failed where many threads ask, so that `go_on` comes next; False: one loop asks, and there was no signal."""
        section = self.section
        if section is not None:
            section.cut()
        return section is not None

    # Looking and changing.

    @property
    def line(self) -> Line:
        """The requests that wait."""
        return self.waiters.line

    @property
    def strategy(self) -> Scheduler:
        """The scheduler, without what a server said."""
        return self.scheduler.inner if isinstance(self.scheduler, Capped) else self.scheduler

    @property
    def is_held(self) -> bool:
        """Whether no newcomer is granted now, whatever the scheduler says."""
        return self.waiters.head is not None or self.closed or self.timeline.held_at is not None

    @property
    def is_closed(self) -> bool:
        """Whether it is closed, or a limit that it shares is."""
        return self.closed or (self.gate is not None and self.gate.shared.is_closed)

    @property
    def shares_on_demand(self) -> bool:
        """Whether a limit that it shares has permits only for requests that wait."""
        shared = None if self.gate is None else self.gate.shared
        return shared is not None and (shared.watcher.on_demand or shared.shares_on_demand)

    @property
    def max_permits(self) -> int | None:
        """The largest request that can ever be granted; None: any."""
        own = self.scheduler.max_permits
        shared = None if self.gate is None else self.gate.shared.max_permits
        return own if shared is None or (own is not None and own < shared) else shared

    def look(self) -> int:
        """Grant all that is due; returns the instant."""
        self.find_loop()
        self.clear_closed()
        now = self.timeline.now()
        if self.batch.opened:
            self.settle(now)
        waiters = self.waiters
        if waiters.line and (waiters.due is None or waiters.due <= now):
            self.serve()
        self.update_fast_path()
        return now

    def look_from_top(self) -> None:
        """As `look`, once the limits that are shared have granted what is due there."""
        if self.gate is not None:
            self.gate.shared.look_from_top()
        self.look()

    def changed(self) -> None:
        """Something changed for those in line too: the rate, what lies ready, or whether time passes."""
        self.batch.measure(self.scheduler)
        self.waiters.estimate.forget()
        self._late = None
        self.serve()

    def tell(self, event: Event) -> None:
        """Log an event and call ``on_event``."""
        self.notices.tell(event, self.loop)

    def on_pause_end(self, held_for: int) -> None:
        """Time goes on after it has stood still for ``held_for`` ns."""
        self.now = self.timeline.now  # the next caller stands behind the line that outlasted the pause
        self.scheduler.shift(held_for)

    # The fast path, and batches.

    def update_fast_path(self) -> None:
        """Open or close the fast path, after anything that matters to it."""
        timeline, loop = self.timeline, self.loop
        scheduler = self.scheduler
        if isinstance(scheduler, Capped) and timeline.held_at is None and scheduler.ended(timeline.now()):
            self.scheduler = scheduler.inner
            self.batch.measure(self.scheduler)
        self.now = timeline.now if timeline.offset else timeline.read
        clear = loop is not None and loop.monotonic and loop.section is None and self._late is None and not self.is_held
        if clear and loop is not None and not self.batch.worthwhile and self.gate is None:
            self.fast_until = loop.check_after - timeline.offset
        else:
            self.fast_until = 0

    def settle(self, now: int) -> None:
        """Book what was handed out of the batch."""
        self.granted += self.batch.settle(self.scheduler, now, None if self._late is None else self._made_up_from(now))

    def _open_batch(self, now: int) -> None:
        if self.batch.open(self.scheduler, now) and not self.batch.settling and self.loop is not None:
            self.batch.settling = True
            self.loop.call_soon(self._on_iteration)

    def _on_iteration(self) -> None:
        self.batch.settling = False
        if self.batch.opened and self.loop is not None and running_loop() is self.loop.native:
            self.settle(self.timeline.now())
            self.update_fast_path()

    def _made_up_from(self, now: int) -> int | None:
        """Since when to book just after a late wake-up that left nobody in line.

        What delayed the wake-up also delayed the callers right after it; they are booked from the same instant, at most catch_up back.
        """
        assert self._late is not None  # as both callers have seen
        since, woken_at = self._late
        if now - woken_at > _SAME_WAKE_UP_NS:
            self._late = None
            return None
        return max(since, now - self.catch_up)


def again(error: BaseException) -> BaseException:
    """Another instance of the error: raised in many tasks, a single one would collect the frames of them all."""
    from copy import copy

    try:
        twin = copy(error)
    except Exception:  # its class wants other arguments than it has kept
        twin = RuntimeError(f"{type(error).__name__}: {error}")
    if twin is not error:
        twin.__cause__ = error.__cause__
    return twin
