"""The Limiter for a whole process: one budget, and one line, for any number of event loops in any threads and for synchronous code.

All threading is here. Each step that a limiter takes in one loop runs here in a critical section, one thread at a time, which is never
held across a wait. Made by ``Limiter(..., scope="process")``. Computes no schedule, and knows nothing of HTTP.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from weakref import ref

from aiorate.errors import LimiterClosed
from aiorate.limiter import CLOSED, Limiter
from aiorate.rate import NS_PER_SECOND, duration_to_ns, ns_to_seconds
from aiorate.waiting.deadlines import Patience
from aiorate.waiting.loops import running_loop, turnstile_here
from aiorate.waiting.process.driver import ProcessDriver
from aiorate.waiting.process.section import Section
from aiorate.waiting.process.view import ProcessLoop
from aiorate.waiting.request import hold_place, refuse_holder

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from datetime import timedelta

    from aiorate.feedback import Feedback
    from aiorate.rate import Number, Rate
    from aiorate.schedulers.interface import Scheduler
    from aiorate.slots import Slot, SlotCount
    from aiorate.spec import RateSpec
    from aiorate.statistics import Statistics
    from aiorate.waiting.clock import Clock
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.process.inbox import ProcessTicket
    from aiorate.waiting.turnstile import Turnstile

__all__ = ["ProcessLimiter"]

P = ParamSpec("P")
T = TypeVar("T")

_LOOK_AGAIN = 1.0  # seconds: on Windows, Ctrl-C is not heeded before
_ONE = 1  # compared by identity, as in Limiter


class ProcessLimiter(Limiter):
    """A `Limiter` that any thread may call. It adds no attributes: its driver knows the section and the loops."""

    __slots__ = ()

    @classmethod
    def adopt(cls, limiter: Limiter, clock: Clock | None, precise: bool) -> None:
        """Turn a new limiter into a ProcessLimiter, so that other limiters do not pay for the second kind."""
        limiter.__class__ = cls
        assert isinstance(limiter, ProcessLimiter)
        limiter.stand_in(Section(), clock, precise)

    def stand_in(self, section: Section, clock: Clock | None, precise: bool) -> None:
        """Move the line, and that for places, into the section."""
        dispatcher = self._dispatcher
        loop = ProcessLoop(section, clock, precise, dispatcher.name)
        dispatcher.attach(loop, ProcessDriver(dispatcher, loop))
        if self._room is not None:
            room = self._room.dispatcher
            room.attach(loop, ProcessDriver(room, loop))
        section.on_fork = partial(_stand_anew, ref(self), section, clock, precise)
        section.on_cut = partial(_go_on, ref(self))

    def go_on(self) -> None:
        """Wake every request that was decided, and set the timers for the waiting ones again, from the start."""
        for line in (self._room, self):
            if line is not None:
                dispatcher = line.dispatcher
                dispatcher.go_on(_process_driver(dispatcher).wake_again())

    # Asking.

    async def acquire(self, permits: int = 1, *, max_wait: Number | timedelta | None = None) -> float:
        if permits is not _ONE:
            self._check("acquire()", permits)
        limit = None if max_wait is None else duration_to_ns(max_wait, "acquire(max_wait)")
        driver = self._driver
        turnstile = _starved(driver.loop)
        if turnstile is not None:
            ticket = await self._ask_in_turn(turnstile, len(self._dispatcher.line) > 0, self._ask, permits, limit)
        else:
            ticket = driver.loop.section.run(self._ask, permits, limit)
        return 0.0 if ticket is None else (await _wait(driver, ticket))[0] / NS_PER_SECOND

    def acquire_blocking(self, permits: int = 1, *, max_wait: Number | timedelta | None = None, timeout: None = None) -> float:
        if timeout is not None:
            from aiorate.mistakes import NO_TIMEOUT

            raise TypeError(NO_TIMEOUT)
        if permits is not _ONE:
            self._check("acquire_blocking()", permits)
        limit = None if max_wait is None else duration_to_ns(max_wait, "acquire_blocking(max_wait)")
        if running_loop() is not None:
            raise RuntimeError("acquire_blocking() would block the event loop that runs in this thread. Await acquire() instead.")
        driver = self._driver
        section = driver.loop.section
        mine: list[ProcessTicket] = []  # what has to be undone, whenever this is interrupted
        try:
            ticket = section.run(self._ask, permits, limit, mine)
            if ticket is None:
                return 0.0
            while ticket.outcome is None:
                ticket.signal.acquire(timeout=_LOOK_AGAIN)
            return section.run(driver.resume, ticket)[0] / NS_PER_SECOND
        except BaseException:
            for ticket in mine:
                section.post(partial(driver.withdraw, ticket))
            raise

    def try_acquire(self, permits: int = 1) -> bool:
        if permits is not _ONE:
            self._check("try_acquire()", permits)
        return self._driver.loop.section.run(self._try, permits)

    async def __aenter__(self) -> float:
        return await self.enter(1)

    async def enter(self, permits: int) -> float:
        if self._room is None:
            return await self.acquire(permits)
        self._check("acquire()", permits)
        driver, room = self._driver, self._room.dispatcher
        places = _process_driver(room)
        section = driver.loop.section
        turnstile = _starved(driver.loop)
        if turnstile is not None:
            waits = len(room.line) > 0 or len(self._dispatcher.line) > 0
            asked, inside, ticket = await self._ask_in_turn(turnstile, waits, self._ask_for_place, permits)
        else:
            asked, inside, ticket = section.run(self._ask_for_place, permits)
        waited = 0.0
        if not inside:
            assert ticket is not None
            place = ticket
            try:
                refuse_holder(room)
                while place.outcome is None:
                    await places.wait(place)
                waited, ticket = section.run(self._move_up, place, permits, asked)
            except BaseException:
                section.post(partial(places.withdraw, place))
                raise
        hold_place(room)
        if ticket is None:
            return waited
        try:
            return ns_to_seconds((await _wait(driver, ticket))[0])
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        if self._room is not None:
            # Put off if this is a finalizer's, in the middle of a decision.
            self._driver.loop.section.post(super().leave)

    async def slots(self) -> AsyncGenerator[Slot, None]:
        from aiorate.slots import SlotCount

        driver, count = self._driver, SlotCount(self._dispatcher)
        while True:
            turnstile = _starved(driver.loop)
            if turnstile is not None:
                await turnstile.wait()
            at, ticket = driver.loop.section.run(self._ask_for_slot, count)
            if ticket is not None:
                at = (await _wait(driver, ticket))[1]
            yield driver.loop.section.run(count.slot, at)

    async def _ask_in_turn(self, turnstile: Turnstile, waits: bool, ask: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Ask in the section, and let the loop turn first, while nothing is spent; unless others wait.

        A request in line lets it turn anyway. Of thousands that come at once, none should yield again and again before it joins the line.
        """
        if not waits:
            await turnstile.wait()
        try:
            return self._driver.loop.section.run(ask, *args, **options)
        except Exception:
            if waits:  # refused at once, and perhaps asked again at once
                await turnstile.wait()
            raise

    # What is asked, in the section.

    @property
    def _driver(self) -> ProcessDriver:
        return _process_driver(self._dispatcher)

    def _try(self, permits: int) -> bool:
        at, now = self._dispatcher.try_take(permits)
        if at <= now:
            return True
        self._driver.loop.clear_closed()
        return super().try_acquire(permits)

    def _ask(self, permits: int, limit: int | None, mine: list[ProcessTicket] | None = None) -> ProcessTicket | None:
        """Take the permits (returns None), or stand in line (returns the ticket). Raises if the request may not stand there."""
        dispatcher = self._dispatcher
        at, now = dispatcher.try_take(permits)
        if at > now and self._driver.loop.clear_closed():
            at, now = dispatcher.try_take(permits)
        if at <= now:
            return None
        call = "acquire" if mine is None else "acquire_blocking"
        self._admit(permits, now, limit, call)
        patience = None if limit is None else Patience(f"{call}({permits})", limit)
        return _join(dispatcher, permits, at, now, now, mine, patience)

    def _ask_for_place(self, permits: int) -> tuple[int, bool, ProcessTicket | None]:
        """Returns the reading now; whether a place was free; and the ticket for it, or for the permits, if either must be waited for."""
        assert self._room is not None
        dispatcher, room = self._dispatcher, self._room.dispatcher
        at, now = room.try_take(1)
        if at > now and self._driver.loop.clear_closed():
            at, now = room.try_take(1)
        asked = dispatcher.timeline.read()
        if at <= now:
            try:
                return asked, True, self._ask(permits, None)
            except BaseException:
                super().leave()
                raise
        dispatcher.look()
        self._refuse_if_closed()
        if self._max_waiting is not None:
            self._refuse_if_full(permits)
        return asked, False, _join(room, 1, at, now, now)

    def _move_up(self, ticket: ProcessTicket, permits: int, asked: int) -> tuple[float, ProcessTicket | None]:
        """Move from the line for places to that for permits, in one step: the seconds waited, and the ticket if it waits on.

        Already admitted, and still waiting: ``max_waiting`` is not checked again.
        """
        assert self._room is not None
        _process_driver(self._room.dispatcher).resume(ticket)
        dispatcher = self._dispatcher
        try:
            at, now = dispatcher.try_take(permits)
            if at > now:
                self._refuse_if_closed()
                ticket = _join(dispatcher, permits, at, now, now)
                ticket.asked = asked
                return 0.0, ticket
            waited = max(dispatcher.timeline.read() - asked, 0)
            if waited:
                dispatcher.counters.note(waited)
            return ns_to_seconds(waited), None
        except BaseException:
            super().leave()
            raise

    def _ask_for_slot(self, count: SlotCount) -> tuple[int, ProcessTicket | None]:
        """The instant for which the next slot is scheduled, and the ticket if it must be waited for."""
        dispatcher = self._dispatcher
        since = count.open()
        at, now = dispatcher.try_take(1, since)
        if at > now:
            self._admit(1, now, None)
            return at, _join(dispatcher, 1, at, now, since)
        count.granted_at_once()
        return at, None

    def _refuse_if_closed(self) -> None:
        if self._dispatcher.is_closed:
            raise LimiterClosed(f"acquire(): {CLOSED}")

    # Changing, for those in line too.

    def set_rate(self, rate: Rate | str | Number, *, member: int | None = None) -> None:
        self._command(partial(super().set_rate, rate, member=member))

    def pause(self, seconds: Number | timedelta) -> None:
        self._command(partial(super().pause, seconds))

    def observe(self, feedback: Feedback | None, *, jitter: Number = 0) -> None:
        self._command(partial(super().observe, feedback, jitter=jitter))

    def resume(self) -> None:
        self._command(super().resume)

    def refund(self, permits: int) -> None:
        self._command(partial(super().refund, permits))

    def charge(self, permits: int) -> None:
        self._command(partial(super().charge, permits))

    def reset(self) -> None:
        self._command(super().reset)

    def apply(self, spec: RateSpec | str) -> None:
        self._command(partial(super().apply, spec))

    def _command(self, call: Callable[[], None]) -> None:
        self._driver.loop.section.command(call)

    async def aclose(self) -> None:
        driver = self._driver
        driver.loop.section.run(self._shut)
        await driver.aclose()

    def _shut(self) -> None:
        error = LimiterClosed("acquire(): the limiter was closed while this request was waiting.")
        if self._room is not None:
            self._room.dispatcher.fail(error)
            self._room.dispatcher.serve()
        self._dispatcher.shut(error)

    # Looking.

    @property
    def rate(self) -> Rate:
        return self._driver.loop.section.look(lambda: super(ProcessLimiter, self).rate)

    @property
    def scheduler(self) -> Scheduler:
        return self._driver.loop.section.look(lambda: super(ProcessLimiter, self).scheduler)

    @property
    def lag(self) -> float:
        return self._look(lambda: super(ProcessLimiter, self).lag)

    def delay(self, permits: int = 1) -> float:
        return self._look(partial(super().delay, permits))

    def bound(self, seconds: Number, largest: int = 1) -> int | None:
        return self._driver.loop.section.look(partial(super().bound, seconds, largest))

    def statistics(self) -> Statistics:
        return self._look(super().statistics)

    def _look(self, question: Callable[[], T]) -> T:
        """Answer the question once requests of closed loops have left."""
        loop = self._driver.loop

        def answer() -> T:
            loop.clear_closed()
            return question()

        return loop.section.run(answer)

    def __repr__(self) -> str:
        return self._driver.loop.section.look(super().__repr__)


