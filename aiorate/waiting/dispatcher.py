"""The dispatcher decides which requests are granted, and when.

`Dispatcher.serve` decides for those in line, whenever anything changes; `Dispatcher.try_take` for a newcomer while nobody is in line.
Both are synchronous. `aiorate.Limiter.acquire` inlines the latter's shortest case, and a `Batch` prepays it.
Knows nothing of how a rate is computed (it never multiplies or divides), of seconds, or of what users are told.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate.schedulers.capped import Capped
from aiorate.schedulers.interface import NOBODY_KNOWS
from aiorate.waiting.batch import Batch
from aiorate.waiting.counters import Counters
from aiorate.waiting.deadlines import Deadlines
from aiorate.waiting.estimate import Estimate
from aiorate.waiting.line import Line, outcome_of
from aiorate.waiting.loops import running_loop, view_of
from aiorate.waiting.timeline import Timeline
from aiorate.waiting.turnstile import LOOP_CHECK_NS, MOST
from aiorate.waiting.watcher import UNWATCHED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiorate.events import Event
    from aiorate.schedulers.interface import Scheduler
    from aiorate.waiting.clock import Clock, ReadClock
    from aiorate.waiting.deadlines import Patience
    from aiorate.waiting.driver import Driver
    from aiorate.waiting.gate import Gate, Passes, Receipt
    from aiorate.waiting.group import Group
    from aiorate.waiting.line import Outcome, Request, Ticket
    from aiorate.waiting.view import EventLoop
    from aiorate.waiting.watcher import Watcher

__all__ = ["NOT_ASKED", "Dispatcher"]

NOT_ASKED = 1 << 200  # in place of an instant: the scheduler was not asked, because of a line, a pause, a stop or a close
_NEVER = 1 << 62  # in place of an instant
_SAME_WAKE_UP_NS = 1_500_000  # as long as wake-ups are apart, on the average
_TOLD_AGAIN_NS = 1_000_000_000  # a pause that becomes longer by less is no news: responses of many requests come one after the other
_ESTIMATED = 32  # requests sent away at one wake-up whose errors say how long each would have waited
_NOBODY = Line()  # shared by all limiters for which nobody ever waited: a line weighs as much as the rest of a limiter


class Dispatcher:
    """Has a scheduler, a line, a batch, a timeline, an estimate and counters, and a driver as soon as somebody waits."""

    __slots__ = (
        "__weakref__",
        "_cap",
        "_clock",
        "_deadlines",
        "_due",
        "_estimate",
        "_gate",
        "_group",
        "_head",
        "_late",
        "_loop",
        "_precise",
        "_reset_at",
        "_returnable",
        "_settling",
        "_steady",
        "altered",
        "batch",
        "catch_up",
        "check_loop_after",
        "closed",
        "counters",
        "driver",
        "fast_until",
        "granted",
        "line",
        "name",
        "now",
        "on_event",
        "passes",
        "resuming",
        "scheduler",
        "timeline",
        "watcher",
    )

    def __init__(self, scheduler: Scheduler, catch_up: int, precise: bool, clock: Clock | None, name: str | None) -> None:
        scheduler.claim("a limiter" if name is None else f"the limiter {name!r}")
        scheduler.receipts = False
        self.scheduler: Scheduler = scheduler
        self.catch_up: int = catch_up
        """How many ns a late event loop may make up for."""
        self.name: str | None = name
        self.on_event: Callable[[Event], object] | None = None
        self.timeline: Timeline = Timeline(clock)
        self.now: ReadClock = self.timeline.read
        """The shortest way to the instant, while nothing is held up."""
        self.fast_until: int = 0
        """Before that instant a request may go straight to the scheduler.

        No line, no pause, no batch, no late wake-up to make up for; not closed; and the loop was seen to run its other tasks.
        """
        self.check_loop_after: int = 0
        """Before that instant no caller has to check whether the loop runs its other tasks."""
        self.granted: int = 0
        """Permits, in all."""
        self.resuming: int = 0
        """Requests that were granted out of the line and have not gone on yet."""
        self.batch: Batch = Batch(scheduler)
        self.counters: Counters = Counters()
        self.closed: bool = False
        self.altered: bool = False
        """Whether the rate is not the one it was made with."""
        self.line: Line = _NOBODY
        self.driver: Driver | None = None
        self.passes: Passes | None = None
        """Requests of other lines, if others share this limit."""
        self.watcher: Watcher = UNWATCHED
        """Told of pauses and of the event loop."""
        self._clock = clock
        self._precise = precise
        self._loop: EventLoop | None = None
        self._steady = False  # whether callers on another loop would go by the same clock
        self._estimate = Estimate()
        self._deadlines: Deadlines | None = None  # of those in line that have one
        self._cap: Capped | None = None  # what a server said is left
        self._gate: Gate | None = None  # to a limit that other lines share
        self._group: Group | None = None  # of limiters that are used by turns
        self._reset_at: int | None = None
        self._returnable = 0  # grants that may still be cancelled
        self._due: int | None = None  # the instant at which `_head` is due; None: paused or stopped. Meaningless without `_head`
        self._head: Ticket | None = None  # the ticket for which the driver is armed; None: nobody waits
        self._late: tuple[int, int] | None = None  # of a late wake-up: the instant up to which it served the schedule, and its own
        self._settling = False  # whether the batch will be settled in the next iteration of the loop

    # A request, from the question to the permits.

    def try_take(self, permits: int, since: int | None = None, patient: bool = False, late: int = 0) -> tuple[int, int]:
        """Take the permits if nobody is in line, the limiter is open and not paused, and they are due.

        Returns the instant for which the request is scheduled, as `Scheduler.take` says it, and the instant now: granted if the one
        is not after the other. The first is `NOT_ASKED` if the scheduler was not asked. A patient caller, who would wait in line
        without a limit, may be refused what has just fallen due. The first of another line may come ``late`` ns late, of which
        ``catch_up`` counts here.
        """
        if not self._steady:
            self.find_loop()
        timeline = self.timeline
        now = self.now() if timeline.held_at is None else timeline.now()
        if now >= self.check_loop_after:
            if self._steady:
                self.find_loop()
            self._watch_loop(now)
        if self._head is not None or self.closed or timeline.held_at is not None:
            if self._steady:
                self.find_loop()  # a line of another loop, or of the process before a fork, is none
            if self._head is not None or self.closed or timeline.held_at is not None:
                return NOT_ASKED, now
        if self.batch.opened:
            self._settle(now)
        if patient and self.batch.outstayed(now) and self._loop is not None and not self._loop.manual:
            return now + 1, now
        if late:
            since = now - min(late, self.catch_up)
        elif since is None and self._late is not None:
            since = self._made_up_from(now)
        granted_at = now
        if self._gate is None:
            at = self.scheduler.take(permits, now, since)
        else:
            at = self.scheduler.peek(permits, now)
            if at <= now:
                receipt = self._gate.ask(permits, now, late)
                if receipt is None:
                    return NOT_ASKED, now
                at, granted_at = self._take_both(self._gate, receipt, permits, now, since), receipt
        if at > now:
            self._late = None
        else:
            self.granted += permits
            worthwhile = self.batch.worthwhile and self._gate is None and self._loop is not None and self._loop.section is None
            if worthwhile and self.batch.open(self.scheduler, now):
                self._settle_next_iteration()
        self._update_fast_path()
        return at, granted_at

    def _take_both(self, gate: Gate, receipt: Receipt, permits: int, now: int, since: int | None) -> int:
        """Take what is due here, after the shared limit was taken from; from neither if a strategy fails."""
        at = NOT_ASKED
        try:
            at = self.scheduler.take(permits, now, since)
        finally:
            if at > now:
                gate.keep_receipt()
                gate.cancel(permits, receipt)
        return at

    def join(
        self, permits: int, at: int, now: int, since: int, ticket: Ticket | None = None, patience: Patience | None = None
    ) -> tuple[Ticket, int]:
        """Put a request in line that was refused until ``at``. Returns its ticket and the clock's reading at the request.

        A request that is the first of another line brings a ticket along. With ``patience``, it is sent away when that is over.
        """
        if self._loop is None or running_loop() is not self._loop.native:
            self.find_loop()
            if self._loop is None:
                raise RuntimeError("acquire() can only wait in a running event loop; try_acquire() and delay() work without one.")
        if self.driver is None:
            self.line = Line()
            self.driver = self._loop.make_driver(self)
        line, timeline = self.line, self.timeline
        if ticket is None:
            ticket = self.driver.ticket()
        line.join(ticket, permits, since)
        if self._estimate.kept:
            self._estimate.joined(permits, since, self.catch_up)
        if self._head is None:
            self.fast_until = 0
            if at == NOT_ASKED:
                self.serve()
            else:
                self._await_head(ticket, at)
        asked = now
        if timeline.held_at is not None:
            asked = timeline.read()
        elif timeline.offset:
            asked = now + timeline.offset  # else not another number for each of 100 000 waiters
        if patience is not None:
            self._limit_wait(ticket, permits, asked, patience)
        return ticket, asked

    def _limit_wait(self, ticket: Ticket, permits: int, asked: int, patience: Patience) -> None:
        """Have a request sent away that has waited for too long."""
        assert self._loop is not None  # in which the line stands
        if self._deadlines is None:
            self._deadlines = Deadlines(self._loop, self._on_deadline)
        try:
            self._deadlines.add(ticket, permits, asked, patience, len(self.line))
        except BaseException:  # no timer is to be had
            self.leave(self.line, ticket, permits)
            raise

    def _on_deadline(self) -> None:
        """Grant what is due, and send those away whose time is over and that are not."""
        self.look_from_top()
        if self._deadlines is None:  # the line is that of another loop
            return
        # As many at most as are woken in one iteration of the loop; the timer is due at once for the others.
        manual = self._loop is not None and self._loop.manual
        self.send_away(self._deadlines.overdue(self.timeline.read(), len(self.line) if manual else MOST))
        self._deadlines.aim(len(self.line))

    def send_away(self, over: Sequence[tuple[Ticket, int, Patience]]) -> None:
        """Refuse requests in line that are not decided and wait no longer."""
        for ticket, permits, _ in over:
            self.counters.refused += 1
            self._leave_line(ticket, permits)
        more: int | None = 0
        for place, (ticket, permits, patience) in enumerate(over):
            if place < _ESTIMATED:  # of a herd, the first few
                more = self.estimate(permits, self.timeline.now())
            ticket.set_result(patience.error(more))
        self._serve_unless_first()

    def resumed(self, line: Line, outcome: Outcome, asked: int) -> tuple[int, int, int]:
        """Called by a waiter of that line when it resumes; ``asked`` is the clock's reading at its request.

        Returns the nanoseconds waited, the instant for which it was scheduled and the instant of its grant, or raises its error.
        """
        if isinstance(outcome, BaseException):
            raise outcome
        at, granted_at, reading = outcome
        self.drop_receipt(granted_at, line)
        waited = reading - asked
        if waited <= 0:
            return 0, at, granted_at
        self.counters.note(waited)
        return waited, at, granted_at

    def leave(self, line: Line, ticket: Ticket, permits: int) -> None:
        """Undo a request whose task was cancelled, waiting in that line or granted but not yet resumed."""
        outcome = outcome_of(ticket)
        if outcome is None:
            self.counters.cancelled += 1
            if line is self.line:  # else it is that of another loop, and empty
                if self.driver is not None:
                    self.driver.leave(ticket)
                self._leave_line(ticket, permits)
                self._serve_unless_first()
        elif not isinstance(outcome, BaseException):
            self.cancel(permits, outcome[1], line)

    def _leave_line(self, ticket: Ticket, permits: int) -> None:
        """A request goes without having been served."""
        self.line.leave(ticket, permits)
        self._estimate.departed()
        if self._deadlines is not None:
            self._deadlines.leave(ticket, len(self.line))

    def _serve_unless_first(self) -> None:
        """Have the next move up if it is no longer the first in line that the driver is armed for."""
        first = self.line.first()
        if first is None or first[0] is not self._head:
            self.serve_if_alive()

    def withdraw(self, line: Line, ticket: Ticket, permits: int) -> None:
        """As `leave`, for the first of another line, of which no driver knows."""
        outcome = outcome_of(ticket)
        if outcome is None:
            if line is self.line:
                self._leave_line(ticket, permits)
                if ticket is self._head:
                    self.serve_if_alive()
        elif not isinstance(outcome, BaseException):
            self.cancel(permits, outcome[1], line)

    # What may come back. Each of these reaches every limit that the grant took from.

    def keep_receipt(self) -> None:
        """Have the scheduler record takes: one more grant may still be undone, by `cancel` or `return_some`."""
        self._returnable += 1
        self.scheduler.receipts = True
        if self._gate is not None:
            self._gate.keep_receipt()

    def drop_receipt(self, granted_at: int | None = None, line: Line | None = None) -> None:
        """One grant stands: that of a waiter of that line, which resumed, or without a line one that `keep_receipt` announced.

        After the last, nothing is recorded.
        """
        self._forget_grant(line)
        if self._gate is not None:
            self._gate.drop_receipt(granted_at)

    def cancel(self, permits: int, granted_at: int, line: Line | None = None) -> None:
        """Undo a grant of that instant, because its task was cancelled before it resumed. The next in line moves up at once.

        ``line`` is as in `drop_receipt`. What was granted in the line of an earlier event loop stays spent.
        """
        self.counters.cancelled += 1
        if line is None or line is self.line:
            self._give_back(permits, granted_at)
        self._forget_grant(line)
        if self._gate is not None:
            self._gate.cancel(permits, granted_at)
        self._estimate.departed()
        self.serve_if_alive()

    def return_some(self, permits: int, granted_at: int) -> None:
        """Take back the permits, out of a grant of that instant whose receipt is kept."""
        self.look()
        self._give_back(permits, granted_at)
        if self._gate is not None:
            self._gate.return_some(permits, granted_at)
        self.changed()

    def refund(self, permits: int) -> None:
        """Take back the permits, of any grant."""
        counters = self.counters
        self.scheduler.give_back(permits, self.look())
        counters.refunded += permits
        counters.given_back += min(permits, self.granted - counters.given_back)
        if self._gate is not None:
            self._gate.refund(permits)
        self.changed()

    def charge(self, permits: int) -> None:
        """Take the permits after the fact, as a debt."""
        self.scheduler.charge(permits, self.look())
        self.counters.charged += permits
        if self._gate is not None:
            self._gate.charge(permits)
        self.changed()

    def _give_back(self, permits: int, granted_at: int) -> None:
        if self._reset_at is None or granted_at > self._reset_at:  # else it is of a schedule that is no more
            self.counters.given_back += permits
            self.scheduler.give_back(permits, self.timeline.now(), int(granted_at))

    def _forget_grant(self, line: Line | None) -> None:
        if line is not None:
            if line is not self.line:  # of a loop that is no more, with which it was forgotten
                return
            self.resuming -= 1
        if self._returnable:
            self._returnable -= 1
        if not self._returnable:
            self.scheduler.receipts = False

    # Deciding.

    def share(self, gate: Gate | None, group: Group | None = None) -> None:
        """From now on, whatever is granted here takes from a limit that other lines share too, and it is one of a group.

        Raises ValueError if it is so already, or if requests wait here for which the shared limit was never asked.
        """
        if self.spans_loops:
            raise ValueError("its scope is the process, and it cannot be one of several limits. Make one with scope='loop'.")
        if self._gate is not None or self._group is not None:
            raise ValueError("the limiter belongs to another key already: make one for each key.")
        if gate is not None and (self._head is not None or self._returnable):
            raise ValueError("the limiter is in use already: make one that is not.")
        if gate is not None and gate.reaches(self):
            raise ValueError("it is the shared limiter, or one that this shares: make one for each key.")
        if self.batch.opened:
            self._settle(self.timeline.now())
        self._gate, self._group = gate, group
        if gate is not None:
            self.watcher.shared()
        self._update_fast_path()

    @property
    def gate(self) -> Gate | None:
        """The way to a limit that other lines share; None: there is none."""
        return self._gate

    @property
    def shares_on_demand(self) -> bool:
        """Whether a limit that it shares has permits only for requests that wait."""
        return self._gate is not None and self._gate.on_demand

    @property
    def is_stopped(self) -> bool:
        """Whether it, or the limit that it shares with others, grants nothing until it is started."""
        return self.timeline.stopped or (self._gate is not None and self._gate.is_stopped)

    def reaches(self, side: object) -> bool:
        """Whether what is granted here takes from that one too."""
        return self._gate is not None and self._gate.reaches(side)

    def on_pass(self) -> None:
        """The first in line was decided by the limit that is shared."""
        self.find_loop()
        self.serve_if_alive()

    def _serve_passes(self) -> None:
        """Have the lines served whose first requests were decided here; only once everything here is in order again."""
        if self.passes is not None:
            self.passes.serve()

    def serve(self, again: bool = False) -> None:
        """Grant all that is due, in order, and set the driver for the next.

        If that fails, everybody in line is told; where many threads ask, only if it fails ``again``, since the error may be a signal
        handler's.
        """
        timeline = self.timeline
        request: Request | None = None
        try:
            now = timeline.now()
            request = self.line.first()
            if self._gate is not None and (request is None or timeline.held_at is not None):
                self._gate.withdraw()
            if timeline.held_at is not None:
                self._due = None
                if request is not None:
                    self.watcher.held_up()
            elif request is not None:
                request = self._grant(request, now)
        except Exception as error:
            if again or not self._cut():
                self._fail(error)
            request = None
        if request is not None:
            self._await_head(request[0], self._due, again)
        else:
            self._head = None
            self._update_fast_path()
            self._estimate.emptied()
            if self.driver is not None:
                self.driver.arm(None)
        if self._deadlines is not None:
            self._deadlines.aim(len(self.line))
        self._serve_passes()

    def _grant(self, request: Request | None, now: int) -> Request | None:
        """Grant what is due, from that request on; the next one, for when `_due` says, or None."""
        line, scheduler = self.line, self.scheduler
        earliest = now - self.catch_up
        late = self._due is not None and self._due < earliest
        spilled = scheduler.spilled if late else 0
        reading = now + self.timeline.offset
        loop = self._loop
        room = MOST if loop is None else loop.room(self.resuming)
        booked, woken, permits, stood = now, 0, 0, False  # stood: whether it waited for the shared limit
        gate, granted_at = self._gate, now
        passed: Receipt | BaseException | None = None  # what the shared limit granted, and is not granted here yet
        behind = 0 if self._due is None else min(max(now - self._due, 0), self.catch_up)  # as the wake-up is late
        try:
            while request is not None:
                ticket, permits, since = request
                if self.passes is not None:
                    self.passes.late = behind
                if woken >= room and loop is not None and not loop.manual:
                    self._due = now  # that is, as soon as the loop has turned
                    break
                if gate is not None:
                    at = scheduler.peek(permits, now)
                    if at > now:
                        gate.withdraw()
                        self._due = at
                        break
                    passed = gate.pass_through(ticket, permits, now, self.on_pass, behind)
                    if passed is None:
                        self._due = None
                        break
                    if isinstance(passed, BaseException):
                        ticket.set_result(passed)
                        request = line.pop_first()
                        continue
                    granted_at = passed
                    stood = passed.line is not None
                    if stood:  # nothing is made up for what others held up, but for how late they were woken
                        since = now - passed.late
                        if self.passes is not None:
                            self.passes.late = min(passed.late, self.catch_up)
                at = scheduler.take(permits, now, since if since > earliest else earliest)
                if at > now:
                    self._due = at
                    break
                if not woken:
                    scheduler.receipts = True
                woken += 1
                self.granted += permits
                ticket.set_result((at, granted_at, reading))
                passed = None
                booked = max(at, since) if stood else at
                request = line.pop_first()
            else:
                self._due = None
                if booked < now:
                    self._late = booked, now
        finally:  # a strategy may fail in the middle
            self.resuming += woken
            self._returnable += woken
            if gate is not None and passed is not None and not isinstance(passed, BaseException):
                gate.cancel(permits, passed)
        if late:
            self.skip(scheduler.spilled - spilled)
            self._estimate.forget()
        return request

    def skip(self, ns: int) -> None:
        """So much of the schedule fell due while somebody waited, and is given up.

        The event comes when the loop has turned: whoever hears of it may change the limiter, which decides just now.
        """
        counters = self.counters
        permits, counters.unused = self.scheduler.rate.permits_and_rest(ns, counters.unused)
        counters.skipped += permits
        if permits:
            counters.untold += permits
            if self._loop is not None:
                self._loop.call_soon(self._tell_of_skipped)

    def _tell_of_skipped(self) -> None:
        permits, self.counters.untold = self.counters.untold, 0
        if permits:  # told already, or before a reset()
            from aiorate.events import Event

            self.tell(Event("skipped", self.name, permits=permits))

    def tell(self, event: Event) -> None:
        """Log the event, and call back; not in the middle of a critical section, since whoever hears of it may ask the limiter."""
        from aiorate.events import emit

        section = None if self._loop is None else self._loop.section
        if section is None:
            emit(event, self.on_event)
        else:
            section.after(partial(emit, event, self.on_event))

    def _cut(self) -> bool:
        """A decision failed where many threads ask, so that `go_on` comes next; False: one loop asks, and there was no signal."""
        section = None if self._loop is None else self._loop.section
        if section is not None:
            section.cut()
        return section is not None

    def _await_head(self, ticket: Ticket, due: int | None, again: bool = False) -> None:
        """Have the driver look again when that ticket, the first in line, is due; while time stands still, when it goes on."""
        assert self.driver is not None  # it made the ticket
        if due is not None and due >= NOBODY_KNOWS:
            due = None
        self._head, self._due = ticket, due
        timeline = self.timeline
        try:
            if due is None:
                self.driver.arm(None if timeline.stopped else timeline.paused_until)
            elif timeline.held_at is None:
                self.driver.arm(due + timeline.offset)
            else:
                self.driver.arm(timeline.reading_at(due))
        except Exception as error:  # a broken clock
            if again or not self._cut():
                self.driver.arm(None)
                self.fail(error)

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

    def _update_fast_path(self) -> None:
        timeline = self.timeline
        if self._cap is not None and timeline.held_at is None and self._cap.ended(timeline.now()):
            self.scheduler, self._cap = self._cap.inner, None
            self.batch.measure(self.scheduler)
        self.now = timeline.now if timeline.offset else timeline.read
        clear = self._steady and self._head is None and self._late is None and timeline.held_at is None
        self.fast_until = self.check_loop_after if clear and not (self.closed or self.batch.worthwhile or self._gate is not None) else 0

    def go_on(self, resuming: int) -> None:
        """After a decision that a signal handler cut short: serve, and count so many as granted that have not gone on yet."""
        self._returnable += resuming - self.resuming
        self.resuming = resuming
        self.line.recount()
        self.serve(again=True)

    # The event loop: which one it is, and that it runs its other tasks.

    def find_loop(self) -> None:
        """See which event loop runs. On another one the budget stays; those who wait on the old one get an error."""
        native = running_loop()
        old = self._loop
        if old is None:
            if native is None:
                self.timeline.begun = True
                return
        else:
            if native is old.native:
                return
            if old.running:
                raise RuntimeError(
                    "this limiter is in use by another running event loop, and its scope is one loop. For one limit in several loops and"
                    " threads, make it with scope='process' (two limiters would allow twice as much), or call this one in its own loop"
                    " through asyncio.run_coroutine_threadsafe(), which is the way for a KeyedLimiter and a Budget."
                )
            if native is None and not old.closed:
                return
            self._desert(old)
        if native is None:
            self._loop = None
        elif self._group is not None:
            self._loop = self._group.loop(native, self._clock, self._precise)
        else:
            self._loop = view_of(native, self._clock, self._precise)
        if self._loop is not None and self._clock is None:
            self.timeline.follow(self._loop.read)
        self._steady = self._loop is not None and self._loop.monotonic
        self._update_fast_path()
        self._serve_passes()
        if old is not None and self._gate is not None:
            self._gate.look()  # or a shared limit would keep a closed loop with its tasks, and these the places that they hold

    def attach(self, loop: EventLoop, driver: Driver) -> None:
        """Stand on that loop from now on, whatever loop runs here, with its driver. The budget stays; nobody is in line."""
        if self._loop is not None:
            self._desert(self._loop)
        self._loop, self.driver, self.line = loop, driver, Line()
        if self._clock is None:
            self.timeline.follow(loop.read)
        self._steady = loop.monotonic
        self.check_loop_after = _NEVER
        self._update_fast_path()

    @property
    def spans_loops(self) -> bool:
        """Whether callers of several loops and threads may ask."""
        return self._loop is not None and self._loop.section is not None

    def _desert(self, old: EventLoop) -> None:
        if not old.forked:  # else those who wait are in another process
            for ticket in self.line.clear():
                try:
                    ticket.set_result(RuntimeError("the limiter was moved to another event loop while this one stood still"))
                except RuntimeError:  # a closed loop wakes nobody
                    continue
            if self.driver is not None:
                self.driver.retire()
        if self._deadlines is not None:
            self._deadlines.retire()
            self._deadlines = None
        if self._gate is not None:
            self._gate.withdraw()
        self.watcher.moved()
        self.line = _NOBODY
        self.driver = self._due = self._head = self._late = None
        self._settling = False
        # Grants whose owners will never go on cannot come back; those that somebody holds may.
        self._returnable = 0 if old.forked else self._returnable - self.resuming
        self.check_loop_after = self.resuming = 0
        self.scheduler.receipts = self._returnable > 0
        self._estimate.forget()

    def loop_is_starved(self) -> bool:
        """Whether the loop has not run its other tasks for 5 to 10 ms, so that a caller must yield to it before it goes on."""
        loop = self._loop
        if loop is None or loop.manual or running_loop() is not loop.native:  # callers of another loop have no place in its turnstile
            return False
        timeline = self.timeline
        timeline.now()  # whose pause may be over
        now = timeline.read() - timeline.offset  # during a pause too the loop has to turn
        if now < self.check_loop_after:
            return False
        self._watch_loop(now)
        return now >= self.check_loop_after

    def let_loop_turn(self) -> Awaitable[object]:
        """What to await while the loop is starved: it runs its other tasks, and those who came before go on first."""
        assert self._loop is not None
        return self._loop.turn()

    def _watch_loop(self, now: int) -> None:
        """Watch the loop from now on; no caller has to check again for 5 ms."""
        if self._loop is not None and not self._loop.manual:
            self.check_loop_after = now - self._loop.turnstile.held_for() + LOOP_CHECK_NS

    def _settle_next_iteration(self) -> None:
        if not self._settling and self._loop is not None:
            self._settling = True
            self._loop.call_soon(self._on_iteration)

    def _on_iteration(self) -> None:
        self._settling = False
        if self.batch.opened and self._loop is not None and running_loop() is self._loop.native:
            self._settle(self.timeline.now())
            self._update_fast_path()

    def _settle(self, now: int) -> None:
        self.granted += self.batch.settle(self.scheduler, now, None if self._late is None else self._made_up_from(now))

    def serve_if_alive(self) -> None:
        """`serve`, unless the loop is closed, where nobody can be woken."""
        if self._loop is not None and not self._loop.closed:
            self.serve()

    # Looking and changing.

    def look(self) -> int:
        """The instant, once all that is due by then is granted."""
        self.find_loop()
        now = self.timeline.now()
        if self.batch.opened:
            self._settle(now)
        if self.line and (self._due is None or self._due <= now):
            self.serve()
        self._update_fast_path()
        return now

    def look_from_top(self) -> None:
        """As `look`, once the limits that are shared have granted what is due there."""
        if self._gate is not None:
            self._gate.look()
        self.look()

    def rate_changed(self) -> None:
        """As `changed`, and requests in line for more than can be granted now are sent away."""
        self.counters.unused = 0  # a part of a permit, measured by the old rate
        self._reject_oversized()
        self.changed()

    def changed(self) -> None:
        """Something changed for those in line too: the rate, what lies ready, or whether time passes."""
        self.batch.measure(self.scheduler)
        self._estimate.forget()
        self._late = None
        self.serve()

    def pause(self, ns: int) -> None:
        """Let time stand still for so long. Pauses merge by the later end."""
        self.look()
        self.watcher.pausing(ns)  # which may refuse it
        self.timeline.pause(ns, self.on_pause_end)
        self.changed()

    def pause_longer(self, ns: int, jitter: int) -> int:
        """As `pause`, but only if that ends later than a pause that is on, and longer by a random part of ``jitter`` ns then.

        Returns how long it is, or 0 where that is no news: it ends no later, or hardly.
        """
        self.look()
        before, until = self.timeline.paused_until, self.timeline.read() + ns
        if ns <= 0 or (before is not None and until <= before):
            return 0
        if jitter:
            from random import randrange

            # Drawn once for responses that come together: the longest of many draws would be the same for every client.
            ns += randrange(jitter)
        self.pause(ns)
        return ns if before is None or until - before >= _TOLD_AGAIN_NS else 0

    def resume(self) -> None:
        """End a pause now."""
        self.look()
        self.timeline.resume()
        self.watcher.resumed()
        self.changed()

    def cap(self, name: str, left: int, size: int, ns: int) -> None:
        """Heed what a server said is left of a quota; see `Capped.heed`. ``ns`` runs from now, during a pause too."""
        now = self.look()
        cap = Capped(self.scheduler) if self._cap is None else self._cap
        if cap.heed(name, left, size, ns, now, now + self.timeline.held_for):
            self.scheduler = self._cap = cap
            self.changed()

    def reset(self) -> None:
        """Everything as new, but those in line."""
        self.timeline.start()
        self.timeline.resume()
        self.scheduler.reset(self.timeline.now())
        self.counters.clear()
        self.granted = 0
        self._reset_at = self.timeline.now()
        self.changed()

    async def close(self, error: BaseException) -> None:
        """As `shut`, and return once no task and no timer is left."""
        self.shut(error)
        if self.driver is not None:
            await self.driver.aclose()

    def shut(self, error: BaseException) -> None:
        """Send everybody away, and grant nothing any more."""
        self.look()
        self.closed = True
        self.fail(error)
        self.serve()

    @property
    def is_closed(self) -> bool:
        """Whether it, or the limit that it shares with others, grants nothing any more."""
        return self.closed or (self._gate is not None and self._gate.closed)

    @property
    def strategy(self) -> Scheduler:
        """The scheduler, without what a server said."""
        return self.scheduler if self._cap is None else self._cap.inner

    @property
    def max_permits(self) -> int | None:
        """The largest request that can ever be granted; None: any."""
        own = self.scheduler.max_permits
        shared = None if self._gate is None else self._gate.max_permits
        return own if shared is None or (own is not None and own < shared) else shared

    def available(self) -> int:
        """How many permits a newcomer would get at once."""
        if self._head is not None or self.closed or self.timeline.held_at is not None:
            return 0
        own = self.scheduler.available(self.timeline.now())
        return own if self._gate is None else min(own, self._gate.available())

    def rested(self) -> bool:
        """Whether nothing would be lost, and nothing granted sooner, with a new one in its place."""
        if self._loop is None:
            self.find_loop()  # a schedule begins at the first instant that it is given, which must be one of the loop's clock
        elif self._head is not None and self._loop.closed:
            self.find_loop()  # where whoever waited is no more
        if self._head is not None or self._returnable or self.closed or self.altered:
            return False
        now = self.timeline.now()
        if self.timeline.held_at is not None:
            return False
        if self.batch.opened:
            self._settle(now)
        return self.scheduler.rested(now)

    def dismiss(self) -> None:
        """Part with the driver, which knows its dispatcher, so that both are freed at once. Whoever waits next gets another."""
        if self.driver is not None:
            self.driver.retire()
            self.driver = self._deadlines = None
            self.line = _NOBODY

    def full(self, most: int, places: Dispatcher | None = None) -> bool:
        """Whether so many wait already, here or for ``places`` before. A waiter that is being cancelled does not count."""
        resuming, length = 0, len(self.line)
        if places is not None:
            resuming, length = places.resuming, length + len(places.line)
        if length + resuming < most:
            return False
        return self.line.count() + (0 if places is None else places.line.count()) + resuming >= most

    def estimate(self, permits: int, now: int) -> int | None:
        """Nanoseconds until a request made now would be granted, the line included; None: nobody can say."""
        timeline = self.timeline
        if self._gate is not None and self.line:
            return self._gate.estimate_in_line(self, permits)
        instant = self._estimate.instant(self.scheduler, timeline, self.line, permits, now, self.catch_up)
        if instant >= NOBODY_KNOWS:
            return None
        if instant == now and timeline.held_at is None:
            wait = 0
        else:
            reading = timeline.reading_at(instant)
            if reading is None:
                return None
            wait = max(0, reading - timeline.read())
        if self._gate is None:
            return wait
        shared = self._gate.estimate(permits)
        return None if shared is None else max(wait, shared)

    def next_reading(self) -> int | None:
        """What the clock reads when the first in line is granted; None: nobody can say before it is started."""
        if self._gate is not None:
            wait = self._gate.estimate_in_line(self, None)
            return None if wait is None else self.timeline.read() + wait
        request = self.line.first()
        assert request is not None
        due = self._due
        if due is None:
            due = self._estimate.instant(self.scheduler, self.timeline, _NOBODY, request[1], self.timeline.now(), 0)
        return None if due >= NOBODY_KNOWS else self.timeline.reading_at(due)

    def on_pause_end(self, held_for: int) -> None:
        """Time goes on after it has stood still for so long."""
        self.now = self.timeline.now  # whoever comes next stands behind the line that outlasted the pause
        self.check_loop_after -= held_for
        self.scheduler.shift(held_for)

    def fail(self, error: BaseException) -> None:
        """Send everybody in line away with an error: nobody hangs, and the limiter works on."""
        self._fail(error)
        self._serve_passes()

    def _fail(self, error: BaseException) -> None:
        request = self.line.first()
        while request is not None:  # one by one: a decision that is cut short leaves nobody out of the line and untold
            request[0].set_result(again(error))
            request = self.line.pop_first()
        if self._gate is not None:
            self._gate.withdraw()
        self._head = None
        self._estimate.forget()
        self._update_fast_path()

    def _reject_oversized(self) -> None:
        most = self.scheduler.max_permits
        if most is not None:
            for ticket, permits, _ in self.line:
                if permits > most:
                    ticket.set_result(ValueError(f"acquire({permits}) can no longer be granted: {most} is the most at once now."))
                    self.line.leave(ticket, permits)


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
