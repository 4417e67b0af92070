"""The desk: who is granted what, and when. One synchronous function decides, and is called whenever anything changes.

It asks the scheduler about the first in line, has the driver wake whom it granted, and sets the driver for the next.
Knows nothing of how a rate is computed (it never multiplies or divides) or of HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.alarm import Alarm
from aiorate.clock import Timeline
from aiorate.filler import Filler
from aiorate.forecast import ahead, pay
from aiorate.line import FAILED, GRANTED, WAITING, Line, Ticket
from aiorate.rate import NS_PER_SECOND
from aiorate.schedulers.token_pool import TokenPool
from aiorate.till import Till, running_loop

if TYPE_CHECKING:
    import asyncio

    from aiorate.clock import Clock
    from aiorate.forecast import Forecast
    from aiorate.schedulers.interface import Scheduler

__all__ = ["Desk"]


class Desk(Till):
    """The state of a limiter and what becomes of it; `aiorate.Limiter` is its face."""

    __slots__ = (
        "__weakref__",
        "_cancelled",
        "_closed",
        "_debt",
        "_debt_since",
        "_driver",
        "_forecast",
        "_line",
        "_name",
        "_refunded",
        "_refused",
        "_returned",
        "_skipped",
        "_timeline",
        "_waited_max",
        "_waited_total",
    )

    def __init__(self, scheduler: Scheduler, catch_up: int, precise: bool, clock: Clock | None, name: str | None) -> None:
        super().__init__(scheduler, catch_up)
        self._name = name
        self._line = Line()
        self._timeline = Timeline(clock, self._released, precise)
        self._now = self._timeline.now  # while nothing is held up
        self._driver: Alarm | Filler
        if isinstance(scheduler, TokenPool):
            self._driver = Filler(self._serve, self._fail, self._timeline, name)
        else:
            self._driver = Alarm(self._serve, self._timeline)
        self._closed = False
        self._debt = 0
        self._debt_since = 0
        self._forecast: Forecast | None = None
        # Counted since the beginning: permits, requests, nanoseconds.
        self._returned: int = 0
        self._refunded = 0
        self._skipped = 0
        self._refused = 0
        self._cancelled = 0
        self._waited_total = 0
        self._waited_max = 0

    def _enter(self) -> int:
        """Begin any call: find the running loop, grant what is due by now, and say what time it is."""
        loop = running_loop()
        if loop is not self._loop:
            self._attach(loop)
        now = self._timeline.now()
        if self._batch:
            self._settle(now)
        if self._busy and (not self._line or self._due is None or self._due <= now or self._timeline.held):
            self._serve()
        return now

    def _attach(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Move to another loop: the budget stays, those who wait on a dead one go."""
        old = self._loop
        if old is not None and old.is_running():
            raise RuntimeError(
                "this limiter is in use by another running event loop; make one limiter per loop,"
                " or call it through asyncio.run_coroutine_threadsafe()."
            )
        if loop is None and (old is None or not old.is_closed()):
            return
        if old is not None:
            for ticket in self._line.clear():
                ticket.error = RuntimeError("the limiter was moved to another event loop while this one stood still")
                ticket.state = FAILED
                if not old.is_closed():
                    ticket.wake()
            self._driver = self._driver.successor()
            self._due = self._forecast = self._behind = None
            self._putting_back = False
            self._busy = self._blocked = bool(self._debt) or self._timeline.held or self._closed
        self._loop = loop
        if loop is not None:
            self._timeline.attach(loop)
        self._now = self._timeline.moving()

    def _serve(self) -> None:
        """Grant all that is due, in order, and set the driver for the next."""
        timeline, line, scheduler = self._timeline, self._line, self._scheduler
        due: int | None = None
        try:
            now = timeline.now()
            if self._debt:
                due = self._pay(now)
            if due is None and (ticket := line.first()) is not None:
                earliest = now - self._catch_up
                late = self._due is not None and self._due < earliest and not timeline.held
                spilled: int = getattr(scheduler, "spilled", 0) if late else 0
                reading, take = now + timeline.offset, self._take
                while ticket is not None:
                    if timeline.held:
                        due = max(ahead(self._scheduler, timeline).peek(ticket.permits, now), now)
                        break
                    since = ticket.since
                    at = take(ticket.permits, now, since if since > earliest else earliest)
                    if at > now:
                        due = at
                        break
                    self._taken += ticket.permits
                    ticket.at = at
                    ticket.granted_at = now
                    ticket.waited = reading - ticket.asked
                    ticket.mark = self._taken
                    ticket.state = GRANTED
                    ticket.wake()
                    ticket = line.serve()
                    if ticket is None and at < now:
                        self._behind = at, now
                if late:
                    self._skipped += max(0, scheduler.rate.permits_in(getattr(scheduler, "spilled", 0) - spilled))
                    self._forecast = None
        except Exception as error:
            if self._turn_away_too_large():
                self._serve()
                return
            self._fail(error)
        self._due = due
        self._blocked = bool(self._debt) or timeline.held or self._closed
        if line:
            self._busy = True
            self._set_out(due)
        else:
            self._busy = self._blocked
            self._forecast = None
            self._driver.arm(None)

    def _set_out(self, due: int | None) -> None:
        """Have the driver decide again then."""
        try:
            self._driver.arm(None if due is None else self._timeline.clock_at(due))
        except Exception as error:  # a broken clock
            self._driver.arm(None)
            self._fail(error)

    def _pay(self, now: int) -> int | None:
        """Take what is due of the debt; for when the rest is scheduled, if any is left."""
        if self._timeline.held:
            chunk = min(self._debt, self._scheduler.max_permits or self._debt)
            return max(ahead(self._scheduler, self._timeline).peek(chunk, self._debt_since), self._debt_since)
        self._debt, self._debt_since, due = pay(self._scheduler, self._debt, self._debt_since, now)
        return due

    def _send_away(self, ticket: Ticket, error: BaseException) -> None:
        ticket.state, ticket.error = FAILED, error
        ticket.wake()

    def _fail(self, error: BaseException) -> None:
        """Send everybody in line away with an error: nobody hangs, and the limiter works on."""
        for ticket in self._line.clear():
            self._send_away(ticket, error)
        self._busy, self._forecast = self._blocked, None

    def _turn_away_too_large(self) -> bool:
        """Whether anybody in line asks for more than can be granted since the rate was changed; all of them are sent away."""
        most = self._scheduler.max_permits
        too_large = [ticket for ticket in self._line if most is not None and ticket.permits > most]
        for ticket in too_large:
            self._send_away(ticket, ValueError(f"acquire({ticket.permits}) can no longer be granted: {most} is the most at once now."))
            self._line.leave(ticket)
        return bool(too_large)

    def _join(self, permits: int, now: int, since: int) -> Ticket:
        """Stand in line, refused at now; the driver says what to await then, if the ticket is not decided at once."""
        timeline = self._timeline
        if self._loop is None:
            raise RuntimeError("acquire() can only wait in a running asyncio event loop; try_acquire() and delay() work without one.")
        ticket: Ticket = self._driver.ticket(self._loop)
        ticket.permits = permits
        ticket.since = since
        ticket.asked = timeline.read() if self._blocked else now + timeline.offset
        ticket.state = WAITING
        self._line.join(ticket)
        if self._forecast is not None:
            self._forecast.add(permits, since)
        if not self._busy:
            self._busy = True
            self._set_out(self._due)
        elif self._blocked:
            self._serve()
        return ticket

    async def _stand(self, ticket: Ticket) -> None:
        """Until the ticket is decided; whoever goes before that leaves no hole."""
        if not ticket.state:
            try:
                await ticket.wait()
            except BaseException:
                self._leave(ticket)
                raise

    def _waited(self, ticket: Ticket) -> float:
        """What a decided ticket comes to: the seconds waited, or its error."""
        if ticket.state == FAILED:
            raise ticket.error
        waited = ticket.waited
        if waited <= 0:
            return 0.0
        self._waited_total += waited
        if waited > self._waited_max:
            self._waited_max = waited
        return waited / NS_PER_SECOND

    def _leave(self, ticket: Ticket) -> None:
        """Go before or just after the grant: nothing is spent, and the next moves up at once."""
        self._cancelled += 1
        if ticket.state == FAILED:
            return
        self._forecast = None
        alive = self._loop is not None and not self._loop.is_closed()
        if ticket.state == WAITING:
            first = self._line.first() is ticket
            self._line.leave(ticket)
            if first and alive:
                self._serve()
            return
        now = self._timeline.now()
        heir = self._line.first()
        # What is booked late counts as on time within catch_up; strategies that ignore since allow that only to those who
        # stood in line at the time of the grant, and would have had it.
        on_time = heir is not None and heir.since <= ticket.granted_at
        allowed = self._catch_up if on_time or getattr(self._scheduler, "books_since", True) else 0
        if (
            heir is not None
            and heir.permits == ticket.permits
            and not self._debt
            and not self._timeline.held
            and now - ticket.granted_at <= allowed
        ):
            # The very same grant is handed on: exact for every strategy, whatever was taken in between.
            self._line.serve()
            heir.at, heir.granted_at, heir.mark = ticket.at, now, ticket.mark
            heir.waited = now + self._timeline.offset - heir.asked
            heir.state = GRANTED
            heir.wake()
        else:
            self._returned += ticket.permits
            # A strategy that paces can only undo the latest take; any other slot is lost rather than invented.
            if getattr(self._scheduler, "refundable", False) or ticket.mark == self._taken:
                self._scheduler.give_back(ticket.permits, now)
        if alive:
            self._serve()

    def _released(self, held_for: int) -> None:
        self._now = self._timeline.moving()
        shift = getattr(self._scheduler, "shift", None)
        if shift is not None:
            shift(held_for)
