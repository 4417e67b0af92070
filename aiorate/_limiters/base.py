"""What a `Limiter` and a `Budget` have in common: their options, and the calls that are the same for both.

A `Block` is what is entered and left, by ``async with``, ``with``, or a call of a decorated function.
"""

from __future__ import annotations

import inspect
from collections import Counter
from contextlib import aclosing
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from aiorate._errors import LimiterClosed, check_count, no_copy
from aiorate._limiters.options import check_callback, check_options, kinds_of
from aiorate._rate import duration_to_ns, ns_to_seconds
from aiorate._schedulers.amounts import count_of
from aiorate._tree.limit import Limit
from aiorate._tree.tree import Tree

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
    from types import TracebackType
    from typing import Literal, NoReturn

    from aiorate._events import Event, Waited
    from aiorate._feedback import Feedback, Quota
    from aiorate._limiters.inside import Inside
    from aiorate._limiters.statistics import Statistics
    from aiorate._loops.loop import Clock
    from aiorate._rate import Duration
    from aiorate._schedulers.amounts import Permits
    from aiorate._schedulers.interface import Scheduler
    from aiorate._tree.watch import Watch

    F = TypeVar("F", bound=Callable[..., Any])


P = ParamSpec("P")
T = TypeVar("T")


class Base:
    """One node of a tree, and the places below it if there is a ``max_concurrency``."""

    __slots__ = ("__weakref__", "_all_places", "_lowest", "_meter", "_node")
    _all_places: tuple[Inside, ...]
    """Those of what it shares, too."""
    _lowest: Limit
    """The limit that is asked on entering, and by those who share it: that of its places, if it has any."""

    def __init__(
        self,
        scheduler: Scheduler,
        catch_up: Duration,
        max_waiting: int | None,
        max_concurrency: int | None,
        precise: bool,
        scope: Literal["loop", "process"],
        clock: Clock | None,
        name: str | None,
        on_event: Callable[[Event], object] | None,
        on_wait: Callable[[Waited], object] | None,
    ) -> None:
        if max_waiting is not None or clock is not None or name is not None or on_event is not None or on_wait is not None:
            check_options(type(self).__name__, max_waiting, clock, name, on_event, on_wait)
        # The defaults by hand: a twelfth of the time that a limiter takes.
        late = 20_000_000 if catch_up == 0.02 else duration_to_ns(catch_up, f"{type(self).__name__}(catch_up)")
        kind, tree = (Limit, Tree) if scope == "loop" else kinds_of(type(self).__name__, scope)
        self._begin(kind(scheduler, late, tree(clock, precise), name), on_event)
        node = self._node
        if max_concurrency is not None:
            from aiorate._limiters.inside import Inside

            check_count(f"{type(self).__name__}(max_concurrency)", max_concurrency, ", or None (no bound)", least=1)
            self._all_places = (Inside(max_concurrency, node),)
            self._lowest = self._all_places[0].node
        if max_waiting is not None:
            for limit in self._lines:
                limit.max_waiting = max_waiting, [other for other in self._lines if other is not limit]
        if on_wait is not None:
            self.watch(on_wait)

    def _begin(self, node: Limit, on_event: Callable[[Event], object] | None) -> None:
        self._node = self._lowest = node
        self._meter = node.meter
        self._all_places = ()
        node.on_event = on_event

    # Asking.

    def _wait_now(self, permits: Permits) -> float:
        """How many seconds a request made now would wait."""
        node = self._node
        wait = node.tree.run(lambda: node.wait_for(permits, node.informed()))
        return float("inf") if wait is None or node.shut else ns_to_seconds(wait)

    @property
    def _lines(self) -> tuple[Limit, ...]:
        """Its own, those in whose lines its requests wait."""
        return (self._node,) if self._lowest is self._node else (self._node, self._lowest)

    @property
    def _may_block(self) -> bool:
        """Whether synchronous code may wait for it."""
        return self._node.tree.threads

    # Changing, for those in line too.

    def _change(self, change: Callable[P, object], *args: P.args, **options: P.kwargs) -> None:
        """Change something, one thread at a time; in a finalizer that interrupted a decision, right after that."""
        self._node.tree.change(partial(change, *args, **options))

    def pause(self, seconds: Duration) -> None:
        """Let nothing through for this many seconds, or a timedelta. What it shares with others is not paused.

        If pauses overlap, the latest end wins. Afterwards the queue goes on where it stopped; paused time is neither saved up nor owed.
        """
        self._change(self._node.pause, duration_to_ns(seconds, "pause()"))

    def resume(self) -> None:
        """End a pause now, whoever began it."""
        self._change(self._node.resume)

    def observe(self, feedback: Feedback | None, *, jitter: Duration = 0) -> None:
        """Apply what a server's response said about the limit, as `aiorate.http.read_feedback` reads it. None does nothing.

        A refusal pauses it. A quota limits what is let through until it is reset; of a `Budget`, the dimension of its name or, if there is
        none, of its unit. A server can only make it slower than you made it.

        Args:
            feedback: What the response said.
            jitter: Make a pause longer by a random part of this many seconds, so that many clients do not come back together.
        """
        if feedback is not None:
            self._change(self._node.observe, feedback, duration_to_ns(jitter, "observe(jitter)"), self._limit_of)

    def _limit_of(self, feedback: Feedback, quota: Quota) -> tuple[Limit, str | None] | None:
        """The limit that heeds one of a response's quotas, and its dimension if it has several; None: no limit does."""
        return (self._node, None) if quota.unit == "requests" else None

    async def aclose(self) -> None:
        """Close it. Callers in the queue get `LimiterClosed`, and no task or timer is left when this returns.

        What it shares stays open.
        """
        self._close()
        if self._node.waker is not None:
            await self._node.waker.aclose()
        await self._node.provider.aclose()

    def _close(self) -> None:
        node = self._node
        error = LimiterClosed(f"the limiter{f' {node.name!r}' if node.name else ''} was closed while this request was waiting.")
        node.tree.run(node.close, error)
        if self._lowest is not node:
            node.tree.run(self._lowest.fail, error)

    # Looking.

    @property
    def name(self) -> str | None:
        """The name that it was given."""
        return self._node.name

    def statistics(self) -> Statistics:
        """Return a snapshot of the counters.

        Those of a `Budget` are in reservations: ``available`` is how many of 1 each could be made now, settled amounts are not counted, and
        ``rate`` is that of the first dimension.
        """
        from aiorate._limiters.statistics import snapshot

        return self._node.tree.run(snapshot, *self._lines)

    def watch(self, on_wait: Callable[[Waited], object]) -> Callable[[], None]:
        """Call a function after each wait, with a `Waited`.

        It is called in the task or thread that waited, just before that goes on, so keep it short. It is not called for requests that went
        straight through, were refused, or were cancelled. If it raises, that is logged, and the request goes on.

        Returns:
            A function that ends the calls.
        """
        check_callback("watch(on_wait)", on_wait, "Waited")
        return self._watched().add(on_wait)

    def _watched(self) -> Watch:
        """Who is told of those that wait here, made by now."""
        from aiorate._tree.watch import Watch

        watch = self._node.watch or Watch()
        for each in self._lines:
            each.watch = watch
        return watch

    def _totals(self) -> Counter[tuple[str, str | None]]:
        """What was granted and refused since it was made, whatever was reset, and how many wait: for parts of aiorate built upon it.

        May be called in any thread, of any event loop: it reads plain numbers, and changes nothing. A number that changes meanwhile may be
        read before or after the change.
        """
        node, counters = self._node, self._node.counters
        kept = counters.past_granted + node.granted - counters.given_back
        waiting = sum([max(len(each.line), 0) for each in self._lines])
        totals = {("permits", dimension): permits for dimension, permits in self._by_dimension(kept).items()}
        return Counter({("refusals", None): counters.past_refused + counters.refused, ("waiting", None): waiting, **totals})

    def _by_dimension(self, permits: Permits) -> Mapping[str | None, int]:
        return {None: count_of(permits)}

    def __repr__(self) -> str:
        return self._node.tree.read(self._text)

    def _text(self) -> str:
        """What `repr` says. In a decision, because strategies note what the meter has granted before they say what is left."""
        node, waiting = self._node, sum([len(each.line) for each in self._lines])
        state = ", closed" if node.closed else ", stopped" if node.stopped else ", paused" if node.paused else ""
        return f"<{type(self).__name__}{f' {node.name!r}' if node.name else ''} {self._shown()}, {waiting} waiting{state}>"

    def _shown(self) -> str:
        """The limits."""
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        no_copy(self)

    # Sharing.

    def _check_as_shared(self, what: str, process: bool) -> None:
        """Raise ValueError, which names it ``what``, if it has options that do not hold for permits taken through others."""
        if (most := self._node.max_waiting) is not None:
            raise ValueError(
                f"{what}: what is shared cannot have max_waiting={most[0]}; at most one request of each line waits in it."
                " Give max_waiting to those who share it."
            )
        self._check_scope(what, process)

    def _check_scope(self, what: str, process: bool) -> None:
        """Raise ValueError, which names it ``what``, unless it is for a ``process``, or one event loop, as what it is to be a part of."""
        if process is not self._node.tree.threads:
            own, other = ("loop", "process") if process else ("process", "loop")
            raise ValueError(f"{what}: this has scope={own!r}, and what has it scope={other!r}. Create both with the same scope.")

    def _belong(self, shared: Any) -> None:
        """From now on it is that of a key, and shares ``shared`` of the same class, if that is given. Raises ValueError if it cannot."""
        if shared is not None and self._lowest.line.turns is not None:  # they would miss it
            raise ValueError("others share it already: make one for each key, which others may share once it shares this limit.")


