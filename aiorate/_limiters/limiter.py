"""The Limiter: what users call. It checks what is asked, in seconds and permits; the node decides."""

from __future__ import annotations

import inspect
from contextlib import aclosing, suppress
from functools import partial, wraps
from threading import current_thread
from typing import TYPE_CHECKING, cast
from weakref import ref

from aiorate._errors import check_count
from aiorate._limiters.base import Base, finish
from aiorate._loops.table import running_task, starved_here
from aiorate._rate import NS_PER_SECOND, Rate, duration_to_ns, ns_to_seconds
from aiorate._schedulers.interface import Scheduler, check_ns, check_permits
from aiorate._schedulers.places import Places, Visit
from aiorate._tree.refusals import no_lease

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from types import TracebackType
    from typing import Any, TypeVar

    from aiorate._limiters.slots import Slot
    from aiorate._rate import Duration, Number
    from aiorate._spec import RateSpec
    from aiorate._tree.limit import Limit

    F = TypeVar("F", bound=Callable[..., Any])


_ONE = 1  # compared by identity, which is fast and leaves out True
_VISIT = Visit(1)


class Limiter(Base):
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

    __slots__ = ()

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
        most_ns = None if max_wait is None else duration_to_ns(max_wait, "acquire(max_wait)")
        if permits is not _ONE:
            self._check("acquire()", permits)
        elif self._meter.grab():
            return 0.0
        node, tree = self._node, self._node.tree
        if tree.threads and permits is _ONE and not starved_here() and self._meter.grab(True):
            return 0.0
        ticket = node.ask(permits, most_ns)
        if isinstance(ticket, tuple):
            return 0.0
        waker, decided = node.waker or tree.loop, ticket.done()
        # As Limit.acquire(), without another coroutine.
        try:
            while not ticket.done():
                await waker.wait(ticket)  # type: ignore[union-attr]  # somebody waits
            if (decided or tree.resuming > 1) and (loop := tree.starved()) is not None:
                await loop.turn()
        except BaseException:
            node.give_up(ticket)
            raise
        return node.go_on(ticket)[0] / NS_PER_SECOND

    def try_acquire(self, permits: int = 1) -> bool:
        """Take the permits if they are available right now, without waiting.

        Returns:
            Whether they were taken. False if somebody is waiting already: nobody overtakes the queue.
        """
        if permits is not _ONE:
            self._check("try_acquire()", permits)
        elif self._meter.grab(True):
            return True
        node = self._node
        if node.try_take(permits) is not None:
            return True
        if (error := node.impossible(permits)) is not None:
            raise error
        if node.on_demand:
            raise no_lease("try_acquire()")
        node.own_counters().refused += 1
        return False

    def acquire_blocking(self, permits: int = 1, *, max_wait: Duration | None = None) -> float:
        """Wait in synchronous code, in any thread: the same as `acquire`, for a limiter with ``scope="process"``.

        If Ctrl-C interrupts the wait, nothing is spent.

        Raises:
            RuntimeError: The limiter has the scope of one event loop, or an event loop is running in this thread and would be blocked.
        """
        if permits is not _ONE:
            self._check("acquire_blocking()", permits)
        most_ns = None if max_wait is None else duration_to_ns(max_wait, "acquire_blocking(max_wait)")
        return self._node.wait_blocking(permits, most_ns)[0] / NS_PER_SECOND

    async def __aenter__(self) -> float:
        """Acquire one permit. ``as waited`` gets the seconds spent waiting. With ``max_concurrency``, wait for a free place first."""
        if self._places:
            return await self._enter_places(1)
        return 0.0 if self._meter.grab() else await self.acquire()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Free the place, if there is a ``max_concurrency``. You do not get the permit back: you pay for starting."""
        if self._places:
            self._leave()

    def __enter__(self) -> float:
        """Wait in synchronous code, which needs ``scope="process"``."""
        return self._enter_blocking(1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the block, in any thread."""
        self._leave()

    def _enter_blocking(self, permits: int) -> float:
        return finish(self._enter_places(permits, blocking=True)) if self._places else self.acquire_blocking(permits)

    async def _enter_places(self, permits: int, blocking: bool = False) -> float:
        for _, places in self._places:
            if places.holder is not None and places.holder() is (running_task() or current_thread()):
                raise RuntimeError("max_concurrency is 1, and whoever has the place would wait for itself. Enter only once.")
        lowest, visit = self._lowest, Visit(permits)
        waited, *_ = lowest.wait_blocking(visit) if blocking else await lowest.acquire(visit)
        self._hold()
        return waited / NS_PER_SECOND

    def _hold(self) -> None:
        """Note who holds the only place; one of several may be left by another task or thread."""
        for _, places in self._places:
            if places.size == 1:
                places.holder = ref(running_task() or current_thread())

    def _leave(self) -> None:
        for limit, places in self._places:
            leave_place(limit, places)

    def of(self, permits: int) -> Weighted:
        """Take several permits in one step: ``async with limiter.of(5):``, or ``@limiter.of(5)`` above a function."""
        self._check("of()", permits)
        return Weighted(self, permits)

    def __call__(self, function: F) -> F:
        """Decorate a function, so that every call acquires a permit first.

        Works on coroutine functions and async generator functions, and keeps their signature and types. With ``scope="process"``, plain
        functions and generator functions work too: they block.
        """
        return limited(self, function, self._may_block)

    def slots(self) -> AsyncGenerator[Slot, None]:
        """Yield one `Slot` after the other at the limiter's rate, for work that should start on schedule.

        If the body of the loop is slow, the next slots come at once, up to ``catch_up`` seconds' worth. Older ones are skipped, which shows
        as a gap in ``slot.index``, and are counted in ``statistics().skipped``.
        """
        from aiorate._limiters.slots import slots_of

        return slots_of(self._node)

    def _check(self, call: str, permits: int) -> None:
        check_permits(call, permits, self._node.max_permits)

    # Changing, for those in line too.

    def set_rate(self, rate: Rate | str | Number, *, member: int | None = None) -> None:
        """Change the rate, for callers that are already waiting too.

        What is stored or owed stays. A window keeps its period: 90 per second is 5400 in a window of one minute.

        Args:
            rate: The new rate.
            member: If the limiter was made from a list of limits, the index of the one to change, counted from 0.

        Waiting requests that are now larger than the limiter can ever grant fail with a ValueError.
        """
        self._node.tree.change(self._node.set_rate, rate, member)

    def refund(self, permits: int) -> None:
        """Give back permits that you did not use. Callers in the queue may move up.

        A limit never gets more than it can hold. Limits that this one shares get the permits back too. 0 does nothing.
        """
        self._correct("refund()", self._node.refund, permits)

    def charge(self, permits: int) -> None:
        """Take permits that you have already used. Later callers wait until they are paid for.

        There may be more of them than any request can ask for. Limits that this one shares are charged too. 0 does nothing.
        """
        self._correct("charge()", self._node.charge, permits)

    def _correct(self, call: str, change: Callable[[int], None], permits: int) -> None:
        check_count(call, permits)
        if permits:
            self._node.tree.change(change, permits)

    def reset(self) -> None:
        """Start over: as full as the strategy begins, without debt or pause, with all counters at 0. Callers in the queue stay there.

        Raises RuntimeError if processes share the limit, which remember it. Use another name then, or remove the file.
        """
        self._node.tree.change(self._node.reset)

    def apply(self, spec: RateSpec | str) -> None:
        """Apply a `RateSpec`, or its text such as ``"12000,1.1,start"``: a rate, a burst ratio and a verb.

        ``start`` ends a stop and reopens a closed limiter, ``stop`` lets nothing through until then, ``restart`` also forgets a backlog,
        and ``configure`` only changes the numbers. The burst ratio is for strategies that have one: `TokenPool` and `BurstRatio`.
        """
        from aiorate._spec import RateSpec

        new = RateSpec.parse(spec) if isinstance(spec, str) else spec
        if not isinstance(new, RateSpec):
            raise TypeError(f"apply() takes a RateSpec or its text such as '12000,1.1,start', not {type(spec).__name__}.")
        self._node.tree.change(self._node.apply, new)

    # Looking.

    @property
    def rate(self) -> Rate:
        """The rate at present."""
        return self._node.scheduler.rate

    @property
    def scheduler(self) -> Scheduler:
        """The strategy, to look at. To change it, use the limiter."""
        return self._node.scheduler

    @property
    def lag(self) -> float:
        """How many seconds the limiter is behind its schedule."""
        node = self._node
        return ns_to_seconds(node.tree.run(lambda: node.scheduler.lag(node.look_now())))

    def delay(self, permits: int = 1) -> float:
        """Return how many seconds a request made now would have to wait; infinite if the limiter is stopped or closed.

        Everybody in the queue counts. With ``max_concurrency``, it is the wait of a request that has its place already.
        """
        self._check("delay()", permits)
        return self._wait_now(permits)

    def bound(self, seconds: Duration, largest: int = 1) -> int | None:
        """Return the most permits that any window of this length can hold, whatever happens; None if there is no bound.

        Args:
            seconds: The length of the window, in seconds or as a timedelta.
            largest: The largest number of permits that any one request asks for.
        """
        window = duration_to_ns(seconds, "bound(seconds)")
        check_ns("bound(seconds)", window, least=1)
        return self._node.scheduler._bound_when_late(window, largest, self._node.catch_up)

    def _share(self, shared: Limiter | None) -> None:
        node = self._node
        node.belong(None if shared is None else shared._lowest)
        if shared is None:
            return
        node.keeps = shared
        self._lowest.move(node.tree)
        if shared._places:
            self._places += shared._places
            self._lowest.permits_above = node.permits_above = lambda permits: permits  # a visit stays one


