"""The Limiter: what users call. It checks what is asked, in seconds and permits; the dispatcher decides.

It computes no schedule and sets no timer. Knows nothing of HTTP. Half of its lines are the documentation of the public calls, which
belongs to the class that users look up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aiorate.errors import LimiterClosed, LineFull, WaitTooLong, check_count
from aiorate.options import check_on_wait, check_options, check_scope
from aiorate.rate import NO_BOUND, NS_PER_SECOND, Rate, duration_to_ns, ns_to_seconds
from aiorate.schedulers.interface import Scheduler, check_permits
from aiorate.several import strategy_of
from aiorate.waiting import changes
from aiorate.waiting.deciding import changing, deciding, looking
from aiorate.waiting.dispatcher import TURN, Dispatcher
from aiorate.waiting.entrance import Entrance
from aiorate.waiting.max_waiting import MaxWaiting
from aiorate.waiting.moving import find_loop
from aiorate.waiting.questions import estimate, is_closed, max_permits, shares_on_demand
from aiorate.waiting.refusals import ACQUIRE, CLOSED
from aiorate.waiting.timeline import NOT_ASKED
from aiorate.waiting.watcher import UNWATCHED

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import TracebackType
    from typing import Any, Literal, NoReturn

    from aiorate.decorator import Weighted
    from aiorate.events import Event
    from aiorate.feedback import Feedback
    from aiorate.rate import Duration, Number
    from aiorate.several import Limits
    from aiorate.slots import Slot, SlotCount
    from aiorate.spec import RateSpec
    from aiorate.statistics import Statistics
    from aiorate.totals import Totals
    from aiorate.waited import Waited
    from aiorate.waiting.clock import Clock
    from aiorate.waiting.line import Ticket

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["Limiter", "pause_to_ns"]

_wait_blocking: Callable[..., tuple[int, int, int | None]] | None = None  # once it is needed
_ONE = 1  # compared by identity, which is fast and leaves out True; another 1 merely takes the longer way


class Limiter:
    """Limit how often something happens, first come, first served.

    Callers wait in a queue and are let through at ``rate``::

        limiter = Limiter("100/s")

        async with limiter:
            await send()

    Create one limiter for each thing that has a limit, at import time if you like, and share it. A limiter that nobody is waiting for
    has no task, timer or thread.

    Args:
        rate: How fast to go: text such as ``"100/s"`` or ``"500/min"``, a number per second, or a `Rate`. To allow bursts, pass a strategy
            such as ``TokenBucket("10/s", burst=20)``. If several limits apply at once, pass a list of them.
        catch_up: How many seconds of lost time to make up for when the event loop is late. Permits missed before that are skipped, and
            counted in ``statistics().skipped``.
        max_waiting: How many callers may queue up; the next one gets `LineFull`. Unlimited by default.
        max_concurrency: How many ``async with`` blocks or decorated calls may run at once. A caller waits for a free place first and for
            its permit second, so it never holds a permit that it cannot use yet. Unlimited by default.
        precise: Wake callers within tens of microseconds, instead of about a millisecond. Linux only; has no effect elsewhere.
        scope: ``"loop"`` if the limiter is used in one event loop at a time. ``"process"`` shares it between all threads and event loops,
            synchronous code included; see `acquire_blocking`.
        clock: A different source of time, for tests.
        name: Shown in logs, metrics and ``repr()``.
        on_event: Called with an `Event` when a server asks for a pause, or when permits are skipped.
        on_wait: Called with a `Waited` after each wait; see `watch`.

    A limiter cannot be copied or pickled, because the copy would grant the same permits again.
    """

    __slots__ = ("__weakref__", "_dispatcher", "_entrance", "_max_waiting", "_meter")

    def __init__(
        self,
        rate: Limits,
        *,
        catch_up: Duration = 0.02,
        max_waiting: int | None = None,
        max_concurrency: int | None = None,
        precise: bool = False,
        scope: Literal["loop", "process"] = "loop",
        clock: Clock | None = None,
        name: str | None = None,
        on_event: Callable[[Event], object] | None = None,
        on_wait: Callable[[Waited], object] | None = None,
    ) -> None:
        scheduler = rate if isinstance(rate, Scheduler) else strategy_of("Limiter()", rate)
        if max_waiting is not None or clock is not None or name is not None or on_event is not None or on_wait is not None:
            check_options("Limiter", max_waiting, clock, name, on_event, on_wait)
        if not isinstance(precise, bool):
            raise TypeError(f"Limiter(precise) must be True or False, not {type(precise).__name__}.")
        if scope != "loop":
            self._check_scope(scope)
        self._dispatcher = Dispatcher(scheduler, duration_to_ns(catch_up, "Limiter(catch_up)"), precise, clock, name)
        self._dispatcher.notices.on_event = on_event
        self._meter = self._dispatcher.meter
        self._entrance: Entrance | None = None
        if max_concurrency is not None:
            check_count("Limiter(max_concurrency)", max_concurrency, ", or None (no bound)", least=1)
            self._entrance = Entrance(max_concurrency, self._dispatcher, clock)
        places = None if self._entrance is None else self._entrance.places
        self._max_waiting = None if max_waiting is None else MaxWaiting(max_waiting, self._dispatcher, places)
        if self._entrance is not None:
            self._entrance.most = self._max_waiting
        if scope != "loop":
            from aiorate.waiting.process.scope import widen

            widen([self._dispatcher] if places is None else [places, self._dispatcher], name)
        if on_wait is not None:
            self.watch(on_wait)

    def _check_scope(self, scope: str) -> None:
        check_scope("Limiter", scope)
        if type(self) is not Limiter:
            raise TypeError(f"{type(self).__name__}: a subclass of Limiter cannot have scope={scope!r}. Wrap a Limiter instead.")

    # Asking.

    async def acquire(self, permits: int = 1, *, max_wait: Duration | None = None) -> float:
        """Wait until it is your turn, and take the permits.

        If the task is cancelled while it waits, or this raises, nothing is spent and the next caller moves up.

        Args:
            permits: How many to take, all at once. Nobody who asked later is served first, even if they ask for fewer.
            max_wait: The longest you are prepared to wait, in seconds or as a timedelta. By default, as long as it takes.

        Returns:
            The seconds spent waiting, or 0.0 if there was no need to wait.

        Raises:
            WaitTooLong: It would take longer than ``max_wait``. Raised at once if that is certain now, otherwise when ``max_wait`` is
                over, for example because the limiter was paused in the meantime.
            LineFull: ``max_waiting`` callers are in the queue already.
            LimiterClosed: The limiter was closed.
            ValueError: The limiter can never grant that many permits at once.
        """
        limit = None if max_wait is None else duration_to_ns(max_wait, "acquire(max_wait)", NO_BOUND)
        if permits is not _ONE:
            self._check("acquire()", permits)
        elif self._meter.grab():
            return 0.0
        dispatcher = self._dispatcher
        section = None if dispatcher.loop is None else dispatcher.loop.section
        if section is None:  # as Dispatcher.ask(), without another call
            ticket, at, now = dispatcher.decide(permits, limit, self._max_waiting)
        else:
            ticket, at, now = section.run(dispatcher.decide, permits, limit, self._max_waiting)
        if ticket is None:
            return 0.0
        if ticket is TURN and dispatcher.loop is not None:
            await dispatcher.loop.turn()
            ticket, at, now = dispatcher.run(dispatcher.decide, permits, limit, self._max_waiting, ACQUIRE, None, None, True)
            if ticket is None:
                return 0.0
        waiters = dispatcher.waiters
        # As Dispatcher.wait(), without another coroutine.
        try:
            while not ticket.done():
                await waiters.driver.wait(ticket)
            if (waiters.resuming > 1 or at != NOT_ASKED) and waiters.loop.starved():
                await waiters.loop.turn()
        except BaseException:
            dispatcher.leave(waiters, ticket, permits)
            raise
        waited, at, now = dispatcher.resume(waiters, ticket, now, permits)
        return waited / NS_PER_SECOND

    def try_acquire(self, permits: int = 1) -> bool:
        """Take the permits if they are available right now, without waiting.

        Returns:
            Whether they were taken. False if somebody is waiting already: nobody overtakes the queue.
        """
        if permits is not _ONE:
            self._check("try_acquire()", permits)
        elif self._meter.grab(True):
            return True
        loop = self._dispatcher.loop
        if loop is not None and loop.section is not None:
            return loop.section.run(self._try, permits)
        at, now = self._dispatcher.take(permits)
        return at <= now or self._refuse_try()

    def _try(self, permits: int) -> bool:
        dispatcher = self._dispatcher
        at, now = dispatcher.take(permits)
        if at > now and dispatcher.loop is not None and dispatcher.loop.clear_closed():
            at, now = dispatcher.take(permits)
        return at <= now or self._refuse_try()

    def _refuse_try(self) -> bool:
        dispatcher = self._dispatcher
        find_loop(dispatcher)  # raises if another running loop uses the limiter
        if is_closed(dispatcher):
            raise LimiterClosed(f"try_acquire(): {CLOSED}")
        if shares_on_demand(dispatcher):
            raise ACQUIRE.no_lease("try_acquire()")
        dispatcher.counters.refused += 1
        return False

    def acquire_blocking(self, permits: int = 1, *, max_wait: Duration | None = None) -> float:
        """Wait in synchronous code, in any thread: the same as `acquire`, for a limiter with ``scope="process"``.

        If Ctrl-C interrupts the wait, nothing is spent.

        Raises:
            RuntimeError: The limiter has the scope of one event loop, or an event loop is running in this thread and would be blocked.
        """
        if permits is not _ONE:
            self._check("acquire_blocking()", permits)
        limit = None if max_wait is None else duration_to_ns(max_wait, "acquire_blocking(max_wait)", NO_BOUND)
        wait = _wait_blocking or _blocking_wait()
        waited, _, _ = wait(self._dispatcher, permits, limit, self._max_waiting)
        return waited / NS_PER_SECOND

    async def __aenter__(self) -> float:
        """Acquire one permit. ``as waited`` gets the seconds spent waiting. With ``max_concurrency``, wait for a free place first."""
        if self._entrance is None and self._meter.grab():
            return 0.0
        return await self._enter(1)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Free the place, if there is a ``max_concurrency``. You do not get the permit back: you pay for starting."""
        self._leave()

    def __enter__(self) -> float:
        """Acquire one permit in synchronous code, for a limiter with ``scope="process"``. ``as waited`` gets the seconds spent waiting."""
        return self._enter_blocking(1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Free the place, if there is a ``max_concurrency``."""
        self._leave_blocking()

    async def _enter(self, permits: int) -> float:
        """Take a place, if there is a limit of concurrency, and then the permits; returns the seconds waited for both.

        Cancelled or refused meanwhile, the place is left again. `leave` must follow.
        """
        entrance = self._entrance
        if entrance is None:
            return await self.acquire(permits)
        self._check("acquire()", permits)
        return ns_to_seconds(await entrance.enter(permits))

    async def _enter_at_once(self) -> bool:
        """As `enter` for one permit, and never waits: False unless a place and a permit are free now. A store is asked once.

        `leave` must follow True.
        """
        entrance = self._entrance
        if entrance is None:
            return self.try_acquire() if self._dispatcher.watcher is UNWATCHED else await self._ask_once()
        if entrance.try_enter():
            entered = False
            try:
                entered = await self._ask_once()
            finally:
                if not entered:
                    entrance.leave()
            return entered
        if is_closed(self._dispatcher):
            return await self._ask_once()  # which raises
        self._dispatcher.counters.refused += 1
        return False

    async def _ask_once(self) -> bool:
        try:
            await self.acquire(max_wait=0)
        except (WaitTooLong, LineFull):
            return False
        return True

    def _enter_blocking(self, permits: int) -> float:
        """As `enter`, in a thread without an event loop, which it blocks. Needs ``scope="process"``."""
        if self._dispatcher.section is None:
            raise RuntimeError(
                "`with` blocks its thread, and this limiter is for one event loop: write `async with limiter:`, or create the limiter with"
                " scope='process'."
            )
        if permits is not _ONE:
            self._check("acquire_blocking()", permits)
        wait = _wait_blocking or _blocking_wait()
        if self._entrance is None:
            waited, _, _ = wait(self._dispatcher, permits, None, self._max_waiting)
        else:
            waited = self._entrance.enter_blocking(permits, wait)
        return waited / NS_PER_SECOND  # not by a function: a signal handler could raise at its call, and the place would stay taken

    def _leave_blocking(self) -> None:
        """As `leave`, also if a signal handler interrupts it."""
        left: list[bool] = []
        try:
            if self._entrance is not None:
                self._entrance.leave(left)
        except BaseException:
            if self._entrance is not None:
                self._entrance.leave(left)
            raise

    def _leave(self) -> None:
        """Leave the place that `enter` took: the next request waiting for it has it at once."""
        if self._entrance is not None:
            self._entrance.leave()

    def of(self, permits: int) -> Weighted:
        """Take several permits in one step: ``async with limiter.of(5):``, or ``@limiter.of(5)`` above a function."""
        self._check("of()", permits)
        from aiorate.decorator import Weighted

        return Weighted(self, permits)

    def __call__(self, function: F) -> F:
        """Decorate a function, so that every call acquires a permit first.

        Works on coroutine functions and async generator functions, and keeps their signature and types. With ``scope="process"``, plain
        functions and generator functions work too: they block.
        """
        from aiorate.decorator import Weighted, limited

        return limited(Weighted(self, 1), function)

    async def slots(self) -> AsyncGenerator[Slot, None]:
        """Yield one `Slot` after the other at the limiter's rate, for work that should start on schedule.

        If the body of the loop is slow, the next slots come at once, up to ``catch_up`` seconds' worth. Older ones are skipped, which shows
        as a gap in ``slot.index``, and are counted in ``statistics().skipped``.
        """
        from aiorate.slots import SlotCount

        dispatcher, count = self._dispatcher, SlotCount(self._dispatcher)
        while True:
            since, ticket, at, asked = dispatcher.run(self._ask_for_slot, count)
            if ticket is not None:
                _, at, _ = await dispatcher.wait(ticket, 1, asked, None, self._max_waiting, ACQUIRE, since)
            yield dispatcher.run(count.slot, at)

    def _ask_for_slot(self, count: SlotCount) -> tuple[int, Ticket | None, int, int]:
        since = count.open()
        ticket, at, asked = self._dispatcher.decide(1, None, self._max_waiting, ACQUIRE, since)
        if at != NOT_ASKED:
            count.granted_at_once()
        return since, ticket, at, asked

    def _check(self, call: str, permits: int) -> None:
        dispatcher = self._dispatcher
        check_permits(call, permits, dispatcher.scheduler.max_permits if dispatcher.gate is None else max_permits(dispatcher))

    # Changing, for those in line too.

    @changing
    def set_rate(self, rate: Rate | str | Number, *, member: int | None = None) -> None:
        """Change the rate, for callers that are already waiting too.

        What is stored or owed stays. A window keeps its period: 90 per second is 5400 in a window of one minute.

        Args:
            rate: The new rate.
            member: If the limiter was made from a list of limits, the index of the one to change, counted from 0.

        Waiting requests that are now larger than the limiter can ever grant fail with a ValueError.
        """
        changes.set_rate(self._dispatcher, rate, member)

    @changing
    def pause(self, seconds: Duration) -> None:
        """Let nothing through for this many seconds, or a timedelta.

        If pauses overlap, the latest end wins. Afterwards the queue goes on where it stopped; paused time is neither saved up nor owed.
        """
        changes.pause(self._dispatcher, pause_to_ns(seconds))

    @changing
    def observe(self, feedback: Feedback | None, *, jitter: Duration = 0) -> None:
        """Apply what a server's response said about the limit, as `aiorate.http.read_feedback` reads it. None does nothing.

        A refusal pauses the limiter. A quota limits what is let through until it is reset. A server can only make a limiter slower than you
        made it.

        Args:
            feedback: What the response said.
            jitter: Make a pause longer by a random part of this many seconds, so that many clients do not come back together.
        """
        if feedback is not None:
            changes.observe(self._dispatcher, feedback, duration_to_ns(jitter, "observe(jitter)"))

    @changing
    def resume(self) -> None:
        """End a pause now, whoever began it."""
        changes.resume(self._dispatcher)

    @changing
    def refund(self, permits: int) -> None:
        """Give back permits that you did not use. Callers in the queue may move up.

        A limit never gets more than it can hold. Limits that this one shares get the permits back too. 0 does nothing.
        """
        if _is_none("refund()", permits):
            return
        changes.refund(self._dispatcher, permits)

    @changing
    def charge(self, permits: int) -> None:
        """Take permits that you have already used. Later callers wait until they are paid for.

        There may be more of them than any request can ask for. Limits that this one shares are charged too. 0 does nothing.
        """
        if _is_none("charge()", permits):
            return
        changes.charge(self._dispatcher, permits)

    @changing
    def reset(self) -> None:
        """Start over: as full as the strategy begins, without debt or pause, with all counters at 0. Callers in the queue stay there."""
        self._dispatcher.look()
        changes.reset(self._dispatcher)
        if self._entrance is not None:
            self._entrance.places.counters.clear()

    @changing
    def apply(self, spec: RateSpec | str) -> None:
        """Apply a `RateSpec`, or its text such as ``"12000,1.1,start"``: a rate, a burst ratio and a verb.

        ``start`` ends a stop and reopens a closed limiter, ``stop`` lets nothing through until then, ``restart`` also forgets a backlog,
        and ``configure`` only changes the numbers. The burst ratio is for strategies that have one: `TokenPool` and `BurstRatio`.
        """
        from aiorate.spec import RateSpec

        new = RateSpec.parse(spec) if isinstance(spec, str) else spec
        if not isinstance(new, RateSpec):
            raise TypeError(f"apply() takes a RateSpec or its text such as '12000,1.1,start', not {type(spec).__name__}.")
        changes.apply(self._dispatcher, new)
        if self._entrance is not None and not self._dispatcher.closed:
            self._entrance.places.closed = False

    async def aclose(self) -> None:
        """Close the limiter. Callers in the queue get `LimiterClosed`, and no task or timer is left when this returns."""
        error = LimiterClosed("acquire(): the limiter was closed while this request was waiting.")
        self._dispatcher.run(self._shut, error)
        await changes.finish(self._dispatcher)

    def _shut(self, error: LimiterClosed) -> None:
        if self._entrance is not None:
            changes.shut(self._entrance.places, error)
        changes.shut(self._dispatcher, error)

    # Looking.

    @property
    def name(self) -> str | None:
        """The name that it was given."""
        return self._dispatcher.notices.name

    @property
    @looking
    def rate(self) -> Rate:
        """The rate at present."""
        return self._dispatcher.scheduler.rate

    @property
    @looking
    def scheduler(self) -> Scheduler:
        """The strategy, to look at. To change it, use the limiter."""
        return self._dispatcher.strategy

    @property
    @deciding
    def lag(self) -> float:
        """How many seconds the limiter is behind its schedule."""
        return ns_to_seconds(self._dispatcher.scheduler.lag(self._dispatcher.look()))

    @deciding
    def delay(self, permits: int = 1) -> float:
        """Return how many seconds a request made now would have to wait; infinite if the limiter is stopped or closed.

        Everybody in the queue counts. With ``max_concurrency``, it is the wait of a request that has its place already.
        """
        self._check("delay()", permits)
        wait = estimate(self._dispatcher, permits, self._dispatcher.look())
        return float("inf") if wait is None or is_closed(self._dispatcher) else ns_to_seconds(wait)

    @looking
    def bound(self, seconds: Duration, largest: int = 1) -> int | None:
        """Return the most permits that any window of this length can hold, whatever happens; None if there is no bound.

        Args:
            seconds: The length of the window, in seconds or as a timedelta.
            largest: The largest number of permits that any one request asks for.
        """
        check_permits("bound(largest)", largest)
        window = duration_to_ns(seconds, "bound(seconds)")
        if window < 1:
            raise ValueError(f"bound({seconds!r}): seconds must be greater than 0.")
        return self._dispatcher.scheduler.bound_when_late(window, largest, self._dispatcher.catch_up.limit)

    @deciding
    def statistics(self) -> Statistics:
        """Return a snapshot of the counters."""
        from aiorate.statistics import snapshot

        self._dispatcher.look()
        return snapshot(self._dispatcher, None if self._entrance is None else self._entrance.places)

    def watch(self, on_wait: Callable[[Waited], object]) -> Callable[[], None]:
        """Call a function after each wait, with a `Waited`.

        It is called in the task or thread that waited, just before that goes on, so keep it short. It is not called for requests that went
        straight through, were refused, or were cancelled. If it raises, that is logged, and the request goes on.

        Returns:
            A function that ends the calls.
        """
        check_on_wait("watch", on_wait)
        from aiorate.waiting.watch import watch_of

        return self._dispatcher.run(watch_of, self._dispatcher).add(on_wait)

    def _totals(self) -> Totals:
        """What was granted and refused since it was made, and how many wait: for parts of aiorate that are built upon a limiter.

        May be called in any thread: it reads plain numbers, and changes nothing.
        """
        from aiorate.totals import totals_of

        return totals_of(self._dispatcher, (), None if self._entrance is None else self._entrance.places)

    @property
    def _places(self) -> Dispatcher | None:
        """The dispatcher of the places of ``max_concurrency``, for parts of aiorate; None: there is no limit of concurrency."""
        return None if self._entrance is None else self._entrance.places

    def _check_as_shared(self, what: str, instead: str) -> None:
        """Raise ValueError if the limiter has options that do not hold for permits taken through others.

        The error names ``instead`` as the place for ``max_waiting``.
        """
        if self._entrance is not None:
            places = self._entrance.places.scheduler.max_permits
            raise ValueError(
                f"{what}: a shared limiter cannot have max_concurrency={places}; only its permits are shared. Leave it out, and put"
                f" `async with asyncio.Semaphore({places}):` around the calls, the same Semaphore for all."
            )
        if self._max_waiting is not None:
            raise ValueError(
                f"{what}: a shared limiter cannot have max_waiting={self._max_waiting.most}; at most one request of each line waits in it."
                f" Leave it out, and give max_waiting to {instead}."
            )

    @looking
    def __repr__(self) -> str:
        dispatcher = self._dispatcher
        name = f" {dispatcher.notices.name!r}" if dispatcher.notices.name else ""
        timeline = dispatcher.timeline
        state = ", closed" if dispatcher.closed else ", stopped" if timeline.stopped else ", paused" if timeline.paused else ""
        waiting, places = len(dispatcher.line), ""
        if self._entrance is not None:
            waiting += len(self._entrance.places.line)
            places = f", {self._entrance.places.scheduler!r}"
        return f"<Limiter{name} {dispatcher.scheduler!r}{places}, {waiting} waiting{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Limiter cannot be copied or pickled: the copy would grant the same permits again. Share it, or create another.")


def _blocking_wait() -> Callable[..., tuple[int, int, int | None]]:
    global _wait_blocking
    from aiorate.waiting.process.blocking import wait_blocking

    _wait_blocking = wait_blocking  # an import statement would cost each call 0.5 us
    return wait_blocking


def pause_to_ns(seconds: Duration) -> int:
    """Convert the argument of ``pause()`` to ns. Raises TypeError and ValueError for anything else."""
    if isinstance(seconds, str):
        raise TypeError(
            f"pause() takes seconds or a timedelta, not the text {seconds[:40]!r}. For a response's headers, call"
            " observe(aiorate.http.read_feedback(status, headers))."
        )
    return duration_to_ns(seconds, "pause()")


def _is_none(call: str, permits: int) -> bool:
    if type(permits) is int and permits == 0:
        return True
    check_permits(call, permits)
    return False
