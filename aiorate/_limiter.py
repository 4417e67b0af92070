"""The Limiter: what users call. It checks what is asked, in seconds and permits; the node decides.

It computes no schedule and sets no timer. Knows nothing of HTTP. Half of its lines are the documentation of the public calls, which
belongs to the class that users look up.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from aiorate._errors import LimiterClosed, check_count
from aiorate._loops.table import starved_here
from aiorate._options import check_on_wait, check_options, check_scope, strategy_of
from aiorate._rate import NO_BOUND, NS_PER_SECOND, Rate, duration_to_ns, ns_to_seconds
from aiorate._schedulers.interface import Scheduler, check_permits
from aiorate._tree import changes
from aiorate._tree.node import Node
from aiorate._tree.questions import above_on_demand, wait_for
from aiorate._tree.refusals import ACQUIRE, CLOSED, MaxWaiting
from aiorate._tree.timeline import NOT_ASKED
from aiorate._tree.tree import TURN

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import TracebackType
    from typing import Any, ClassVar, Literal, NoReturn

    from aiorate._decorator import Weighted
    from aiorate._events import Event, Waited
    from aiorate._feedback import Feedback
    from aiorate._inside import Inside
    from aiorate._loops.loop import Clock
    from aiorate._options import Limits
    from aiorate._rate import Duration, Number
    from aiorate._slots import Slot
    from aiorate._spec import RateSpec
    from aiorate._statistics import Statistics
    from aiorate._tree.tree import Tree
    from aiorate._tree.watch import Totals

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["Limiter", "pause_to_ns"]

P = ParamSpec("P")

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

    __slots__ = ("__weakref__", "_inside", "_max_waiting", "_meter", "_node")
    _ANY_SCOPE: ClassVar[bool] = False  # whether a subclass can be for the whole process

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
        scheduler = strategy_of("Limiter()", rate)
        if max_waiting is not None or clock is not None or name is not None or on_event is not None or on_wait is not None:
            check_options("Limiter", max_waiting, clock, name, on_event, on_wait)
        if not isinstance(precise, bool):
            raise TypeError(f"Limiter(precise) must be True or False, not {type(precise).__name__}.")
        tree: Tree | None = None
        if scope != "loop":
            check_scope("Limiter", scope)
            if type(self) is not Limiter and not self._ANY_SCOPE:
                raise TypeError(f"{type(self).__name__}: a subclass of Limiter cannot have scope={scope!r}. Wrap a Limiter instead.")
            from aiorate._tree.threads import ThreadTree

            tree = ThreadTree(clock, precise)
        self._node = Node(scheduler, duration_to_ns(catch_up, "Limiter(catch_up)"), precise, clock, name, tree)
        self._node.on_event = on_event
        self._meter = self._node.meter
        self._inside: Inside | None = None
        if max_concurrency is not None:
            from aiorate._inside import Inside

            check_count("Limiter(max_concurrency)", max_concurrency, ", or None (no bound)", least=1)
            self._inside = Inside(max_concurrency, self._node, clock)
        self._max_waiting: MaxWaiting | None = None
        if max_waiting is not None:
            self._max_waiting = MaxWaiting(max_waiting, self._node, self._places)
            if self._inside is not None:
                self._inside.max_waiting = self._max_waiting
        if on_wait is not None:
            self.watch(on_wait)

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
        node, tree, most = self._node, self._node.tree, self._max_waiting
        if tree.threads and permits is _ONE and not starved_here() and self._meter.grab(True):
            return 0.0
        ticket, _, asked, _ = tree.ask(node, permits, limit, most, ACQUIRE)
        if ticket is None:
            return 0.0
        if ticket is TURN:
            return (await tree.wait(node, ticket, permits, asked, limit, most))[0] / NS_PER_SECOND
        epoch, loop, waker, decided = tree.epoch, tree.loop, node.waker, ticket.done()
        # As Tree.wait(), without another coroutine.
        try:
            while not ticket.done():
                await waker.wait(ticket)  # type: ignore[union-attr]  # somebody waits
            if (decided or tree.resuming > 1) and loop is not None and loop.starved():
                await loop.turn()
        except BaseException:
            tree.leave(node, ticket, permits, epoch)
            raise
        return tree.resume(node, ticket, asked, permits, epoch)[0] / NS_PER_SECOND

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
        return node.tree.take(node, permits) is not None or self._refuse_try()

    def _refuse_try(self) -> bool:
        node = self._node
        if node.shut:
            raise LimiterClosed(f"try_acquire(): {CLOSED}")
        if above_on_demand(node):
            raise ACQUIRE.no_lease("try_acquire()")
        node.count().refused += 1
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
        from aiorate._tree.threads import wait_blocking

        return wait_blocking(self._node, self._node.tree, permits, limit, self._max_waiting)[0] / NS_PER_SECOND

    async def __aenter__(self) -> float:
        """Acquire one permit. ``as waited`` gets the seconds spent waiting. With ``max_concurrency``, wait for a free place first."""
        if self._inside is None and self._meter.grab():
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
        self._leave()

    async def _enter(self, permits: int) -> float:
        """Take the permits, and a place if there is a limit of concurrency; returns the seconds waited for both. `_leave` must follow."""
        if self._inside is None:
            return await self.acquire(permits)
        self._check("acquire()", permits)
        return await self._inside.enter(permits) / NS_PER_SECOND

    def _enter_blocking(self, permits: int) -> float:
        """As `_enter`, in a thread without an event loop, which it blocks. Needs ``scope="process"``."""
        if not self._node.tree.threads:
            raise RuntimeError(
                "`with` blocks its thread, and this limiter is for one event loop: write `async with limiter:`, or create the limiter with"
                " scope='process'."
            )
        if self._inside is None:
            return self.acquire_blocking(permits)
        self._check("acquire_blocking()", permits)
        return self._inside.enter_blocking(permits) / NS_PER_SECOND

    def _leave(self) -> None:
        """Leave the place that `_enter` took, if there is a limit of concurrency."""
        if self._inside is not None:
            self._inside.leave()

    @property
    def _lowest(self) -> Node:
        """The limit that a key asks, which shares this limiter."""
        return self._places or self._node

    def _share(self, shared: Limiter) -> None:
        """Take of that one too from now on, and a place of it if it has places."""
        node = self._node
        node.tree.run(changes.share, node, shared._lowest)
        if self._places is not None:
            self._places.tree = node.tree
        if shared._inside is not None:
            from aiorate._inside import Inside

            self._inside = self._inside or Inside(None, node)
            self._inside.max_waiting = self._max_waiting
            self._inside.rise()

    @property
    def _places(self) -> Node | None:
        """The limit of places below that of permits; None: there is none."""
        return None if self._inside is None or self._inside.node is self._node else self._inside.node

    def of(self, permits: int) -> Weighted:
        """Take several permits in one step: ``async with limiter.of(5):``, or ``@limiter.of(5)`` above a function."""
        self._check("of()", permits)
        from aiorate._decorator import Weighted

        return Weighted(self, permits)

    def __call__(self, function: F) -> F:
        """Decorate a function, so that every call acquires a permit first.

        Works on coroutine functions and async generator functions, and keeps their signature and types. With ``scope="process"``, plain
        functions and generator functions work too: they block.
        """
        from aiorate._decorator import Weighted, limited

        return limited(Weighted(self, 1), function)

    async def slots(self) -> AsyncGenerator[Slot, None]:
        """Yield one `Slot` after the other at the limiter's rate, for work that should start on schedule.

        If the body of the loop is slow, the next slots come at once, up to ``catch_up`` seconds' worth. Older ones are skipped, which shows
        as a gap in ``slot.index``, and are counted in ``statistics().skipped``.
        """
        from aiorate._slots import SlotCount

        node, count = self._node, SlotCount(self._node)
        while True:
            since = node.tree.run(count.open)
            ticket, at, asked, _ = node.tree.ask(node, 1, None, self._max_waiting, ACQUIRE, since, False)
            if at != NOT_ASKED:
                node.tree.run(count.granted_at_once)
            if ticket is not None:
                _, at, _ = await node.tree.wait(node, ticket, 1, asked, None, self._max_waiting, ACQUIRE, since)
            yield node.tree.run(count.slot, at)

    def _check(self, call: str, permits: int) -> None:
        node = self._node
        check_permits(call, permits, node.scheduler.max_permits if node.above is None else node.max_permits)

    # Changing, for those in line too.

    def set_rate(self, rate: Rate | str | Number, *, member: int | None = None) -> None:
        """Change the rate, for callers that are already waiting too.

        What is stored or owed stays. A window keeps its period: 90 per second is 5400 in a window of one minute.

        Args:
            rate: The new rate.
            member: If the limiter was made from a list of limits, the index of the one to change, counted from 0.

        Waiting requests that are now larger than the limiter can ever grant fail with a ValueError.
        """
        self._change(changes.set_rate, self._node, rate, member)

    def pause(self, seconds: Duration) -> None:
        """Let nothing through for this many seconds, or a timedelta.

        If pauses overlap, the latest end wins. Afterwards the queue goes on where it stopped; paused time is neither saved up nor owed.
        """
        self._change(changes.pause, self._node, pause_to_ns(seconds))

    def observe(self, feedback: Feedback | None, *, jitter: Duration = 0) -> None:
        """Apply what a server's response said about the limit, as `aiorate.http.read_feedback` reads it. None does nothing.

        A refusal pauses the limiter. A quota limits what is let through until it is reset. A server can only make a limiter slower than you
        made it.

        Args:
            feedback: What the response said.
            jitter: Make a pause longer by a random part of this many seconds, so that many clients do not come back together.
        """
        if feedback is not None:
            self._change(changes.observe, self._node, feedback, duration_to_ns(jitter, "observe(jitter)"))

    def resume(self) -> None:
        """End a pause now, whoever began it."""
        self._change(changes.resume, self._node)

    def refund(self, permits: int) -> None:
        """Give back permits that you did not use. Callers in the queue may move up.

        A limit never gets more than it can hold. Limits that this one shares get the permits back too. 0 does nothing.
        """
        if _is_none("refund()", permits):
            return
        self._change(changes.refund, self._node, permits)

    def charge(self, permits: int) -> None:
        """Take permits that you have already used. Later callers wait until they are paid for.

        There may be more of them than any request can ask for. Limits that this one shares are charged too. 0 does nothing.
        """
        if _is_none("charge()", permits):
            return
        self._change(changes.charge, self._node, permits)

    def reset(self) -> None:
        """Start over: as full as the strategy begins, without debt or pause, with all counters at 0. Callers in the queue stay there."""
        self._change(changes.reset, self._node)
        if self._places is not None:
            self._change(self._places.count().clear)

    def apply(self, spec: RateSpec | str) -> None:
        """Apply a `RateSpec`, or its text such as ``"12000,1.1,start"``: a rate, a burst ratio and a verb.

        ``start`` ends a stop and reopens a closed limiter, ``stop`` lets nothing through until then, ``restart`` also forgets a backlog,
        and ``configure`` only changes the numbers. The burst ratio is for strategies that have one: `TokenPool` and `BurstRatio`.
        """
        from aiorate._spec import RateSpec

        new = RateSpec.parse(spec) if isinstance(spec, str) else spec
        if not isinstance(new, RateSpec):
            raise TypeError(f"apply() takes a RateSpec or its text such as '12000,1.1,start', not {type(spec).__name__}.")
        self._change(changes.apply, self._node, new)
        if self._places is not None and not self._node.closed:
            self._places.closed = False

    async def aclose(self) -> None:
        """Close the limiter. Callers in the queue get `LimiterClosed`, and no task or timer is left when this returns."""
        error = LimiterClosed("acquire(): the limiter was closed while this request was waiting.")
        for node in (self._places, self._node):
            if node is not None:
                node.tree.run(node.close, error)
        await self._node.tree.finish(self._node)

    def _change(self, change: Callable[P, object], *args: P.args, **options: P.kwargs) -> None:
        """Change something, one thread at a time; in a finalizer that interrupted a decision, right after that."""
        self._node.tree.change(partial(change, *args, **options))

    # Looking.

    @property
    def name(self) -> str | None:
        """The name that it was given."""
        return self._node.name

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
        node = self._node
        wait = node.tree.run(lambda: wait_for(node, permits, node.look_now()))
        return float("inf") if wait is None or node.shut else ns_to_seconds(wait)

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
        return self._node.scheduler._bound_when_late(window, largest, self._node.catch_up)

    def statistics(self) -> Statistics:
        """Return a snapshot of the counters."""
        from aiorate._statistics import snapshot

        return self._node.tree.run(snapshot, self._node, self._places)

    def watch(self, on_wait: Callable[[Waited], object]) -> Callable[[], None]:
        """Call a function after each wait, with a `Waited`.

        It is called in the task or thread that waited, just before that goes on, so keep it short. It is not called for requests that went
        straight through, were refused, or were cancelled. If it raises, that is logged, and the request goes on.

        Returns:
            A function that ends the calls.
        """
        check_on_wait("watch", on_wait)
        from aiorate._tree.watch import watch_of

        return watch_of(self._lowest, self._node).add(on_wait)

    def _totals(self) -> Totals:
        """What was granted and refused since it was made, and how many wait: for parts of aiorate that are built upon a limiter.

        May be called in any thread: it reads plain numbers, and changes nothing.
        """
        from aiorate._tree.watch import totals_of

        return totals_of(self._node, (), self._places)

    def _check_as_shared(self, what: str, instead: str) -> None:
        """Raise ValueError if the limiter has options that do not hold for permits taken through others.

        The error names ``instead`` as the place for ``max_waiting``.
        """
        if self._max_waiting is not None:
            raise ValueError(
                f"{what}: a shared limiter cannot have max_waiting={self._max_waiting.most}; at most one request of each line waits in it."
                f" Leave it out, and give max_waiting to {instead}."
            )

    def __repr__(self) -> str:
        return self._node.tree.read(self._shown)

    def _shown(self) -> str:
        node = self._node
        name = f" {node.name!r}" if node.name else ""
        state = ", closed" if node.closed else ", stopped" if node.stopped else ", paused" if node.paused else ""
        waiting, places = len(node.line), ""
        if self._places is not None:
            waiting += len(self._places.line)
            places = f", {self._places.scheduler!r}"
        return f"<Limiter{name} {node.scheduler!r}{places}, {waiting} waiting{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Limiter cannot be copied or pickled: the copy would grant the same permits again. Share it, or create another.")


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
