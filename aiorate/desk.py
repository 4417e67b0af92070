"""The desk: who is granted what, and when. One synchronous function decides, and is called whenever anything changes.

It asks the scheduler about the first in line, has the driver wake whom it granted, and sets the driver for the next.
Knows nothing of how a rate is computed (it never multiplies or divides) or of HTTP.
"""

from __future__ import annotations

from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING

from aiorate.alarm import Alarm
from aiorate.clock import Timeline
from aiorate.filler import Filler
from aiorate.forecast import ahead, pay
from aiorate.line import Line
from aiorate.rate import NS_PER_SECOND
from aiorate.schedulers.token_pool import TokenPool
from aiorate.till import Till, home_of, running_loop

if TYPE_CHECKING:
    import asyncio

    from aiorate.clock import Clock
    from aiorate.forecast import Forecast
    from aiorate.line import Outcome, Ticket
    from aiorate.schedulers.interface import Scheduler

__all__ = ["Desk"]

_NOBODY = Line()  # of all limiters for which nobody ever waited


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
        super().__init__(scheduler, catch_up, checked=clock is not None)
        self._name = name
        self._timeline = Timeline.of(clock, precise)
        self._now = self._timeline.read
        # Line and driver are made for the first who waits.
        self._line = _NOBODY
        self._driver: Alarm | Filler | None = None
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
        if self._home._thread_id != get_ident():
            self._find_loop()
        now = self._timeline.now()
        if self._batch:
            self._settle(now)
        if self._busy and (not self._line or self._due is None or self._due <= now or self._timeline.held):
            self._serve()
        return now

    def _find_loop(self) -> None:
        loop = running_loop()
        if loop is not self._loop:
            self._attach(loop)
        if loop is None and self._loop is None:
            self._own_timeline().begun = True
        self._refresh()

    def _own_timeline(self) -> Timeline:
        """The timeline, to be changed."""
        self._timeline = self._timeline.own()
        if self._driver is not None:
            self._driver.timeline = self._timeline
        return self._timeline

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
            error = RuntimeError("the limiter was moved to another event loop while this one stood still")
            for ticket in self._line.clear():
                with suppress(RuntimeError):  # a closed loop wakes nobody
                    ticket.set_result(error)
            if self._driver is not None:
                self._driver.retire()
            self._driver = self._due = self._forecast = self._behind = None
            self._line = _NOBODY
            self._putting_back = None
        if loop is not None:
            self._timeline = self._timeline.attach(loop, begun=old is not None)
            self._home = home_of(loop)
        self._loop = loop
        self._now = self._timeline.moving()

    def _refresh(self) -> None:
        """Derive what stands between a newcomer and the scheduler."""
        self._blocked = bool(self._debt) or self._timeline.held or self._closed
        self._busy = self._blocked or bool(self._line)
        self._straight = not (self._busy or self._reads_ahead or self._deals) and self._behind is None

    def _serve(self) -> None:
        """Grant all that is due, in order, and set the driver for the next."""
        timeline, line, scheduler, take = self._timeline, self._line, self._scheduler, self._take
        due: int | None = None
        try:
            now = timeline.now()
            if self._debt:
                due = self._pay(now)
            if due is None and (request := line.first()) is not None:
                if timeline.held:
                    due = max(ahead(scheduler, timeline).peek(request[1], now), now)
                    request = None
                earliest = now - self._catch_up
                late = self._due is not None and self._due < earliest and not timeline.held
                spilled: int = getattr(scheduler, "spilled", 0) if late else 0
                reading = now + timeline.offset
                latest, booked = None, now
                while request is not None:
                    ticket, permits, since = request
                    at = take(scheduler, permits, now, since if since > earliest else earliest)
                    if at > now:
                        due = at
                        break
                    self._taken += permits
                    if line.slots and ticket in line.slots:
                        line.slots[ticket] = at
                    ticket.set_result(reading)
                    latest, booked = ticket, at
                    request = line.serve()
                if latest is not None:
                    line.latest = latest, self._taken
                    if request is None and booked < now:
                        self._behind = booked, now
                if late:
                    self._skipped += max(0, scheduler.rate.permits_in(getattr(scheduler, "spilled", 0) - spilled))
                    self._forecast = None
        except Exception as error:
            if self._turn_away_too_large():
                self._serve()
                return
            self._fail(error)
        self._due = due
        self._refresh()
        first = line.first()
        if first is not None:
            line.head = first[0]
            self._set_out(due)
        else:
            self._forecast = None
            if self._driver is not None:
                self._driver.arm(None)

    def _set_out(self, due: int | None) -> None:
        """Have the driver decide again then."""
        driver = self._driver
        assert driver is not None  # it made the ticket of who waits
        try:
            driver.arm(None if due is None else self._timeline.clock_at(due))
        except Exception as error:  # a broken clock
            driver.arm(None)
            self._fail(error)

    def _pay(self, now: int) -> int | None:
        """Take what is due of the debt; for when the rest is scheduled, if any is left."""
        if self._timeline.held:
            chunk = min(self._debt, self._scheduler.max_permits or self._debt)
            return max(ahead(self._scheduler, self._timeline).peek(chunk, self._debt_since), self._debt_since)
        self._debt, self._debt_since, due = pay(self._scheduler, self._debt, self._debt_since, now)
        return due

    def _fail(self, error: BaseException) -> None:
        """Send everybody in line away with an error: nobody hangs, and the limiter works on."""
        for ticket in self._line.clear():
            ticket.set_result(error)
        self._forecast = None
        self._refresh()

    def _turn_away_too_large(self) -> bool:
        """Whether anybody in line asks for more than can be granted since the rate was changed; all of them are sent away."""
        most = self._scheduler.max_permits
        too_large = [] if most is None else [request for request in self._line if request[1] > most]
        for ticket, permits, _ in too_large:
            ticket.set_result(ValueError(f"acquire({permits}) can no longer be granted: {most} is the most at once now."))
            self._line.leave(ticket)
        return bool(too_large)

    def _join(self, permits: int, now: int, since: int, slot: bool = False) -> tuple[Ticket, int]:
        """Stand in line, refused at now: a ticket, and what the clock reads."""
        driver = self._driver or self._set_up()
        line, timeline = self._line, self._timeline
        ticket: Ticket = driver.ticket()
        if slot:
            line.slots[ticket] = now
        asked = timeline.read() if self._blocked else now + timeline.offset if timeline.offset else now
        line.join(ticket, permits, since)
        if self._forecast is not None:
            self._forecast.add(permits, since)
        if not self._busy:
            self._busy, self._straight = True, False
            line.head = ticket
            self._set_out(self._due)
        elif self._blocked:
            self._serve()
        return ticket, asked

    def _set_up(self) -> Alarm | Filler:
        """Make line and driver for the loop."""
        if self._loop is None:
            raise RuntimeError("acquire() can only wait in a running asyncio event loop; try_acquire() and delay() work without one.")
        self._line = Line()
        if isinstance(self._scheduler, TokenPool):
            self._driver = Filler(self._serve, self._fail, self._timeline, self._line, self._name)
        else:
            self._driver = Alarm(self._serve, self._timeline, self._loop)
        return self._driver

    def _waited(self, outcome: Outcome, asked: int) -> float:
        """What an outcome comes to: the seconds waited, or its error."""
        if isinstance(outcome, BaseException):
            raise outcome
        waited = outcome - asked
        if waited <= 0:
            return 0.0
        self._waited_total += waited
        if waited > self._waited_max:
            self._waited_max = waited
        return waited / NS_PER_SECOND

    def _outstayed(self, now: int) -> bool:
        # A clock that stands still until it is moved would never ring for who was refused for the sake of others.
        return not self._timeline.by_hand and super()._outstayed(now)

    def _released(self, held_for: int) -> None:
        self._now = self._timeline.moving()
        shift = getattr(self._scheduler, "shift", None)
        if shift is not None:
            shift(held_for)