def take_place(limit: Limit, places: Places) -> bool:
    """Take a free place that nobody waits for, and no permit yet."""
    return limit.tree.run(lambda: limit.first() is None and places.take(_VISIT, 0) == 0)


def leave_place(limit: Limit, places: Places) -> None:
    """Free the place: the next request that waits for it gets it at once."""
    places.holder = None
    limit.tree.post(partial(_free, limit, places))


def _free(limit: Limit, places: Places) -> None:
    places.give_back(_VISIT, 0)
    limit.look()


class Weighted:
    """Several permits at a time; see `Limiter.of`."""

    __slots__ = ("_limiter", "_permits")

    def __init__(self, limiter: Limiter, permits: int) -> None:
        self._limiter = limiter
        self._permits = permits

    def __aenter__(self) -> Coroutine[Any, Any, float]:
        enter = self._limiter._enter_places if self._limiter._places else self._limiter.acquire
        return enter(self._permits)

    async def __aexit__(self, *error: object) -> None:
        self._limiter._leave()

    def __enter__(self) -> float:
        return self._limiter._enter_blocking(self._permits)

    def __exit__(self, *error: object) -> None:
        self._limiter._leave()

    def __call__(self, function: F) -> F:
        """Decorate a function, as `Limiter.__call__` does: each call acquires the permits first."""
        return limited(self, function, self._limiter._may_block)


