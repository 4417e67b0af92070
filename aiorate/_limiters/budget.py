"""Several limits that a call uses by different amounts, such as requests and tokens per minute.

A `Budget` has the dimensions, a `Lease` is what one call has reserved of it, and a `KeyedBudget` has a budget for each key.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from logging import getLogger
from operator import itemgetter, methodcaller
from typing import TYPE_CHECKING, TypeVar

from aiorate._errors import Shared, called, check_count, kind_of
from aiorate._events import Event
from aiorate._limiters.base import Base, finish, strategy_of
from aiorate._limiters.keyed import Keyed
from aiorate._limiters.limiter import Limiter
from aiorate._rate import duration_to_ns, ns_to_seconds
from aiorate._schedulers.amounts import Amounts
from aiorate._schedulers.dimensions import Dimensions
from aiorate._tree.node import undo

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Mapping
    from types import TracebackType
    from typing import Any, Literal

    from aiorate._events import Waited
    from aiorate._feedback import Feedback, Quota
    from aiorate._limiters.base import Limits
    from aiorate._loops.loop import Clock
    from aiorate._rate import Duration
    from aiorate._schedulers.amounts import Permits
    from aiorate._schedulers.interface import Scheduler
    from aiorate._tree.limit import Limit
    from aiorate._tree.node import Taken

    OnError = Literal["keep", "refund"]


K = TypeVar("K", bound="Hashable")

_logger = getLogger("aiorate")


class Budget(Base):
    """Limit several things together, such as requests and tokens.

    Reserve an estimate before a call, and settle what it used afterwards::

        budget = Budget(requests="500/min", tokens=TokenBucket("200_000/min", burst=50_000))

        async with budget.reserve(tokens=1800) as lease:
            reply = await call()
            lease.settle(tokens=reply.tokens)

    A reservation waits until every dimension has its amount, and takes nothing before that.

    Args:
        shared: Another budget to take from as well, by the names of the dimensions; it may share one in turn. Dimensions that only the
            shared budget has take 0 unless you name them.
        on_error: What happens to a reservation whose block raises: ``"keep"`` it, because the server may have counted the call, or
            ``"refund"`` it.
        max_waiting: How many callers may queue up; the next one gets `LineFull`. Unlimited by default.
        catch_up: How many seconds of lost time to make up for when the event loop is late.
        clock: A different source of time, for tests.
        name: Shown in logs, metrics and ``repr()``.
        on_event: Called with an `Event` when a server asks for a pause, or when an estimate is lowered.
        on_wait: Called with a `Waited` after each wait; see `watch`.
        scope: ``"loop"`` or ``"process"``, as for a `Limiter`. Everything that it shares needs the same scope.
        **dimensions: The limits, by name: a rate, a strategy, or a list of these. One of them may be a `Limiter`, which several budgets can
            share.
    """

    __slots__ = ("_names", "_on_error", "_parts", "_told", "_unnamed")
    # What a reservation takes from, its own first: the dimension's name, the limit, and the strategy there or, of a Limiter, the limit.
    _parts: tuple[tuple[str, Limit, Scheduler | Limit], ...]

    def __init__(
        self,
        *,
        shared: Budget | None = None,
        on_error: OnError = "keep",
        max_waiting: int | None = None,
        catch_up: Duration = 0.02,
        clock: Clock | None = None,
        name: str | None = None,
        on_event: Callable[[Event], object] | None = None,
        on_wait: Callable[[Waited], object] | None = None,
        scope: Literal["loop", "process"] = "loop",
        **dimensions: Limiter | Limits,
    ) -> None:
        check_on_error("Budget(on_error)", on_error)
        own = {place: limit for place, limit in dimensions.items() if not isinstance(limit, Limiter)}
        if not own:
            raise TypeError("Budget() needs a dimension of its own besides what it shares, such as Budget(requests='500/min').")
        above: dict[str, Limiter | Budget] = {place: limit for place, limit in dimensions.items() if isinstance(limit, Limiter)}
        if shared is not None:
            if not isinstance(shared, Budget):
                raise TypeError(f"Budget(shared) must be a Budget, not {kind_of(shared)}. A shared Limiter is a dimension: tokens=limiter.")
            above[""] = shared
        if len(above) > 1:
            raise ValueError(f"Budget(): {' and '.join([place or 'shared' for place in above])}: a budget can share one limit, not more.")
        for place, limit in above.items():
            limit._check_part(f"Budget({place or 'shared'})", scope == "process", shared=True)
            if limit._places:
                raise ValueError(f"Budget({place}): a Limiter with max_concurrency cannot be a dimension: a reservation takes no place.")
        scheduler = self._scheduler(own)
        super().__init__(
            scheduler, catch_up=catch_up, max_waiting=max_waiting, scope=scope, clock=clock, name=name, on_event=on_event, on_wait=on_wait
        )
        self._names = scheduler.names
        self._parts = tuple(zip(self._names, repeat(self._node), scheduler.members))
        self._unnamed = dict.fromkeys(self._names, 1)  # the amounts of dimensions that a reservation leaves out
        for place, limit in above.items():
            self._node.tree.run(self._share, limit, place)
        self._on_error: OnError = on_error
        self._told: set[str] = set()  # dimensions whose estimates were lowered

    def _scheduler(self, limits: dict[str, Limits]) -> Dimensions:
        """Make the scheduler of the dimensions. A subclass may keep them elsewhere."""
        return Dimensions({place: strategy_of(f"Budget({place})", limit) for place, limit in limits.items()})

    def _share(self, shared: Budget | Limiter | None, place: str = "") -> None:
        """Take from that too from now on. A Limiter is the dimension ``place``."""
        node = self._node
        if shared is None:
            if node.keeps is None:
                node.belong(None)
            return
        parts = shared._parts if isinstance(shared, Budget) else ((place, shared._node, shared._node),)
        names = shared._names if isinstance(shared, Budget) else (place,)
        up: Callable[[Any], Any] = itemgetter(place) if place else methodcaller("part", names)
        node.belong(shared._node, up)  # pyright: ignore[reportArgumentType]  # it takes amounts
        node.keeps, node.waited_above = shared, methodcaller("waited_above", place)
        self._parts += parts
        self._unnamed = {**dict.fromkeys(self._names + names, 1 if place else 0), **self._unnamed}
        self._names = tuple(self._unnamed)

    # Asking.

    def reserve(self, *, max_wait: Duration | None = None, on_error: OnError | None = None, **amounts: int) -> Lease:
        """Return a lease of these amounts, for ``async with``.

        Entering it waits until every dimension has its amount, and raises what `Limiter.acquire` raises.

        Args:
            max_wait: The longest you are prepared to wait, in seconds or as a timedelta.
            on_error: ``"keep"`` or ``"refund"``, in place of the budget's.
            **amounts: How much of each dimension. Dimensions you leave out count as 1. Pass 0 to skip one. An amount above the most that
                can be granted at once is lowered to that.
        """
        if on_error is not None:
            check_on_error("reserve(on_error)", on_error)
        most_ns = None if max_wait is None else duration_to_ns(max_wait, "reserve(max_wait)")
        asked = self._asked("reserve", amounts)
        for place, amount in amounts.items():
            if asked[place] < amount and place not in self._told:
                self._told.add(place)
                told = Event("clamped", self._node.name, key=place, permits=asked[place])
                self._node.tree.post(partial(self._node.tell, told))
        return Lease(self, asked, most_ns, self._on_error if on_error is None else on_error)

    def _limit_of(self, feedback: Feedback, quota: Quota) -> tuple[Limit, str | None] | None:
        # Where the server reports all tokens too, those that go in or out alone do not lower a dimension of tokens.
        told = {each.name for each in feedback.quotas}
        place = quota.name if quota.name in self._names or quota.unit in told else quota.unit
        node = next((node for dimension, node, _ in self._parts if dimension == place), None)
        return None if node is None else (node, place if isinstance(node.scheduler, Dimensions) else None)

    # Looking.

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names of the dimensions. Those that are only shared come last."""
        return self._names

    @property
    def waiting(self) -> int:
        """How many reservations are in the queue."""
        node = self._node
        return node.tree.run(lambda: (node.look_now(), node.line.waiting)[1])

    def available(self, dimension: str) -> int:
        """Return how much of a dimension is available now. 0 while somebody waits, while paused, and once closed."""
        self._check_amounts("available", {dimension: 0})
        return self._node.tree.run(self._available, dimension)

    def _available(self, place: str) -> int:
        held, least = False, []
        for name, node, _ in self._parts:  # a reservation of it takes nothing of those after the last that has it
            now, dimensions = node.informed(), node.scheduler
            held = held or node.is_held
            if name == place:
                own = dimensions.available_of(place, now) if isinstance(dimensions, Dimensions) else node.available()
                least.append(0 if held else own)
        return min(least)

    def delay(self, **amounts: int) -> float:
        """Return how many seconds a reservation of these amounts would have to wait now; infinite if the budget is closed."""
        return self._wait_now(self._asked("delay", amounts))

    def _asked(self, call: str, amounts: dict[str, int]) -> Amounts:
        """The amounts of all dimensions, lowered to the most that can be granted at once, here and above."""
        self._check_amounts(call, amounts)
        amounts = {**self._unnamed, **amounts}
        for place, _, limit in self._parts:
            most = limit.max_permits
            if most is not None and most < amounts[place]:
                amounts[place] = most
        return Amounts(self._names, tuple(amounts.values()))

    def _check_amounts(self, call: str, amounts: dict[str, int]) -> None:
        for place, amount in amounts.items():
            if place not in self._unnamed:
                raise TypeError(f"{call}(): unknown dimension {place!r}; the dimensions are {', '.join(self._names)}.")
            if type(amount) is not int or amount < 0:
                check_count(f"{call}({place})", amount)

    def _by_dimension(self, permits: Permits) -> Mapping[str | None, int]:
        """The amounts that were reserved and kept, before they are settled."""
        return dict(zip(self._names, permits.of if isinstance(permits, Amounts) else repeat(0), strict=False))

    def _shown(self) -> str:
        limits: dict[str, object] = {place: limit for place, node, limit in self._parts if node is self._node}
        if (shared := self._node.keeps) is not None:
            limits["shared" if isinstance(shared, Budget) else self._names[-1]] = shared
        return ", ".join([f"{place}={limit!r}" for place, limit in limits.items()])