def _process_driver(dispatcher: Dispatcher) -> ProcessDriver:
    driver = dispatcher.driver
    assert isinstance(driver, ProcessDriver)  # since its limiter was adopted
    return driver


def _starved(loop: ProcessLoop) -> Turnstile | None:
    """The turnstile to wait at, if the event loop that runs here must run its other tasks before a caller is answered at once."""
    turnstile = None if loop.manual else turnstile_here()
    return turnstile if turnstile is not None and turnstile.starved() else None


def _join(
    dispatcher: Dispatcher,
    permits: int,
    at: int,
    now: int,
    since: int,
    mine: list[ProcessTicket] | None = None,
    patience: Patience | None = None,
) -> ProcessTicket:
    """Join the line. ``mine`` is for threads without a loop: it gets the ticket before the line does."""
    if mine is None and running_loop() is None:
        raise RuntimeError("acquire() can only wait in a running event loop. In synchronous code, call acquire_blocking().")
    driver = _process_driver(dispatcher)
    if driver.loop.in_timekeeper:
        raise RuntimeError("acquire_blocking() inside on_event would deadlock. Call it from another thread.")
    ticket = driver.ticket()
    ticket.permits = permits
    if mine is not None:
        mine.append(ticket)
    _, ticket.asked = dispatcher.join(permits, at, now, since, ticket, patience)
    ticket.line = dispatcher.line
    return ticket


async def _wait(driver: ProcessDriver, ticket: ProcessTicket) -> tuple[int, int, int]:
    """Wait in line: ns waited, the instant for which the request was scheduled, that of its grant. Cancelled meanwhile, it is undone."""
    section = driver.loop.section
    try:
        while ticket.outcome is None:
            await driver.wait(ticket)
        return section.run(driver.resume, ticket)
    except BaseException:
        section.post(partial(driver.withdraw, ticket))
        raise


def _go_on(limiter: ref[ProcessLimiter]) -> None:
    """After an interrupted decision: requests that were decided are woken, and the waiting ones are served in time."""
    there = limiter()
    if there is not None:
        there.go_on()


def _stand_anew(limiter: ref[ProcessLimiter], section: Section, clock: Clock | None, precise: bool) -> None:
    """In a child process after a fork: the budget goes on, and the waiting requests are in the parent."""
    there = limiter()
    if there is not None:
        there.stand_in(section, clock, precise)