def limited(block: Limiter | Weighted, function: F, may_block: bool) -> F:
    """The function, with each call inside the block; of a generator, all of its steps. A plain function blocks.

    Raises RuntimeError for a plain function if synchronous code may not wait, and TypeError unless it is a function.
    """
    if inspect.isasyncgenfunction(function):

        @wraps(function)
        async def steps(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            async with block, aclosing(generator):
                step = generator.asend(None)
                with suppress(StopAsyncIteration):
                    while True:
                        value = await step
                        # Pass on whatever the caller sends or throws, as `yield from` would.
                        try:
                            step = generator.asend((yield value))
                        except BaseException as error:
                            step = generator.athrow(error)

        return cast("F", steps)
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def wait(*args: Any, **kwargs: Any) -> Any:
            async with block:
                return await function(*args, **kwargs)

        return cast("F", wait)
    if not callable(function) or isinstance(function, (type, staticmethod)):
        raise TypeError(f"@limiter decorates functions, not {function!r:.80}: put it right above `async def` or `def`.")
    if not may_block:
        raise RuntimeError(f"@limiter: {function!r:.80} would block. Write `async def`, or create the limiter with scope='process'.")
    if inspect.isgeneratorfunction(function):

        def call(*args: Any, **kwargs: Any) -> Any:
            with block:
                return (yield from function(*args, **kwargs))

    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            with block:
                return function(*args, **kwargs)

    return cast("F", wraps(function)(call))