class Lease(Shared):
    """What a call has reserved of a budget.

    ::

        async with budget.reserve(tokens=1800) as lease:
            ...
            lease.settle(tokens=412)

    The first call of `settle` or `refund` counts, later ones do nothing. Without either, the estimate becomes final at the end of the
    block.
    """

    __slots__ = ("_amounts", "_budget", "_most_ns", "_on_error", "_state", "_taken", "limited_by", "waited")

    def __init__(self, budget: Budget, amounts: Amounts, most_ns: int | None, on_error: OnError) -> None:
        self._budget = budget
        self._amounts = amounts
        self._most_ns = most_ns
        self._on_error = on_error
        self._state: Literal["not entered", "waiting", "reserved", "settled", "over"] = "not entered"
        self._taken: Taken = ()  # while it is held
        self.waited: float = 0.0
        """Seconds waited."""
        self.limited_by: str | None = None
        """The dimension that the call waited for, itself or behind others in line; None: none, or only for a pause to end."""

    @property
    def amounts(self) -> dict[str, int]:
        """How much of each dimension is reserved."""
        return self._amounts.by_name()

    def __aenter__(self) -> Coroutine[Any, Any, Lease]:
        """Wait until everything is reserved."""
        return self._enter()

    async def _enter(self, blocking: bool = False) -> Lease:
        if self._state != "not entered":
            raise RuntimeError("a lease can be entered only once. Call reserve() again for each call.")
        self._state, node, ask = "waiting", self._budget._node, (self._amounts, self._most_ns)
        try:
            waited, _, self._taken = node.wait_blocking(*ask) if blocking else await node.acquire(*ask)
        except BaseException:  # even of a signal handler: nothing was spent
            taken, self._taken, self._state = self._taken, (), "over"
            if taken:
                node.tree.post(partial(undo, taken))
            raise
        self.limited_by = self._amounts.waited_for if waited else None
        self.waited, self._state = ns_to_seconds(waited), "reserved"
        return self

    def __enter__(self) -> Lease:
        """Wait in synchronous code, which needs ``scope="process"``."""
        return finish(self._enter(blocking=True))

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Make the estimate final, or give it back if the block raised and ``on_error`` is ``"refund"``."""
        self.__exit__(kind, error, trace)

    def __exit__(self, kind: object = None, error: BaseException | None = None, trace: object = None) -> None:
        """The same for ``with``, in any thread."""
        if self._state == "reserved":
            self._state = "over"
            if error is not None and self._on_error == "refund":
                # Posted, because a finalizer may leave, and must not wait.
                self._budget._node.tree.post(partial(self._end, dict.fromkeys(self._amounts.names, 0)))

    def settle(self, **used: int) -> None:
        """Say what was really used. Less is given back, and more is charged. Dimensions you leave out stay as reserved.

        Call it inside the block. A bucket takes back as much as it has room for.

        Raises:
            RuntimeError: The block has not begun, or has ended.
        """
        if self._state == "settled":
            return
        if self._state != "reserved":
            raise RuntimeError("settle(): a lease is settled inside its block. Call it there: at the end the estimate became final.")
        self._budget._check_amounts("settle", used)
        self._state = "settled"
        self._budget._node.tree.change(self._end, used)

    def refund(self) -> None:
        """Give everything back, because the call was not made."""
        self.settle(**dict.fromkeys(self._amounts.names, 0))

    def _end(self, used: dict[str, int]) -> None:
        """Correct what was taken by what was ``used``, once. In a decision."""
        taken, self._taken = self._taken, ()  # first: interrupted in the middle, or by another thread, it must not be made twice
        if taken:
            more = tuple([used.get(place, amount) - amount for place, amount in self.amounts.items()])
            _correct(self._budget._node, Amounts(self._amounts.names, more), taken)

    def __del__(self) -> None:
        if self._state == "not entered":
            _logger.warning("%r was never entered: write `async with budget.reserve(...) as lease:` around the call.", self)

    def __repr__(self) -> str:
        return f"<Lease {self._amounts!r}, {self._state}>"


class KeyedBudget(Keyed[K, Budget]):
    """A budget for each key: for each user, team or account.

    Your function returns the `Budget` of a key, and is called the first time the key is seen. Keys are dropped when they are unused, as by
    a `KeyedLimiter`.

    Args:
        factory: A function of the key that returns its `Budget`.
        shared: A `Budget` that all keys go through as well, or a function of the key that returns one, or None. Amounts are taken from
            both, by the names of the dimensions.
        max_keys: How many keys to keep, as far as unused ones can be dropped.
        idle: How many seconds to keep a key after its last use, or a timedelta, instead of counting the uses of others.
        name: Shown in logs, metrics and ``repr()``, for all keys.
        on_event: Called with an `Event` when a key is dropped.
        on_wait: Called with a `Waited` after each wait for any key; see `watch`.
        scope: ``"loop"`` or ``"process"``, as for a `Limiter`.
    """

    _KIND = Budget
    _WANTED = "a Budget, such as Budget(requests='500/min')"

    # Asking.

    def reserve(self, key: K, /, *, max_wait: Duration | None = None, on_error: OnError | None = None, **amounts: int) -> Lease:
        """Reserve amounts for a key, of its budget and of those it shares; see `Budget.reserve`."""
        return self[key].reserve(max_wait=max_wait, on_error=on_error, **amounts)


def _correct(node: Limit, more: Permits, taken: Taken) -> None:
    """Charge how much ``more`` was used than was taken, here and above; less (below 0) comes back."""
    now, dimensions = node.look_now(), node.scheduler
    if isinstance(more, int):
        if more > 0:
            node.charge(more)
        for limit, _, instant in taken if more < 0 else ():
            limit.credit(-more, instant)
            limit.changed()
        return
    assert isinstance(dimensions, Dimensions)
    instant, above = (taken[0][2], taken[1:]) if taken and taken[0][0] is node else (now, taken)
    dimensions.correct(more, now, instant)
    if node.above is not None and (up := node.permits_above(more)):
        _correct(node.above, up, above)
    node.changed()


def check_on_error(what: str, on_error: object) -> None:
    """Raise ValueError for anything but the two words."""
    if on_error not in ("keep", "refund"):
        raise ValueError(f"{called(what, on_error)} must be 'keep' or 'refund'.")
