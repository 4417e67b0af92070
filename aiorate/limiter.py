"""The Limiter: what users call. It checks what is asked, in seconds and permits; the dispatcher decides.

It computes no schedule and sets no timer. Knows nothing of HTTP. Half of its lines are the documentation of the public calls, which
belongs to the class that users look up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, overload

from aiorate.absent import NamesOfLimiter
from aiorate.errors import LimiterClosed, LineFull, WaitTooLong, check_count
from aiorate.explained import explained
from aiorate.options import check_on_wait, check_options, check_scope
from aiorate.rate import NO_BOUND, NS_PER_SECOND, Rate, duration_to_ns, ns_to_seconds
from aiorate.schedulers.interface import Scheduler, check_permits
from aiorate.schedulers.token_pool import TokenPool
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
    from collections.abc import AsyncGenerator, Callable, Sequence
    from types import TracebackType
    from typing import Any, Literal, Never, NoReturn

    from aiorate.decorator import Weighted
    from aiorate.events import Event
    from aiorate.feedback import Feedback
    from aiorate.rate import Duration, Number
    from aiorate.several import Limit, Limits
    from aiorate.slots import Slot, SlotCount
    from aiorate.spec import RateSpec
    from aiorate.statistics import Statistics
    from aiorate.totals import Totals
    from aiorate.waited import Waited
    from aiorate.waiting.clock import Clock
    from aiorate.waiting.line import Ticket

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["Limiter", "pause_to_ns"]

_CATCH_UP, _CATCH_UP_NS = 0.02, 20_000_000  # the default, not to be read digit by digit for every limiter
_LOOP: Literal["loop"] = "loop"  # compared by identity; an equal text takes the longer way
_NO_RATE = ""  # compared by identity: none was given
_OPTIONS = ("catch_up", "max_waiting", "precise", "clock", "name", "max_concurrency", "on_event", "on_wait", "scope")
_wait_blocking: Callable[..., tuple[int, int, int | None]] | None = None  # once it is needed
_ONE = 1  # compared by identity, which is fast and leaves out True; another 1 merely takes the longer way


class Limiter(NamesOfLimiter):
    """Grants permits at a rate, in the order asked, to the coroutines of one event loop, or to all of a process.

    ``rate_or_scheduler`` is a strategy such as ``TokenBucket("10/s", burst=20)``, or a rate (a `Rate`, text such as ``"100/s"``, or a
    number per second) for a `TokenPool`, or a list of these, all of which hold: `AllOf`. ``catch_up`` is how many seconds (or a timedelta)
    a late event loop may make up for at once; permits missed before that are skipped and counted. ``max_waiting`` is the largest number of
    requests in line. ``precise`` wakes waiters within tens of microseconds by a kernel timer (Linux) instead of the loop's, which are a
    millisecond coarse; elsewhere it changes nothing. ``clock`` is for tests; ``name`` appears in the filler task's name and in ``repr()``.

    ``max_concurrency`` is how many callers may be inside ``async with`` (or a decorated function) at a time; the place is taken before
    the permit, so that no permit is spent while waiting for it. Without it, leaving ``async with`` does nothing. ``on_event`` is called
    with an `aiorate.Event` when a server asks for a pause or permits are skipped; both are logged under ``aiorate`` too. ``on_wait`` is
    called with an `aiorate.Waited` for each request that waited; see `watch`.

    ``scope="loop"`` is for one event loop: the limiter may be made without one, and used in one after the other, but not in two at a
    time, and not from other threads. ``scope="process"`` is one budget, and one line, for any number of event loops in any threads
    (asyncio, uvloop, trio) and for synchronous code, which calls `acquire_blocking`; every call may come from any thread then, and
    ``on_event`` is called in whichever thread decided. Cannot be copied or pickled: share it.
    """

    __slots__ = ("__weakref__", "_dispatcher", "_entrance", "_max_waiting", "_meter")

    def __init__(
        self,
        rate_or_scheduler: Limits = _NO_RATE,
        *misplaced: Never,
        catch_up: Duration = _CATCH_UP,
        max_waiting: int | None = None,
        precise: bool = False,
        clock: Clock | None = None,
        name: str | None = None,
        max_concurrency: int | None = None,
        on_event: Callable[[Event], object] | None = None,
        on_wait: Callable[[Waited], object] | None = None,
        scope: Literal["loop", "process"] = _LOOP,
        **unknown: Never,
    ) -> None:
        if unknown or rate_or_scheduler is _NO_RATE:
            from aiorate.wrong_arguments import unknown_options

            raise unknown_options("Limiter()", unknown, _OPTIONS)
        if misplaced:
            from aiorate.wrong_arguments import more_than_a_rate

            raise more_than_a_rate(rate_or_scheduler, misplaced[0])
        if isinstance(rate_or_scheduler, type):
            from aiorate.mistakes import not_the_class

            raise not_the_class("Limiter", rate_or_scheduler)
        scheduler = rate_or_scheduler if isinstance(rate_or_scheduler, Scheduler) else _strategy(rate_or_scheduler)
        if max_waiting is not None or clock is not None or name is not None or on_event is not None or on_wait is not None:
            check_options("Limiter", max_waiting, clock, name, on_event, on_wait)
        if not isinstance(precise, bool):
            raise TypeError(f"Limiter(precise) must be True or False, not {type(precise).__name__}.")
        if scope is not _LOOP:
            self._check_scope(scope)
        ns = _CATCH_UP_NS if catch_up is _CATCH_UP else duration_to_ns(catch_up, "Limiter(catch_up)")
        self._dispatcher = Dispatcher(scheduler, ns, precise, clock, name)
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
        if scope is not _LOOP and scope != _LOOP:
            from aiorate.waiting.process.scope import widen

            widen([self._dispatcher] if places is None else [places, self._dispatcher], name)
        if on_wait is not None:
            self.watch(on_wait)

    def _check_scope(self, scope: str) -> None:
        check_scope("Limiter", scope)
        if scope != _LOOP and type(self) is not Limiter:
            raise TypeError(f"{type(self).__name__}: a subclass of Limiter cannot have scope={scope!r}. Wrap a Limiter instead.")

    # Asking.

    async def acquire(self, permits: int = 1, *, max_wait: Duration | None = None) -> float:
        """Wait in line until the permits are granted; returns the seconds waited, 0.0 if none.

        Raises `WaitTooLong` at once if it would take longer than ``max_wait`` (seconds, or a timedelta), and after ``max_wait`` if it
        is not granted by then, as when a pause comes in between; `LineFull` if ``max_waiting`` are waiting, `LimiterClosed`; nothing
        is spent then. ValueError if ``permits`` can never be granted. Cancelled while waiting, or granted but not yet run: nothing is
        spent, and the next in line moves up at once.
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
        """Take the permits if they are available at once and nobody is in line; never waits."""
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
            from aiorate.mistakes import NO_LEASE

            raise RuntimeError(f"try_acquire(): {NO_LEASE}")
        dispatcher.counters.refused += 1
        return False

    def acquire_blocking(self, permits: int = 1, *, max_wait: Duration | None = None, timeout: None = None) -> float:
        """As `acquire`, for synchronous code in any thread: blocks until the permits are granted; returns the seconds waited.

        Needs ``scope="process"``. RuntimeError without it, and in a thread whose event loop is running, which it would block.
        Interrupted while waiting, as by Ctrl-C, nothing is spent.
        """
        if timeout is not None:
            from aiorate.mistakes import NO_TIMEOUT

            raise TypeError(NO_TIMEOUT)
        if permits is not _ONE:
            self._check("acquire_blocking()", permits)
        limit = None if max_wait is None else duration_to_ns(max_wait, "acquire_blocking(max_wait)", NO_BOUND)
        wait = _wait_blocking or _blocking_wait()
        waited, _, _ = wait(self._dispatcher, permits, limit, self._max_waiting)
        return waited / NS_PER_SECOND

    async def __aenter__(self) -> float:
        """Acquire one permit; the target is the seconds waited. With ``max_concurrency``, take a place first."""
        if self._entrance is None and self._meter.grab():
            return 0.0
        return await self.enter(1)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the place, if there is a limit of concurrency. A permit is used up by starting."""
        self.leave()

    def __enter__(self) -> float:
        """As ``async with``, for synchronous code in any thread: blocks until the permit is granted. Needs ``scope="process"``.

        RuntimeError without it, and in a thread whose event loop is running, which it would block.
        """
        return self.enter_blocking(1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the place, if there is a limit of concurrency, in any thread."""
        self.leave_blocking()

    async def enter(self, permits: int) -> float:
        """Take a place, if there is a limit of concurrency, and then the permits; returns the seconds waited for both.

        Cancelled or refused meanwhile, the place is left again. `leave` must follow.
        """
        entrance = self._entrance
        if entrance is None:
            return await self.acquire(permits)
        self._check("acquire()", permits)
        return ns_to_seconds(await entrance.enter(permits))

    async def enter_at_once(self) -> bool:
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

    def enter_blocking(self, permits: int) -> float:
        """As `enter`, in a thread without an event loop, which it blocks. Needs ``scope="process"``."""
        if self._dispatcher.section is None:
            from aiorate.mistakes import NOT_A_BLOCK

            raise RuntimeError(NOT_A_BLOCK)
        if permits is not _ONE:
            self._check("acquire_blocking()", permits)
        wait = _wait_blocking or _blocking_wait()
        if self._entrance is None:
            waited, _, _ = wait(self._dispatcher, permits, None, self._max_waiting)
        else:
            waited = self._entrance.enter_blocking(permits, wait)
        return waited / NS_PER_SECOND  # not by a function: a signal handler could raise at its call, and the place would stay taken

    def leave_blocking(self) -> None:
        """As `leave`, also if a signal handler interrupts it."""
        left: list[bool] = []
        try:
            if self._entrance is not None:
                self._entrance.leave(left)
        except BaseException:
            if self._entrance is not None:
                self._entrance.leave(left)
            raise

    def leave(self) -> None:
        """Leave the place that `enter` took: the next request waiting for it has it at once."""
        if self._entrance is not None:
            self._entrance.leave()

    def of(self, permits: int) -> Weighted:
        """Take ``permits`` at once: ``async with limiter.of(5):``, or ``@limiter.of(5)``; for threads, ``with limiter.of(5):``."""
        self._check("of()", permits)
        from aiorate.decorator import Weighted

        return Weighted(self, permits)

    @overload
    def __call__(self, function: F) -> F: ...

    @overload
    def __call__(self) -> Never: ...

    def __call__(self, function: Callable[..., Any] | None = None, *misplaced: object, **options: object) -> Any:
        """Decorate a function: each call acquires one permit first.

        A coroutine function, an async generator function, or, with ``scope="process"``, a plain function or generator function, which
        then blocks. RuntimeError for a plain one without that scope.
        """
        if misplaced or options or not callable(function):
            from aiorate.mistakes import not_decorated

            raise not_decorated((function, *misplaced), options)
        from aiorate.decorator import Weighted, limited

        return limited(Weighted(self, 1), function)

    async def slots(self) -> AsyncGenerator[Slot, None]:
        """Pace an open loop: yields one slot after the other, each with the time at which it was meant to start.

        A slot stands in line from the moment the one before it was granted, so a slow body is made up for, up to
        ``catch_up``; earlier slots are skipped, which shows as a gap in ``index`` and in ``statistics().skipped``.
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

    @explained
    @changing
    def set_rate(self, rate: Rate | str | Number, *, member: int | None = None) -> None:
        """Change the rate at once, for those in line too; what is stored or owed is kept as the strategy says.

        A window keeps its period: 90 per second is 5400 in a window of one minute (`SlidingWindow.set_rate` says more). ``member`` is the
        index of the one to change of several, in an `AllOf` or a list. Requests in line that are now larger than can be granted fail with a
        ValueError.
        """
        if isinstance(rate, (Scheduler, Limiter, type(None))):
            from aiorate.mistakes import not_to_set

            raise not_to_set(rate)
        changes.set_rate(self._dispatcher, rate, member)

    @changing
    def pause(self, seconds: Duration) -> None:
        """Grant nothing for ``seconds``, a number or a timedelta.

        Pauses merge by the later end; afterwards the line goes on where it was held up. Raises TypeError for text: a header such as
        ``Retry-After`` is read by `aiorate.http.read_feedback`, for `observe`.
        """
        changes.pause(self._dispatcher, pause_to_ns(seconds))

    @changing
    def observe(self, feedback: Feedback | None, *, jitter: Duration = 0) -> None:
        """Heed what a server said, as `aiorate.http.read_feedback` reads it from a response; None does nothing.

        A pause holds everybody in line, and merges with others by the later end. Of a quota of requests, at most the remaining ones are
        granted until its reset, and at most what its policy allows. Where the quota is full at its reset, at most the remaining ones
        are granted now, and the rest as it comes back, until the server says more. So it only ever lowers what is available. ``jitter``
        makes a pause longer by a random part of that many seconds, for when many clients would come back at once. Raises TypeError and
        ValueError for anything else, and changes nothing then.
        """
        if feedback is not None:
            changes.observe(self._dispatcher, feedback, duration_to_ns(jitter, "observe(jitter)"))

    @changing
    def resume(self) -> None:
        """End a pause now, also one that a server asked for."""
        changes.resume(self._dispatcher)

    @changing
    def refund(self, permits: int) -> None:
        """Give permits back after the fact, never above capacity: those in line may move up. 0 does nothing.

        A limit shared with others gets them back too.
        """
        if _is_none("refund()", permits):
            return
        changes.refund(self._dispatcher, permits)

    @changing
    def charge(self, permits: int) -> None:
        """Take permits after the fact: a debt that those in line and later callers wait for. 0 does nothing.

        A limit shared with others owes them too.
        """
        if _is_none("charge()", permits):
            return
        changes.charge(self._dispatcher, permits)

    @changing
    def reset(self) -> None:
        """Start over: as full or as empty as the strategy starts, no debt, no pause, counters at 0. Those in line stay in line."""
        self._dispatcher.look()
        changes.reset(self._dispatcher)
        if self._entrance is not None:
            self._entrance.places.counters.clear()

    @changing
    def apply(self, spec: RateSpec | str) -> None:
        """Apply rate, burst ratio and verb of a `RateSpec` (or its text); pools and schedules keep what they hold.

        ``start`` ends a stop (and reopens a closed limiter), ``stop`` grants nothing until then, ``restart`` also empties pools
        and forgets a backlog, ``configure`` does neither. The ratio is for strategies that have one: TokenPool, BurstRatio.
        """
        from aiorate.spec import RateSpec

        new = RateSpec.parse(spec) if isinstance(spec, str) else spec
        if not isinstance(new, RateSpec):
            raise TypeError(f"apply() takes a RateSpec or its text such as '12000,1.1,start', not {type(spec).__name__}.")
        changes.apply(self._dispatcher, new)
        if self._entrance is not None and not self._dispatcher.closed:
            self._entrance.places.closed = False

    async def aclose(self) -> None:
        """Close the limiter: requests in line fail with `LimiterClosed`; no task and no timer stays."""
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
        """The rate in force."""
        return self._dispatcher.scheduler.rate

    @rate.setter
    def rate(self, rate: Never) -> None:
        from aiorate.mistakes import not_by_assignment

        raise not_by_assignment(rate)

    @property
    @looking
    def scheduler(self) -> Scheduler:
        """The strategy, to look at; change it through the limiter."""
        return self._dispatcher.strategy

    @property
    @deciding
    def lag(self) -> float:
        """Seconds behind schedule: the wait time of a load test."""
        return ns_to_seconds(self._dispatcher.scheduler.lag(self._dispatcher.look()))

    @deciding
    def delay(self, permits: int = 1) -> float:
        """Seconds that a request made now would wait, the line included; infinite while stopped. Changes nothing.

        In a line of more than 32 that has just changed, those behind the first 32 may count by the sum of their permits: that is exact
        where each asks for one, and may be too short for large requests in a window, or where several limits hold at once. With
        ``max_concurrency`` it is the wait of a request that has its place: when a place becomes free is unknown.
        """
        self._check("delay()", permits)
        wait = estimate(self._dispatcher, permits, self._dispatcher.look())
        return float("inf") if wait is None or is_closed(self._dispatcher) else ns_to_seconds(wait)

    @looking
    def bound(self, seconds: Duration, largest: int = 1) -> int | None:
        """The guarantee: the most permits granted in any window of ``seconds``, if no request is for more than ``largest``.

        ``seconds`` is a number or a timedelta. None: no bound. A strategy that makes up for lateness is bounded as for a window longer by
        ``catch_up``.
        """
        check_permits("bound(largest)", largest)
        window = duration_to_ns(seconds, "bound(seconds)")
        if window < 1:
            raise ValueError(f"bound(seconds) must be greater than 0; {seconds!r} was given.")
        return self._dispatcher.scheduler.bound_when_late(window, largest, self._dispatcher.catch_up.limit)

    @deciding
    def statistics(self) -> Statistics:
        """A snapshot of the counters."""
        from aiorate.statistics import snapshot

        self._dispatcher.look()
        return snapshot(self._dispatcher, None if self._entrance is None else self._entrance.places)

    def watch(self, on_wait: Callable[[Waited], object]) -> Callable[[], None]:
        """Have ``on_wait`` called with an `aiorate.Waited` for each request that waits from now on; returns a function that ends that.

        It is called once for each request that waited and was granted, in the task or thread that asked, just before that goes on; in
        whatever way it was asked. Not for requests that were granted at once, refused or closed, nor for those that were cancelled, even
        if they had been granted: their permits are given back. A request for a key is told by that key's limiter and its KeyedLimiter,
        and not by the limits that they share. Nobody waits for the limiter while the function runs, and it may call the limiter.
        An exception in it is logged under ``aiorate``, and the request goes on. Functions are called in the order in which they were
        added, ``on_wait=`` of the constructor first. Raises TypeError for anything but a plain function.
        """
        check_on_wait("watch", on_wait)
        from aiorate.waiting.watch import watch_of

        return self._dispatcher.run(watch_of, self._dispatcher).add(on_wait)

    def totals(self) -> Totals:
        """What was granted and refused since it was made, and how many wait: for parts of aiorate that are built upon a limiter.

        May be called in any thread: it reads plain numbers, and changes nothing.
        """
        from aiorate.totals import totals_of

        return totals_of(self._dispatcher, (), None if self._entrance is None else self._entrance.places)

    @property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher, which decides; for parts of aiorate that are built upon a limiter."""
        return self._dispatcher

    @property
    def places(self) -> Dispatcher | None:
        """The dispatcher of the places of ``max_concurrency``, for parts of aiorate; None: there is no limit of concurrency."""
        return None if self._entrance is None else self._entrance.places

    def check_shared(self, what: str, instead: str) -> None:
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


def _strategy(rate: Rate | str | Number | Sequence[Limit]) -> Scheduler:
    if type(rate) is not str and isinstance(rate, (list, tuple)):
        from aiorate.several import all_of

        return all_of("Limiter()", rate)
    try:
        return TokenPool(rate)  # type: ignore[arg-type]  # which says what is wrong
    except TypeError as error:
        from aiorate.mistakes import not_a_rate

        raise not_a_rate("Limiter()", rate) from error


def _is_none(call: str, permits: int) -> bool:
    if type(permits) is int and permits == 0:
        return True
    check_permits(call, permits)
    return False