class Block(Generic[T]):
    """Entered, it gives T. A class says how to enter and to leave it."""

    __slots__ = ()

    def _enter(self, *, blocking: bool = False) -> Coroutine[Any, Any, T]:
        """Wait until the block may begin. `_leave` must follow. ``blocking``: in a thread without an event loop, and in one step."""
        raise NotImplementedError

    def _leave(self, error: BaseException | None = None) -> None:
        """The block has ended, perhaps by that error. Never waits."""
        raise NotImplementedError

    def __aenter__(self) -> Coroutine[Any, Any, T]:
        """Wait until it is your turn."""
        return self._enter()  # not a coroutine around it

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the block."""
        self._leave(error)

    def __enter__(self) -> T:
        """Wait in synchronous code, which needs ``scope="process"``."""
        return finish(self._enter(blocking=True))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the block, in any thread."""
        self._leave(error)


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that blocks its thread instead of waiting."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError  # it waits


def limited(block: Block[Any], function: F, may_block: bool) -> F:
    """The function, with each call inside the block; of a generator, all of its steps. A plain function blocks.

    Raises RuntimeError for a plain function if synchronous code may not wait, and TypeError for anything but a function.
    """
    if inspect.isasyncgenfunction(function):

        @wraps(function)
        async def steps(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            generator = function(*args, **kwargs)
            async with block, aclosing(generator):
                try:
                    value = await anext(generator)
                    while True:
                        # Pass on to the generator whatever the caller sends or throws, as `yield from` would.
                        try:
                            sent = yield value
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            value = await generator.athrow(error)
                        else:
                            value = await generator.asend(sent)
                except StopAsyncIteration:
                    return

        return cast("F", steps)
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with block:
                return await function(*args, **kwargs)

        return cast("F", call)
    if not callable(function) or isinstance(function, (type, staticmethod)):
        raise TypeError(f"@limiter decorates functions, not {function!r:.80}: put it right above `async def` or `def`.")
    if not may_block:
        raise RuntimeError(
            f"@limiter: {function!r:.80} is a plain function, which would block its thread, and this limiter is for one event loop. Write"
            " `async def`, or create the limiter with scope='process'."
        )
    return _blocking(block, function)


def _blocking(block: Block[Any], function: F) -> F:
    @wraps(function)
    def steps(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with block:
            return (yield from function(*args, **kwargs))

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with block:
            return function(*args, **kwargs)

    return cast("F", steps if inspect.isgeneratorfunction(function) else call)
