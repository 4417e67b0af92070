"""The desk: who is granted what, and when. One synchronous function decides, and is called whenever anything changes.

It asks the scheduler about the first in line, has the driver wake whom it granted, and sets the driver for the next.
Knows nothing of how a rate is computed (it never multiplies or divides) or of HTTP.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiorate.alarm import Alarm
from aiorate.clock import Timeline
from aiorate.errors import LimiterClosed
from aiorate.filler import Filler
from aiorate.line import FAILED, WAITING, Line, Ticket
from aiorate.rate import NS_PER_SECOND
from aiorate.schedulers.token_pool import TokenPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.clock import Clock
    from aiorate.schedulers.interface import Scheduler

__all__ = ["Desk"]

_running_loop = asyncio._get_running_loop
_FAST_CALL_NS = 2_000


class Desk:
    """The state of a limiter and what becomes of it; `aiorate.Limiter` is its face."""

    __slots__ = (
        "__weakref__",
        "_batch",
        "_blocked",
        "_busy",
        "_cancelled",
        "_catch_up",
        "_closed",
        "_deals",
        "_dealt_at",
        "_debt",
        "_debt_since",
        "_driver",
        "_due",
        "_forecast",
        "_hand",
        "_line",
        "_loop",
        "_name",
        "_now",
        "_reads_ahead",
        "_refunded",
        "_refused",
        "_returned",
        "_scheduler",
        "_size",
        "_skipped",
        "_take",
        "_taken",
        "_timeline",
        "_waited_max",
        "_waited_total",
    )

    def __init__(self, scheduler: Scheduler, catch_up: int, precise: bool, clock: Clock | None, name: str | None) -> None:
        self._scheduler = scheduler
        self._catch_up = catch_up
        # The short way, unless a subclass has a `take` of its own.
        owner = next((kind for kind in type(scheduler).__mro__ if "take" in vars(kind)), type(scheduler))
        self._take: Callable[..., int] = scheduler.book if "book" in vars(owner) else scheduler.take  # type: ignore[attr-defined]
        self._reads_ahead = hasattr(scheduler, "seen")
        # Permits taken in one go, to be handed out one by one: how many are left of how many, and since when.
        self._hand = 0
        self._batch = 0
        self._size = 1
        self._dealt_at = 0
        self._deals: int = getattr(scheduler, "batch", 0)  # at most so many
        self._name = name
        self._line = Line()
        self._timeline = Timeline(clock, self._released, precise)
        self._now = self._timeline.now  # while nothing is held up
        self._driver: Alarm | Filler
        if isinstance(scheduler, TokenPool):
            self._driver = Filler(self._serve, self._fail, self._timeline, name)
        else:
            self._driver = Alarm(self._serve, self._timeline)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy = False  # whether anything stands between a newcomer and the scheduler
        self._blocked = False  # whether it is more than the line: a debt, a pause, being closed
        self._closed = False
        self._due: int | None = None  # for when the first in line, or the debt, is scheduled
        self._debt = 0
        self._debt_since = 0
        self._forecast: tuple[Scheduler, int] | None = None
        # Counted since the beginning: permits, requests, nanoseconds.
        self._taken: int = 0
        self._returned: int = 0
        self._refunded = 0
        self._skipped = 0
        self._refused = 0
        self._cancelled = 0
        self._waited_total = 0
        self._waited_max = 0

    def _enter(self) -> int:
        """Begin any call: find the running loop, grant what is due by now, and say what time it is."""
        loop = _running_loop()
        if loop is not self._loop:
            self._attach(loop)
        now = self._timeline.now()
        if self._batch:
            self._settle(now)
        if self._busy and (not self._line or self._due is None or self._due <= now or self._timeline.held):
            self._serve()
        return now

    def _grab(self, permits: int) -> int | None:
        """Take permits if nobody is in line and they are due: None; otherwise the time at which they were refused."""
        if _running_loop() is not self._loop or self._blocked:
            now = self._enter()
            if self._busy:
                return now
        elif self._busy:
            return self._now()
        elif self._reads_ahead and (seen := self._scheduler.seen) is not None and self._take(permits, seen) <= seen:  # type: ignore[attr-defined]
            # The latest reading proves it due: no need to read the clock.
            self._taken += permits
            return None
        else:
            now = self._now()
            if self._batch:
                self._settle(now)
        at = self._take(permits, now)
        if at > now:
            self._due = at
            return now
        self._taken += permits
        if self._deals:
            self._deal(now)
        return None

    def _deal(self, now: int) -> None:
        """While calls come fast, take a batch that is handed out by counting down, without reading the clock for each."""
        size = self._size
        if now - self._dealt_at < _FAST_CALL_NS * size:
            size = min(2 * size, self._deals)
        else:
            size = 1
        self._dealt_at = now
        if size > 1:
            if self._take(size, now) <= now:
                self._hand = self._batch = size
            else:
                size = 1
        self._size = size

    def _settle(self, now: int) -> None:
        """Book what was handed out as taken now, and the rest as never taken.

        Now is when it was handed out or later, so the scheduler never has more to give than it should: `bound` holds.
        """
        batch, used = self._batch, self._batch - self._hand
        self._hand = self._batch = 0
        self._scheduler.give_back(batch, now)
        if used:
            self._take(used, now)
            self._taken += used

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
                error = RuntimeError("the limiter was moved to another event loop while this one stood still")
                ticket.state, ticket.error = FAILED, error
                if not old.is_closed():
                    self._driver.wake(ticket)
            self._driver = self._driver.successor()
            self._due = self._forecast = None
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
                due = self._pay(scheduler, now)
            if due is None and (ticket := line.first()) is not None:
                earliest = now - self._catch_up
                late = self._due is not None and self._due < earliest and not timeline.held
                spilled: int = getattr(scheduler, "spilled", 0) if late else 0
                reading, take, wake = now + timeline.offset, self._take, self._driver.wake
                while ticket is not None:
                    if timeline.held:
                        due = max(self._ahead().peek(ticket.permits, now), now)
                        break
                    since = ticket.since
                    at = take(ticket.permits, now, since if since > earliest else earliest)
                    if at > now:
                        due = at
                        break
                    self._taken += ticket.permits
                    ticket.grant(at, now, reading, self._taken)
                    wake(ticket)
                    ticket = line.serve()
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
            self._driver.arm(None if due is None else timeline.clock_at(due))
        else:
            self._busy = self._blocked
            self._forecast = None
            self._driver.arm(None)

    def _pay(self, scheduler: Scheduler, now: int) -> int | None:
        """Take the debt, at the instants at which a first in line would have got it; when the rest is due, if any is left."""
        while self._debt:
            chunk = self._debt if scheduler.max_permits is None else min(self._debt, scheduler.max_permits)
            at = max(self._ahead().peek(chunk, self._debt_since), self._debt_since)
            if at > now or self._timeline.held:
                return at
            scheduler.take(chunk, at, at)
            self._debt_since = at
            self._debt -= chunk
        return None

    def _send_away(self, ticket: Ticket, error: BaseException) -> None:
        ticket.state, ticket.error = FAILED, error
        self._driver.wake(ticket)

    def _fail(self, error: BaseException) -> None:
        """Send everybody in line away with an error: nobody hangs, and the limiter works on."""
        for ticket in self._line.clear():
            self._send_away(ticket, error)

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
        ticket = Ticket(permits, since, timeline.read() if self._blocked else now + timeline.offset)
        self._line.join(ticket)
        if self._forecast is not None:
            self._forecast = self._replayed(self._forecast, permits, since)
        if not self._busy:
            self._busy = True
            self._driver.arm(None if self._due is None else timeline.clock_at(self._due))
        elif self._blocked:
            self._serve()
        return ticket

    def _waited(self, ticket: Ticket) -> float:
        """What a decided ticket comes to: the seconds waited, or its error."""
        if ticket.error is not None:
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
            heir.grant(ticket.at, now, now + self._timeline.offset, ticket.mark)
            self._driver.wake(heir)
        else:
            self._returned += ticket.permits
            # A strategy that paces can only undo the latest take; any other slot is lost rather than invented.
            if getattr(self._scheduler, "refundable", False) or ticket.mark == self._taken:
                self._scheduler.give_back(ticket.permits, now)
        if alive:
            self._serve()

    def _charge(self, permits: int, now: int) -> None:
        if not self._debt:
            self._debt_since = now
        self._debt += permits
        self._changed()

    def _changed(self) -> None:
        """Something changed for those in line too."""
        self._deals = getattr(self._scheduler, "batch", 0)
        self._forecast = None
        self._serve()

    def _released(self, held_for: int) -> None:
        self._now = self._timeline.moving()
        shift = getattr(self._scheduler, "shift", None)
        if shift is not None:
            shift(held_for)

    def _estimate(self, permits: int, now: int) -> int | None:
        """Nanoseconds until a request made now would be granted, the line included; None: nobody can say."""
        if not self._line and not self._debt:
            instant = max(self._ahead().peek(permits, now), now)
        else:
            if self._forecast is None:
                self._forecast = self._replay(now)
            copy, last = self._forecast
            last = max(last, now)
            instant = max(copy.peek(permits, last), last)
        if instant == now and not self._timeline.held:
            return 0
        reading = self._timeline.clock_at(instant)
        return None if reading is None else max(0, reading - self._timeline.read())

    def _ahead(self) -> Scheduler:
        """The scheduler as it will be when the present pause is over."""
        hold = self._timeline.hold if self._timeline.held else 0
        if not hold or getattr(self._scheduler, "shift", None) is None:
            return self._scheduler
        from copy import deepcopy

        copy = deepcopy(self._scheduler)
        copy.shift(hold)  # type: ignore[attr-defined]
        return copy

    def _replay(self, now: int) -> tuple[Scheduler, int]:
        """The scheduler as it will be once debt and line are served, and when that is."""
        from copy import deepcopy

        copy, debt, since = deepcopy(self._ahead()), self._debt, self._debt_since
        while debt:
            chunk = debt if copy.max_permits is None else min(debt, copy.max_permits)
            since = max(copy.peek(chunk, since), since)
            copy.take(chunk, since, since)
            debt -= chunk
        forecast = copy, max(now, since) if self._debt else now
        for ticket in self._line:
            if copy.max_permits is None or ticket.permits <= copy.max_permits:
                forecast = self._replayed(forecast, ticket.permits, ticket.since)
        return forecast

    def _replayed(self, forecast: tuple[Scheduler, int], permits: int, since: int) -> tuple[Scheduler, int]:
        copy, last = forecast
        at = max(copy.peek(permits, last), last)
        copy.take(permits, at, max(since, at - self._catch_up))
        return copy, at

    async def _close(self) -> None:
        self._closed = self._busy = True
        self._fail(LimiterClosed("the limiter was closed while this request stood in line"))
        self._serve()
        await self._driver.aclose()
