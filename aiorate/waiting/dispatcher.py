"""The dispatcher: who is granted, and when. One synchronous function decides, and is called whenever anything changes.

It asks the scheduler about the first in line, has the driver wake those it granted, and sets the driver for the next.
Knows nothing of how a rate is computed (it never multiplies or divides), of seconds, or of what users are told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.waiting.batch import Batch
from aiorate.waiting.clock import event_loop, running_loop
from aiorate.waiting.counters import Counters
from aiorate.waiting.driver import driver_for
from aiorate.waiting.estimate import Estimate
from aiorate.waiting.line import Line, outcome_of
from aiorate.waiting.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiorate.schedulers.interface import Scheduler
    from aiorate.waiting.clock import Clock, EventLoop
    from aiorate.waiting.driver import Driver
    from aiorate.waiting.line import Grant, Request, Ticket

__all__ = ["Answer", "Dispatcher"]

_AT_ONCE = 64  # requests that may be counted for the sake of one question
_SAME_WAKE_UP_NS = 1_500_000  # as long as wake-ups are apart, on the average
_HALF_A_TURN_NS = 5_000_000  # the loop turns after twice as long at the latest
_NOBODY = Line()  # of all limiters for which nobody ever waited: an empty line takes as much as all the rest of a limiter


class Answer:
    """What became of a request: granted, or not before ``at`` (None: somebody or something stands in between). Asked at ``now``."""

    __slots__ = ("at", "granted", "now")

    def __init__(self, granted: bool, at: int | None, now: int) -> None:
        self.granted = granted
        self.at = at
        self.now = now


class Dispatcher:
    """Has a scheduler, a line, a batch, a timeline, an estimate and counters, and a driver as soon as somebody waits."""

    __slots__ = (
        "__weakref__",
        "_clock",
        "_counting",
        "_due",
        "_estimate",
        "_head",
        "_late",
        "_loop",
        "_precise",
        "_steady",
        "_turn_since",
        "batch",
        "catch_up",
        "clear_until",
        "closed",
        "counters",
        "driver",
        "granted",
        "line",
        "name",
        "now",
        "scheduler",
        "take",
        "timeline",
        "turn_by",
    )

    def __init__(self, scheduler: Scheduler, catch_up: int, precise: bool, clock: Clock | None, name: str | None) -> None:
        scheduler.claim("a limiter" if name is None else f"the limiter {name!r}")
        scheduler.receipts = False
        self.scheduler = scheduler
        self.take = scheduler.take
        self.catch_up = catch_up
        """How many ns a late event loop may make up for."""
        self.name = name
        self.timeline = Timeline(clock)
        self.now: Callable[[], int] = self.timeline.read
        """The shortest way to the instant, while the mark below stands."""
        self.clear_until = 0
        """The mark: no line, pause, open batch or late wake-up stands between a request and the scheduler before that instant.

        That is also when somebody has to see to it that the loop turns.
        """
        self.turn_by = 0
        """Nobody need look before that instant whether the loop turns."""
        self.granted = 0
        """Permits, in all."""
        self.batch = Batch(scheduler)
        self.counters = Counters()
        self.closed = False
        self.line = _NOBODY
        self.driver: Driver | None = None
        self._clock = clock
        self._precise = precise
        self._loop: EventLoop | None = None
        self._estimate = Estimate()
        self._counting = 0
        self._due: int | None = None  # for when the first in line is scheduled
        self._head: Ticket | None = None  # whom that is said of
        self._late: tuple[int, int] | None = None  # up to when a late wake-up has served the schedule, and when that was
        self._steady = False  # whether callers on another loop would go by the same clock
        self._turn_since: int | None = None  # since when it is known not to have turned; None: nobody looks

    # Asking: what a request goes through, from the first question to the permits.

    def ask(self, permits: int, since: int | None = None, patient: bool = False) -> Answer:
        """Take the permits if nothing stands in between and they are due.

        A patient caller may be refused what has just fallen due, for the sake of the event loop.
        """
        if not self._steady:
            self.find_loop()
        now = self.timeline.now()
        if now >= self.turn_by:
            if self._steady:
                self.find_loop()
            self._watch_turn(now)
        if self.batch.dealt:
            self._settle(now)
        if self.line or self.closed or self.timeline.held:
            return Answer(False, None, now)
        if patient and self.batch.outstayed(now) and not self._by_hand:
            return Answer(False, now, now)
        if since is None and self._late is not None:
            since = self._made_up_from(now)
        at = self.take(permits, now, since)
        granted = at <= now
        if not granted:
            self._late = None
        else:
            self.granted += permits
            if self.batch.worthwhile and self._loop is not None and self.batch.open(self.scheduler, now):
                self._watch_turn(now, batch=True)
        self.refresh()
        return Answer(granted, at, now)

    def join(self, permits: int, answer: Answer, since: int) -> tuple[Ticket, int]:
        """Stand in line, for a request that was refused: a ticket, and what the clock read when it was asked."""
        self.find_loop()
        if self._loop is None:
            raise RuntimeError("acquire() can only wait in a running event loop; try_acquire() and delay() work without one.")
        if self.driver is None:
            self.line = Line()
            self.driver = driver_for(self.scheduler, self, self._loop, self.name)
        self.scheduler.receipts = True
        ticket = self.driver.ticket()
        first = not self.line
        self.line.join(ticket, permits, since)
        self._estimate.joined(permits, since, self.catch_up)
        if not first:
            pass
        elif answer.at is None:
            self.serve()
        else:
            self.clear_until = 0
            self._await_head(ticket, answer.at)
        timeline = self.timeline
        return ticket, timeline.read() if timeline.held else answer.now + timeline.offset

    def leave(self, line: Line, ticket: Ticket, permits: int) -> None:
        """Undo a request whose task was cancelled, waiting in that line or granted but not yet resumed."""
        self.counters.cancelled += 1
        outcome = outcome_of(ticket)
        if isinstance(outcome, BaseException):
            return
        if outcome is not None:
            self.give_back(permits, outcome[1])
        elif line is self.line and self.driver is not None:  # else it is that of another loop, to which nobody belongs any more
            self.driver.leave(ticket)
            line.leave(ticket)
            self._estimate.left()
            first = line.first()
            if first is None or first[0] is not self._head:
                self._serve_if_alive()

    def give_back(self, permits: int, taken: int) -> None:
        """Permits granted at that instant were not used: the next in line moves up at once."""
        self.counters.given_back += permits
        self.scheduler.give_back(permits, self.timeline.now(), taken)
        self._estimate.left()
        self._serve_if_alive()

    def must_turn(self) -> bool:
        """Whether a caller that was granted has to let the loop turn first: for 5 to 10 ms it has not."""
        if self._loop is None or self._loop.by_hand:
            return False
        now = self.timeline.now()
        if now < self.turn_by:
            return False
        if self._turn_since is None or now - self._turn_since < _HALF_A_TURN_NS:
            self._watch_turn(now)
            return False
        self.scheduler.receipts = True
        return True

    def turn(self) -> Awaitable[object]:
        """What to await to let the loop turn once."""
        assert self._loop is not None
        return self._loop.turn()

    # Deciding.

    def serve(self) -> None:
        """Grant all that is due, in order, and set the driver for the next."""
        try:
            now = self.timeline.now()
            self._due = None if self.timeline.held else self._grant(self.line.first(), now)
        except Exception as error:
            self._due = None
            self.fail(error)
        self.refresh()
        first = self.line.first()
        if first is None:
            self._estimate.forget()
            if self.driver is not None:
                self.driver.arm(None)
        else:
            self._await_head(first[0], self._due)

    def _grant(self, request: Request | None, now: int) -> int | None:
        """Grant what is due, from that request on; for when the next one is scheduled, if there is one."""
        line, take = self.line, self.take
        earliest = now - self.catch_up
        late = self._due is not None and self._due < earliest
        spilled = self.scheduler.spilled if late else 0
        reading = now + self.timeline.offset
        due, booked = None, now
        while request is not None:
            ticket, permits, since = request
            at = take(permits, now, since if since > earliest else earliest)
            if at > now:
                due = at
                break
            self.granted += permits
            ticket.set_result((at, now, reading))
            booked = at
            request = line.serve()
        if request is None and booked < now:
            self._late = booked, now
        if late:
            self.skip(self.scheduler.spilled - spilled)
            self._estimate.forget()
        return due

    def skip(self, ns: int) -> None:
        """So much of the schedule fell due while somebody waited, and is given up."""
        counters = self.counters
        permits, counters.unused = self.scheduler.rate.permits_and_rest(ns, counters.unused)
        counters.skipped += permits

    def _await_head(self, ticket: Ticket, due: int | None) -> None:
        """Have the driver look again when that ticket, the first in line, is due; while time stands still, when it goes on."""
        assert self.driver is not None  # it made the ticket
        self._head, self._due = ticket, due
        timeline = self.timeline
        try:
            self.driver.arm(timeline.paused_until if due is None else timeline.reading_at(due))
        except Exception as error:  # a broken clock
            self.driver.arm(None)
            self.fail(error)

    def _made_up_from(self, now: int) -> int | None:
        """Since when to book just after a late wake-up that left nobody in line.

        What delayed the wake-up also delayed the callers right after it; they are booked from the same instant, at most catch_up back.
        """
        since, woken_at = self._late or (now, now)
        if now - woken_at > _SAME_WAKE_UP_NS:
            self._late = None
            return None
        return max(since, now - self.catch_up)

    # The event loop: which one it is, and that it turns.

    def find_loop(self) -> None:
        """See which event loop runs. On another one the budget stays, and those who wait on the old one go."""
        native = running_loop()
        old = self._loop
        if native is None and old is None:
            self.timeline.begun = True
            return
        if old is not None:
            if native is old.native:
                return
            if old.running:
                raise RuntimeError(
                    "this limiter is in use by another running event loop; make one limiter per loop,"
                    " or call it through asyncio.run_coroutine_threadsafe()."
                )
            if native is None and not old.closed:
                return
            self._desert(old)
        self._loop = None if native is None else event_loop(native, self._clock, self._precise)
        if self._loop is not None and self._clock is None:
            self.timeline.follow(self._loop.read)
        self.timeline.begun = True
        self._steady = self._loop is not None and self._loop.monotonic
        self.refresh()

    def _desert(self, old: EventLoop) -> None:
        if not old.forked:  # else those who wait are in another process
            for ticket in self.line.clear():
                try:
                    ticket.set_result(RuntimeError("the limiter was moved to another event loop while this one stood still"))
                except RuntimeError:  # a closed loop wakes nobody
                    continue
            if self.driver is not None:
                self.driver.retire()
        self.line = _NOBODY
        self.driver = self._due = self._head = self._late = self._turn_since = None
        self.turn_by = 0
        self._estimate.forget()

    @property
    def _by_hand(self) -> bool:
        return self._loop is not None and self._loop.by_hand

    def _serve_if_alive(self) -> None:
        # In a loop that was closed nobody can be woken.
        if self._loop is not None and not self._loop.closed:
            self.serve()

    def _watch_turn(self, now: int, batch: bool = False) -> None:
        """Have the loop say when it turns next, unless it has been asked to; a batch is settled then."""
        if self._loop is None or (self._loop.by_hand and not batch):
            return
        if now >= self.turn_by:
            self.turn_by = (now if self._turn_since is None else self._turn_since) + _HALF_A_TURN_NS
        elif not batch:
            return
        if self._turn_since is None:
            self._turn_since = now
            self._loop.call_soon(self._turned)

    def _turned(self) -> None:
        self._turn_since = None
        if self.batch.dealt and self._loop is not None and running_loop() is self._loop.native:
            self._settle(self.timeline.now())
            self.refresh()

    # Looking and changing.

    def full(self, most: int) -> bool:
        """Whether so many wait already. Who was cancelled but has not run since does not count."""
        if len(self.line) < most:
            return False
        self._counting += _AT_ONCE
        if self._counting < len(self.line):
            return True  # in a long line that is full, nobody counts again for each who asks
        self._counting = 0
        return self.line.count() >= most

    def look(self) -> int:
        """The instant, once all that is due by then is granted."""
        self.find_loop()
        now = self.timeline.now()
        if self.batch.dealt:
            self._settle(now)
        if self.line and (self._due is None or self._due <= now):
            self.serve()
        self.refresh()
        return now

    def changed(self) -> None:
        """Something changed for those in line too: the rate, what lies ready, or whether time passes."""
        self.batch.measure(self.scheduler)
        self._estimate.forget()
        self._late = None
        self._reject_oversized()
        self.serve()

    def estimate(self, permits: int, now: int) -> int | None:
        """Nanoseconds until a request made now would be granted, the line included; None: nobody can say."""
        timeline = self.timeline
        instant = self._estimate.instant(self.scheduler, timeline, self.line, permits, now, self.catch_up)
        if instant == now and not timeline.held:
            return 0
        reading = timeline.reading_at(instant)
        return None if reading is None else max(0, reading - timeline.read())

    def next_reading(self) -> int | None:
        """What the clock reads when the first in line is granted; None: nobody can say before it is started."""
        request = self.line.first()
        assert request is not None
        timeline = self.timeline
        due = self._due if self._due is not None else self._estimate.instant(self.scheduler, timeline, Line(), request[1], timeline.now(), 0)
        return timeline.reading_at(due)

    def released(self, held_for: int) -> None:
        """Time goes on after it has stood still for so long."""
        self.scheduler.shift(held_for)

    def fail(self, error: BaseException) -> None:
        """Send everybody in line away with an error: nobody hangs, and the limiter works on."""
        for ticket in self.line.clear():
            ticket.set_result(again(error))
        self._estimate.forget()
        self.refresh()

    async def close(self, error: BaseException) -> None:
        """Send everybody away, and grant nothing any more; no task and no timer stays."""
        self.look()
        self.closed = True
        self.fail(error)
        self.serve()
        if self.driver is not None:
            await self.driver.aclose()

    def reset(self) -> None:
        """Everything as new."""
        self.timeline.start()
        self.timeline.resume()
        self.scheduler.reset(self.timeline.now())
        self.counters = Counters()
        self.granted = 0
        self.changed()

    def refresh(self) -> None:
        """Derive the mark from what may stand in between."""
        timeline = self.timeline
        self.now = timeline.now if timeline.offset else timeline.read
        blocked = self.line or self.closed or timeline.held or self.batch.worthwhile or self._late is not None
        self.clear_until = 0 if blocked or not self._steady else self.turn_by

    def _settle(self, now: int) -> None:
        self.granted += self.batch.settle(self.scheduler, now, None if self._late is None else self._made_up_from(now))

    def _reject_oversized(self) -> None:
        """Send those away who ask for more than can be granted since the rate was changed."""
        most = self.scheduler.max_permits
        for ticket, permits, _ in [] if most is None else [request for request in self.line if request[1] > most]:
            ticket.set_result(ValueError(f"acquire({permits}) can no longer be granted: {most} is the most at once now."))
            self.line.leave(ticket)


def again(error: BaseException) -> BaseException:
    """Another instance of the error: raised in many tasks, a single one would collect the frames of them all."""
    from copy import copy

    try:
        twin = copy(error)
    except Exception:
        twin = RuntimeError(f"{type(error).__name__}: {error}")
    if twin is error:
        return error
    twin.__cause__ = error.__cause__
    return twin
