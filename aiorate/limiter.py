"""The Limiter: what users call. It checks what is asked; the desk decides.

Knows nothing of how a rate is computed (it never multiplies or divides) or of HTTP.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, TypeVar

from aiorate.errors import LimiterClosed, LineFull, WaitTooLong
from aiorate.forecast import estimate
from aiorate.leaving import leave
from aiorate.rate import Rate, ns_to_seconds, seconds_to_ns
from aiorate.schedulers.interface import check_permits
from aiorate.schedulers.token_pool import TokenPool
from aiorate.steering import Steering

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import TracebackType
    from typing import Any

    from typing_extensions import TypeIs

    from aiorate.clock import Clock
    from aiorate.decorate import Weighted
    from aiorate.rate import Number
    from aiorate.schedulers.interface import Scheduler
    from aiorate.slots import Slot
    from aiorate.statistics import Statistics

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["Limiter"]

_CATCH_UP, _CATCH_UP_NS = 0.02, 20_000_000  # the default, not to be read digit by digit for every limiter
_ONE = 1  # compared by identity, which is fast and leaves out True; another 1 merely takes the longer way


class Limiter(Steering):
    """Grants permits at a rate, in the order asked, to the coroutines of one event loop.

    ``rate_or_scheduler`` is a strategy such as ``TokenBucket("10/s", burst=20)``, or a rate (a `Rate`, text such as
    ``"100/s"``, or a number per second) for a `TokenPool`. ``catch_up`` is how many seconds a late event loop may make up for
    at once; what was missed beyond is skipped and counted. ``max_waiting`` is how many may stand in line at most. ``precise``
    wakes waiters within tens of microseconds by a kernel timer (Linux) instead of the loop's, which are a millisecond coarse;
    elsewhere it changes nothing. ``clock`` is for tests; ``name`` appears in the filler task's name and in ``repr()``.

    Not a concurrency limit (see `asyncio.Semaphore`): leaving ``async with`` gives nothing back. May be made without a loop, and
    used in one loop after the other, but not in two at a time. Not thread-safe.
    """

    __slots__ = ("_max_waiting",)

    def __init__(
        self,
        rate_or_scheduler: Scheduler | Rate | str | Number,
        *,
        catch_up: Number = _CATCH_UP,
        max_waiting: int | None = None,
        precise: bool = False,
        clock: Clock | None = None,
        name: str | None = None,
    ) -> None:
        if isinstance(rate_or_scheduler, type):
            kind = rate_or_scheduler.__name__
            raise TypeError(f"Limiter({kind}): pass a scheduler made with its rate, {kind}('10/s', ...).")
        scheduler = rate_or_scheduler if _is_scheduler(rate_or_scheduler) else TokenPool(rate_or_scheduler)
        if max_waiting is not None and max_waiting != 0:
            check_permits("Limiter(max_waiting)", max_waiting)
        elif max_waiting is not None and type(max_waiting) is not int:
            raise TypeError(f"Limiter(max_waiting) must be an int of 0 or more, not {type(max_waiting).__name__}.")
        if not isinstance(precise, bool):
            raise TypeError(f"Limiter(precise) must be True or False, not {type(precise).__name__}.")
        if clock is not None and not hasattr(clock, "now"):
            raise TypeError(f"Limiter(clock) must have a method now() -> int, as aiorate.testing.ManualClock has; {clock!r} has none.")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"Limiter(name) must be text, not {type(name).__name__}.")
        ns = _CATCH_UP_NS if catch_up is _CATCH_UP else seconds_to_ns(catch_up, "Limiter(catch_up)")
        super().__init__(scheduler, ns, precise, clock, name)
        self._max_waiting = max_waiting

    # Asking.

    async def acquire(self, permits: int = 1, *, max_wait: Number | None = None) -> float:
        """Wait in line until the permits are granted; returns the seconds waited, 0.0 if none.

        Raises `WaitTooLong` at once if it would take longer than ``max_wait`` seconds, `LineFull` if ``max_waiting`` are
        waiting, `LimiterClosed`; nothing is spent then. ValueError if so many can never be granted. Cancelled while waiting, or
        granted but not yet run: nothing is spent, and the next in line moves up at once.
        """
        if (hand := self._hand) and permits is _ONE and max_wait is None:
            self._hand = hand - 1
            return 0.0
        if permits is not _ONE:
            self._check("acquire()", permits)
        elif max_wait is None and self._straight and self._home._thread_id == get_ident():
            now = self._now()
            if self._take(self._scheduler, 1, now) <= now:
                self._taken += 1
                return 0.0
        limit = None if max_wait is None else seconds_to_ns(max_wait, "acquire(max_wait)")
        refused = self._grab(permits, limit is None and self._max_waiting is None)
        if refused is None:
            return 0.0
        if limit is not None or self._max_waiting is not None or self._closed:
            self._admit(permits, refused, limit)
        ticket, asked = self._join(permits, refused, refused)
        line = self._line
        # As in _slot(): a coroutine for both would cost each of 100 000 waiters more than the waiting itself.
        try:
            while not ticket.done():
                await self._driver.wait(ticket)  # type: ignore[union-attr,arg-type]  # by the driver that made it
        except BaseException:
            leave(self, line, ticket, permits)
            raise
        return self._waited(ticket.result(), asked)

    def try_acquire(self, permits: int = 1) -> bool:
        """Take the permits if they are to be had at once and nobody is in line; never waits."""
        if permits is _ONE:
            if self._hand:
                self._hand -= 1
                return True
        else:
            self._check("try_acquire()", permits)
        if self._grab(permits) is None:
            return True
        if self._closed:
            raise LimiterClosed("try_acquire(): the limiter is closed; apply a spec with the verb 'start' to reopen it.")
        self._refused += 1
        return False

    async def __aenter__(self) -> float:
        """Acquire one permit; the target is the seconds waited."""
        if self._hand:
            self._hand -= 1
            return 0.0
        return await self.acquire()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing: a permit is used up by starting."""

    def of(self, permits: int) -> Weighted:
        """So many permits at once: ``async with limiter.of(5):``, or ``@limiter.of(5)``."""
        self._check("of()", permits)
        from aiorate.decorate import Weighted

        return Weighted(self, permits)

    def __call__(self, function: F) -> F:
        """Decorate a coroutine function or an async generator function: each call acquires one permit first."""
        from aiorate.decorate import limited

        return limited(self.acquire, function)

    def slots(self) -> AsyncGenerator[Slot, None]:
        """Open-loop pacing: one slot after the other, each saying when it was meant to start.

        A slot stands in line from the moment the one before it was granted, so a slow body is made up for, up to
        ``catch_up``; slots beyond are skipped, which shows as a gap in ``index`` and in ``statistics().skipped``.
        """
        from aiorate.slots import slots

        return slots(self)

    async def _slot(self, since: int, count: bool) -> int:
        """The instant of the next slot for one who stands in line since then; whether to count what is skipped."""
        now = self._enter()
        spilled: int = getattr(self._scheduler, "spilled", 0)
        at = None if self._busy else self._take(self._scheduler, 1, now, since)
        if at is not None and at <= now:
            self._taken += 1
            if count:
                self._skipped += self._scheduler.rate.permits_in(getattr(self._scheduler, "spilled", 0) - spilled)
            return at
        if at is not None:
            self._due = at
        self._admit(1, now, None)
        ticket, asked = self._join(1, now, since, slot=True)
        line = self._line
        try:
            while not ticket.done():
                await self._driver.wait(ticket)  # type: ignore[union-attr,arg-type]  # by the driver that made it
        except BaseException:
            del line.slots[ticket]
            leave(self, line, ticket, 1)
            raise
        at = line.slots.pop(ticket)
        self._waited(ticket.result(), asked)
        return at

    def _admit(self, permits: int, now: int, limit: int | None) -> None:
        """Raise unless the request may stand in line."""
        if self._closed:
            raise LimiterClosed("acquire(): the limiter is closed; apply a spec with the verb 'start' to reopen it.")
        if self._max_waiting is not None and len(self._line) >= self._max_waiting:
            self._refused += 1
            raise LineFull(f"acquire({permits}): {len(self._line)} are waiting, and max_waiting is {self._max_waiting}. Try later.")
        if limit is not None:
            wait = estimate(self, permits, now)
            if wait is None or wait > limit:
                self._refused += 1
                seconds = float("inf") if wait is None else ns_to_seconds(wait)
                raise WaitTooLong(
                    f"acquire({permits}) would wait {seconds:.6g} s, and max_wait is {ns_to_seconds(limit):g} s."
                    " Nothing was spent; try later, or allow more.",
                    seconds,
                    ns_to_seconds(limit),
                )

    def _check(self, call: str, permits: int) -> None:
        check_permits(call, permits, self._scheduler.max_permits)

    # Looking.

    @property
    def rate(self) -> Rate:
        """The rate in force."""
        return self._scheduler.rate

    @property
    def scheduler(self) -> Scheduler:
        """The strategy, for looking at; change it through the limiter."""
        return self._scheduler

    @property
    def lag(self) -> float:
        """Seconds behind schedule: the wait time of a load test."""
        return ns_to_seconds(self._scheduler.lag(self._enter()))

    def delay(self, permits: int = 1) -> float:
        """Seconds that a request made now would wait, the line included; infinite while stopped. Changes nothing."""
        self._check("delay()", permits)
        wait = estimate(self, permits, self._enter())
        return float("inf") if wait is None or self._closed else ns_to_seconds(wait)

    def bound(self, seconds: Number, largest: int = 1) -> int | None:
        """The guarantee: the most permits granted in any window of so many seconds, if no request is for more than largest.

        None: no bound. A strategy that makes up for lateness is bounded as for a window longer by ``catch_up``.
        """
        check_permits("bound(largest)", largest)
        window = seconds_to_ns(seconds, "bound()")
        if window < 1:
            raise ValueError(f"bound() must be given more than 0 seconds; {seconds!r} was given.")
        return self._scheduler.bound_when_late(window, largest, self._catch_up)

    def statistics(self) -> Statistics:
        """A snapshot of the counters."""
        from aiorate.statistics import snapshot

        self._enter()
        return snapshot(self)

    def __repr__(self) -> str:
        name = f" {self._name!r}" if self._name else ""
        state = ", closed" if self._closed else ", stopped" if self._timeline.stopped else ", paused" if self._timeline.held else ""
        return f"<Limiter{name} {self._scheduler!r}, {len(self._line)} waiting{state}>"


def _is_scheduler(thing: Scheduler | Rate | str | Number) -> TypeIs[Scheduler]:
    return hasattr(thing, "take")
