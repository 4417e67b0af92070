"""What a `Limiter` and a `Budget` have in common."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from aiorate._errors import LimiterClosed, Shared, called, check_count, kind_of
from aiorate._loops.loop import Clock
from aiorate._rate import duration_to_ns, ns_to_seconds
from aiorate._schedulers.amounts import count_of
from aiorate._schedulers.interface import Scheduler
from aiorate._schedulers.places import Places
from aiorate._schedulers.token_pool import PlainPool
from aiorate._tree.limit import Limit
from aiorate._tree.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Literal

    from aiorate._events import Event, Waited
    from aiorate._feedback import Feedback
    from aiorate._limiters.statistics import Statistics
    from aiorate._rate import Duration, Number, Rate
    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.watch import Watch

    _One = Scheduler | Rate | str | Number
    Limits = _One | Sequence[_One]  # a list or a tuple


T = TypeVar("T")


class Base(Shared):
    """One node of a tree, and the places below it if there is a ``max_concurrency``."""

    __slots__ = ("__weakref__", "_lowest", "_meter", "_node", "_places")
    _places: tuple[tuple[Limit, Places], ...]  # that a block takes, each with its limit: its own, and shared ones
    _limit_of: Any = None  # Callable[[Feedback, Quota], tuple[Limit, str | None] | None]
    """The limit to which a quota of a response applies, and the dimension if it has several. By default, its own, if of requests."""
    _lowest: Limit  # asked on entering, and by those who share it: that of its places, if it has any

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
        if max_waiting is not None or clock is not None or name is not None or on_event is not None or on_wait is not None:
            check_options(type(self).__name__, max_waiting, clock, name, on_event, on_wait)
        # The defaults by hand: a twelfth of the time that a limiter takes.
        late = 20_000_000 if catch_up == 0.02 else duration_to_ns(catch_up, f"{type(self).__name__}(catch_up)")
        kind, tree = (Limit, Tree) if scope == "loop" else kinds_of(type(self).__name__, scope)
        self._begin(kind(strategy_of("Limiter()", rate), late, tree(clock, precise), name), on_event)
        if max_concurrency is not None:
            check_count(f"{type(self).__name__}(max_concurrency)", max_concurrency, ", or None (no bound)", least=1)
            places = Places(max_concurrency)
            below = self._lowest = kind(places, 0, self._node.tree)
            below.share(self._node)
            below.is_places = True
            self._places = ((below, places),)
        if max_waiting is not None:
            for limit in self._lines:
                limit.max_waiting = max_waiting, [other for other in self._lines if other is not limit]
        if on_wait is not None:
            self.watch(on_wait)

    def _begin(self, node: Limit, on_event: Callable[[Event], object] | None) -> None:
        self._node = self._lowest = node
        self._meter = node.meter
        self._places = ()
        node.on_event = on_event

    # Asking.

    def _wait_now(self, permits: Permits) -> float:
        """The seconds that a request made now would wait."""
        node = self._node
        wait = node.tree.run(lambda: node.wait_for(permits, node.informed()))
        return float("inf") if wait is None else ns_to_seconds(wait)

    @property
    def _lines(self) -> tuple[Limit, ...]:
        """Its own, those in whose lines its requests wait."""
        return (self._node,) if self._lowest is self._node else (self._node, self._lowest)

    @property
    def _may_block(self) -> bool:
        """Whether synchronous code may wait for it."""
        return self._node.tree.threads

    # Changing, for those in line too.

    def pause(self, seconds: Duration) -> None:
        """Let nothing through for this many seconds, or a timedelta. What it shares with others is not paused.

        If pauses overlap, the latest end wins. Afterwards the queue goes on where it stopped; paused time is neither saved up nor owed.
        """
        self._node.tree.change(self._node.pause, duration_to_ns(seconds, "pause()"))

    def resume(self) -> None:
        """End a pause now, whoever began it."""
        self._node.tree.change(self._node.resume)

    def observe(self, feedback: Feedback | None, *, jitter: Duration = 0) -> None:
        """Apply what a server's response said about the limit, as `aiorate.http.read_feedback` reads it. None does nothing.

        A refusal pauses it. A quota limits what is let through until it is reset; of a `Budget`, the dimension of its name or, if there is
        none, of its unit. A server can only make it slower than you made it.

        Args:
            feedback: What the response said.
            jitter: Make a pause longer by a random part of this many seconds, so that many clients do not come back together.
        """
        if feedback is not None:
            self._node.tree.change(self._node.observe, feedback, duration_to_ns(jitter, "observe(jitter)"), self._limit_of)

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
        from aiorate._tree.watch import Watch

        watch = self._node.watch or Watch()
        for each in self._lines:
            each.watch = watch
        return watch

    def _totals(self) -> Counter[tuple[str, str | None]]:
        """What was granted and refused since it was made, whatever was reset, and how many wait. Safe in any thread."""
        node, counters = self._node, self._node.counters
        kept = counters.past_granted + node.granted - counters.given_back
        waiting = sum([max(len(each.line), 0) for each in self._lines])
        permits = {("permits", dimension): count for dimension, count in self._by_dimension(kept).items()}
        return Counter({("refusals", None): counters.past_refused + counters.refused, ("waiting", None): waiting, **permits})

    def _by_dimension(self, permits: Permits) -> Mapping[str | None, int]:
        return {None: count_of(permits)}

    def __repr__(self) -> str:
        return self._text() if self._node.tree.deciding else self._node.tree.run(self._text)

    def _text(self) -> str:
        """What `repr` says. In a decision, because strategies first note what the meter has granted."""
        node, waiting = self._node, sum([len(each.line) for each in self._lines])
        state = ", closed" if node.closed else ", stopped" if node.stopped else ", paused" if node.paused else ""
        return f"<{type(self).__name__}{f' {node.name!r}' if node.name else ''} {self._shown()}, {waiting} waiting{state}>"

    def _shown(self) -> str:
        return ", ".join([repr(each.scheduler) for each in self._lines])

    # Sharing.

    def _check_part(self, what: str, process: bool, shared: bool = False) -> None:
        """Raise ValueError, which names it ``what``, if its scope is another, or if it is ``shared`` and has a ``max_waiting``."""
        if shared and (most := self._node.max_waiting) is not None:
            raise ValueError(f"{what}: what is shared cannot have max_waiting={most[0]}. Give max_waiting to those who share it.")
        if process is not self._node.tree.threads:
            own, other = ("loop", "process") if process else ("process", "loop")
            raise ValueError(f"{what}: this has scope={own!r}, and what has it scope={other!r}. Create both with the same scope.")

    def _share(self, shared: Any) -> None:
        """Be that of a key from now on, and take of ``shared`` too, of the same class, if given. ValueError if it cannot."""
        raise NotImplementedError


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that blocks its thread instead of waiting."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError  # it waits


def check_options(of: str, max_waiting: object, clock: object, name: object, on_event: object, on_wait: object) -> None:
    """Raise TypeError or ValueError for options that the class ``of`` cannot have."""
    if max_waiting is not None:
        check_count(f"{of}(max_waiting)", max_waiting, ", or None (no bound)")
    if clock is not None and not isinstance(clock, Clock):
        raise TypeError(f"{of}(clock) must have a method now() -> int, as aiorate.testing.ManualClock has; {clock!r} has none.")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{of}(name) must be text, not {kind_of(name)}.")
    if on_event is not None:
        check_callback(f"{of}(on_event)", on_event, "Event")
    if on_wait is not None:
        check_callback(f"{of}(on_wait)", on_wait, "Waited")


def kinds_of(of: str, scope: object) -> tuple[type[Limit], type[Tree]]:
    """The classes for a limit of that scope. ``of`` is the class that the ValueError for another scope names."""
    if scope == "loop":
        return Limit, Tree
    if scope != "process":
        raise ValueError(f"{called(f'{of}(scope)', scope)} must be 'loop' or 'process'.")
    from aiorate._tree.threads import ThreadLimit, ThreadTree

    return ThreadLimit, ThreadTree


def check_callback(what: str, function: object, told: str) -> None:
    """Raise TypeError that begins with ``what`` unless it is a plain function: nobody would await an async one."""
    from inspect import iscoroutinefunction

    if not callable(function) or any(map(iscoroutinefunction, (function, type(function).__call__))) or isinstance(function, type):
        raise TypeError(f"{what} must be a plain function of an aiorate.{told}, such as print, not {kind_of(function)}.")


def strategy_of(call: str, limit: object) -> Scheduler:
    """The strategy of a rate, a strategy, or a list of these. Errors begin with ``call``."""
    if type(limit) is str:  # nearly always, and isinstance() takes longer
        return PlainPool(limit)
    if isinstance(limit, Scheduler):
        return limit
    if isinstance(limit, (list, tuple)):
        from aiorate._schedulers.all_of import AllOf

        return AllOf(*[strategy_of(call, each) for each in limit])
    try:
        return PlainPool(limit)  # type: ignore[arg-type]  # which says what is wrong
    except TypeError:
        raise TypeError(f"{call} takes a rate such as '100/s', a strategy, or a list of these, not {kind_of(limit)}.") from None
