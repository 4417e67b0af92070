"""Several limits that a call uses by different amounts: requests and tokens per minute. Reserve an estimate, settle the actual use.

A `Budget` has the dimensions, and a `Lease` is what one call has reserved of it. A third of this file documents the public calls.
"""

from __future__ import annotations

from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING

from aiorate._errors import LimiterClosed, called, check_count, kind_of
from aiorate._events import Event
from aiorate._feedback import check_feedback
from aiorate._keyed_base import refuse_keyed
from aiorate._limiter import Limiter, pause_to_ns
from aiorate._options import check_on_wait, check_options, check_same_scope, check_scope, check_unshared, strategy_of
from aiorate._rate import NO_BOUND, duration_to_ns, ns_to_seconds
from aiorate._schedulers.amounts import Amounts
from aiorate._schedulers.dimensions import Dimensions
from aiorate._shares import BudgetRefusals, BudgetShares, LimiterShare
from aiorate._tree import changes
from aiorate._tree.grants import hold, kept, undo
from aiorate._tree.node import Node
from aiorate._tree.questions import wait_for
from aiorate._tree.refusals import MaxWaiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Literal, NoReturn

    from aiorate._events import Waited
    from aiorate._feedback import Feedback, Left
    from aiorate._loops.clock import Clock
    from aiorate._options import Limits
    from aiorate._rate import Duration
    from aiorate._statistics import Statistics
    from aiorate._tree.limit import Answer, Taken
    from aiorate._tree.tree import Tree
    from aiorate._tree.watch import Totals

    Decide = Callable[..., Answer]
    OnError = Literal["keep", "refund"]

__all__ = ["Budget", "Lease", "check_names", "not_a_budget"]

_logger = getLogger("aiorate")


class Budget:
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

    __slots__ = ("__weakref__", "_clamped", "_max_waiting", "_misnamed", "_node", "_of_key", "_on_error", "_refusals", "_shares")

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
        check_options("Budget", max_waiting, clock, name, on_event, on_wait)
        check_scope("Budget", scope)
        check_dimensions(dimensions)
        limiters = {place: limit for place, limit in dimensions.items() if isinstance(limit, Limiter)}
        for place, limiter in limiters.items():
            check_same_scope(f"Budget({place})", "budget", scope == "process", limiter._node.tree.threads)
        if shared is not None:
            self._check_shared("Budget(shared)", shared, next(iter(limiters), None), scope == "process")
        own = {place: limit for place, limit in dimensions.items() if not isinstance(limit, Limiter)}
        scheduler = self._scheduler(own)
        tree: Tree | None = None
        if scope == "process":
            from aiorate._tree.threads import ThreadTree

            tree = ThreadTree(clock)
        self._node = Node(scheduler, duration_to_ns(catch_up, "Budget(catch_up)"), False, clock, name, tree)
        self._node.on_event = on_event
        self._max_waiting = None if max_waiting is None else MaxWaiting(max_waiting, self._node)
        self._shares = BudgetShares(tuple(own), scheduler, self._node)
        self._refusals = BudgetRefusals(self._shares)
        for place, limiter in limiters.items():
            self._share(LimiterShare(place, limiter._node), limiter)
        if shared is not None:
            self._share(shared._shares, shared)
        self._of_key = False
        self._on_error: OnError = on_error
        self._clamped: tuple[str, ...] = ()  # dimensions for which a lowered estimate was reported
        self._misnamed: tuple[str, ...] = ()  # dimensions that were logged because a quota has nearly their name, and is not heeded
        if on_wait is not None:
            self.watch(on_wait)

    def _scheduler(self, limits: dict[str, Limits]) -> Dimensions:
        """Make the scheduler of the dimensions, which a subclass may keep elsewhere. It takes `Amounts`, in the same order."""
        return Dimensions(tuple(strategy_of(f"Budget({place})", limit) for place, limit in limits.items()))

    @staticmethod
    def _check_shared(what: str, shared: object, limiter: str | None, process: bool) -> None:
        if not isinstance(shared, Budget):
            raise not_a_budget(what, shared)
        if limiter is not None:
            raise ValueError(f"{what}: the dimension {limiter!r} is a shared Limiter. Make it a dimension of the shared budget instead.")
        shared._check_as_shared(what)
        check_same_scope(what, "budget", process, shared._node.tree.threads)

    def _share(self, shares: LimiterShare | BudgetShares, limit: Limiter | Budget) -> None:
        self._shares.share(shares)
        self._node.keeps = limit

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
        limit = None if max_wait is None else duration_to_ns(max_wait, "reserve(max_wait)", NO_BOUND)
        wanted = self._amounts("reserve", amounts)
        granted = self._lowered(wanted)
        if granted != wanted:
            for place, amount, lowered in zip(self._shares.names, wanted, granted, strict=True):
                if lowered < amount and place not in self._clamped:
                    self._clamped += (place,)
                    told = Event("clamped", self._node.name, key=place, permits=lowered)
                    self._node.tree.post(partial(self._node.tell, told))
        return Lease(self, Amounts(granted), limit, self._on_error if on_error is None else on_error)

    async def _enter(self, amounts: Amounts, limit: int | None, decide: Decide | None = None) -> tuple[int, Taken]:
        """Wait for the amounts: the ns waited, and what was taken. ``decide`` replaces `Tree.request`. For `Lease`."""
        node = self._node
        ticket, _, asked, taken = node.tree.ask(node, amounts, limit, self._max_waiting, self._refusals, None, False, decide)
        if ticket is None:
            return 0, taken
        waited, _, taken = await node.tree.wait(node, ticket, amounts, asked, limit, self._max_waiting, self._refusals)
        return waited, taken

    def _enter_blocking(self, amounts: Amounts, limit: int | None, decide: Decide | None = None) -> tuple[int, Taken]:
        """As `_enter`, in a thread without an event loop, which it blocks. For `Lease`."""
        from aiorate._tree.threads import wait_blocking

        return wait_blocking(self._node, self._node.tree, amounts, limit, self._max_waiting, self._refusals, decide)

    def _forget_dimension(self) -> None:
        if not self._node.line:
            self._shares.dimensions.waited_for = None

    def _explain(self, error: BaseException, amounts: Amounts) -> None:
        """Raise a better error, where that is of a shared limit: it is closed, or allows less at once than when the lease was made."""
        node, names = self._node, self._shares.names
        if isinstance(error, LimiterClosed) and not node.closed and node.shut:
            raise self._refusals.closed(node) from None
        if isinstance(error, ValueError):
            for place, amount, least in zip(names, amounts.of, self._lowered(amounts.of), strict=True):
                if least < amount:
                    raise ValueError(
                        f"reserve({place}={amount}) can no longer be granted: {least} is the most at once now. Reserve again."
                    ) from None

    # Changing, for those in line too.

    def pause(self, seconds: Duration) -> None:
        """Let nothing through for this many seconds, or a timedelta; see `Limiter.pause`. What it shares is not paused."""
        self._node.tree.change(partial(changes.pause, self._node, pause_to_ns(seconds)))

    def resume(self) -> None:
        """End a pause now, whoever began it."""
        self._node.tree.change(partial(changes.resume, self._node))

    def observe(self, feedback: Feedback | None, *, jitter: Duration = 0) -> None:
        """Apply what a server's response said about the limits; None does nothing.

        A refusal pauses the whole budget. A quota lowers the dimension of its name or, if there is none, of its unit.

        Args:
            feedback: What the response said, as `aiorate.http.read_feedback` reads it.
            jitter: Make a pause longer by a random part of this many seconds.
        """
        if feedback is None:
            return
        check_feedback("observe()", feedback)
        self._node.tree.change(partial(self._observe, feedback, duration_to_ns(jitter, "observe(jitter)")))

    def _observe(self, feedback: Feedback, extra: int) -> None:
        node = self._node
        ns, told = check_feedback("observe()", feedback)
        node.look_now()
        news = changes.pause_longer(node, ns, extra)
        names = {quota.name for quota in feedback.quotas}
        for quota in told:
            place = self._dimension_of(quota, names)
            if place is not None:
                self._shares.cap(place, quota)
        node.changed()
        changes.tell_of_pause(node, news, feedback)

    def _dimension_of(self, quota: Left, told: set[str]) -> str | None:
        """The dimension that has the quota's name or unit; None: it is not heeded. ``told`` has the names of all quotas of the response.

        Logs once for each dimension that a quota has nearly its name.
        """
        names = self._shares.names
        # One dimension of tokens is not lowered by those that go in or out alone, where the server tells of all tokens too.
        place = quota.name if quota.name in names or quota.unit in told else quota.unit
        if place in names:
            return place
        name = quota.name
        near = next((each for each in names if each not in told and name and (each in name or name in each)), None)
        if near is not None and near not in self._misnamed:
            self._misnamed += (near,)
            _logger.warning(
                "%s: the server reports a quota %r, but no dimension has that name. If dimension %r is that quota, name it %r.",
                *(f"budget {self.name!r}" if self.name else "budget", name, near, name),
            )
        return None

    async def aclose(self) -> None:
        """Close the budget. Callers in the queue get `LimiterClosed`. What it shares stays open, and leases can still be settled."""
        error = LimiterClosed("reserve(): the budget was closed while this reservation was waiting.")
        self._node.tree.run(self._node.close, error)
        await self._node.tree.finish(self._node)

    # Looking.

    @property
    def name(self) -> str | None:
        """The name that it was given."""
        return self._node.name

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names of the dimensions. Those that are only shared come last."""
        return self._shares.names

    @property
    def waiting(self) -> int:
        """How many reservations are in the queue."""
        node = self._node
        return node.tree.run(lambda: (node.look_now(), node.line.waiting)[1])

    def available(self, dimension: str) -> int:
        """Return how much of a dimension is available now. 0 while somebody waits, while paused, and once closed."""
        self._check_name("available", dimension)
        return self._node.tree.run(self._shares.available, dimension)

    def delay(self, **amounts: int) -> float:
        """Return how many seconds a reservation of these amounts would have to wait now; infinite if the budget is closed."""
        wanted = Amounts(self._lowered(self._amounts("delay", amounts)))
        return self._node.tree.run(self._wait_of, wanted)

    def _wait_of(self, wanted: Amounts) -> float:
        node = self._node
        wait = wait_for(node, wanted, node.look_now())
        return float("inf") if wait is None or node.shut else ns_to_seconds(wait)

    def statistics(self) -> Statistics:
        """Return a snapshot of the counters, in reservations.

        ``available`` is how many reservations of 1 each could be made now. Settled amounts are not counted, and ``rate`` is that of the
        first dimension.
        """
        from aiorate._statistics import snapshot

        return self._node.tree.run(snapshot, self._node)

    def _amounts(self, call: str, amounts: dict[str, int]) -> tuple[int, ...]:
        for place, amount in amounts.items():
            self._check_name(call, place)
            check_count(f"{call}({place})", amount)
        shares = self._shares
        default = 1 if shares.shared is None else shares.shared.default
        return tuple([amounts.get(place, 1 if number < shares.own else default) for number, place in enumerate(shares.names)])

    def _lowered(self, amounts: tuple[int, ...]) -> tuple[int, ...]:
        """The amounts, none above the most that can be granted at once, here and in what is shared."""
        shares = self._shares
        most = shares.dimensions.most if shares.shared is None else shares.most.values()
        return tuple([amount if least is None else min(amount, least) for amount, least in zip(amounts, most, strict=True)])

    def _check_name(self, call: str, place: str) -> None:
        if place not in self._shares.names:
            raise TypeError(f"{call}(): unknown dimension {place!r}; the dimensions are {', '.join(self._shares.names)}.")

    def watch(self, on_wait: Callable[[Waited], object]) -> Callable[[], None]:
        """Call a function after each wait, with a `Waited` whose ``permits`` are the amounts by dimension; see `Limiter.watch`.

        Returns:
            A function that ends the calls.
        """
        check_on_wait("watch", on_wait)
        from aiorate._tree.watch import watch_of

        return watch_of(self._node).add(on_wait)

    # For parts of aiorate that are built upon a budget.

    def _totals(self) -> Totals:
        """As `Limiter._totals`, with the amounts reserved and kept of each dimension, before they are settled."""
        from aiorate._tree.watch import totals_of

        return totals_of(self._node, self._shares.names)

    def _check_as_shared(self, what: str) -> None:
        """Raise ValueError, which names it ``what``, if other budgets cannot share it."""
        if self._max_waiting is not None:
            raise ValueError(
                f"{what}: a shared budget cannot have max_waiting={self._max_waiting.most}; at most one reservation of each line waits in"
                " it. Leave it out, and give max_waiting to the budgets that share it."
            )

    def _belong(self, shared: Budget | None) -> None:
        """From now on it is the budget of a key, and shares ``shared``, if that is given. Raises ValueError if it cannot."""
        if self._of_key:
            raise ValueError("the budget belongs to another key already: make one for each key.")
        if shared is not None:
            present = self._shares.shared
            limiter = present.names[0] if isinstance(present, LimiterShare) else None
            self._check_shared("KeyedBudget(shared)", shared, limiter, self._node.tree.threads)
            if present is not None:
                raise ValueError(f"KeyedBudget(shared): the budget shares {self._node.keeps!r} already. Let that one share this one.")
            check_unshared(self._node, shared)
            self._share(shared._shares, shared)
        self._of_key = True

    def __repr__(self) -> str:
        name = f" {self._node.name!r}" if self._node.name else ""
        shares = self._shares
        limits: dict[str, object] = dict(zip(shares.names, shares.dimensions.members, strict=False))
        if shares.shared is not None:
            limits[shares.names[-1] if isinstance(shares.shared, LimiterShare) else "shared"] = self._node.keeps
        parts = ", ".join(f"{place}={limit!r}" for place, limit in limits.items())
        state = ", closed" if self._node.closed else ", paused" if self._node.paused else ""
        return f"<Budget{name} {parts}, {len(self._node.line)} waiting{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Budget cannot be copied or pickled: the copy would grant the same permits again. Share it.")


class Lease:
    """What a call has reserved of a budget.

    ::

        async with budget.reserve(tokens=1800) as lease:
            ...
            lease.settle(tokens=412)

    The first call of `settle` or `refund` counts, later ones do nothing. Without either, the estimate becomes final at the end of the
    block.
    """

    __slots__ = ("_amounts", "_budget", "_entered", "_limit", "_on_error", "_state", "_taken", "limited_by", "waited")

    def __init__(self, budget: Budget, amounts: Amounts, limit: int | None, on_error: OnError) -> None:
        self._budget = budget
        self._amounts = amounts
        self._limit = limit
        self._on_error = on_error
        self._entered: bool | None = None  # None: nobody tried
        self._taken: Taken | None = None  # while it is held
        self._state: Literal["", "settled", "over"] = ""
        self.waited: float = 0.0
        """Seconds waited."""
        self.limited_by: str | None = None
        """The dimension that the call waited for, itself or behind others in line; None: none, or only for a pause to end."""

    @property
    def amounts(self) -> dict[str, int]:
        """How much of each dimension is reserved."""
        return dict(zip(self._budget.dimensions, self._amounts.of, strict=True))

    async def __aenter__(self) -> Lease:
        """Wait until every dimension has its amount."""
        budget, taken = self._begin(), None
        try:
            waited, taken = await budget._enter(self._amounts, self._limit)
            self._has(waited, taken)
        except BaseException as error:
            self._failed(error, taken)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Make the estimate final, or give it back if the block raised and ``on_error`` is ``"refund"``."""
        self._leave(error)

    def __enter__(self) -> Lease:
        """Wait in synchronous code, for a budget with ``scope="process"``."""
        if self._budget._node.tree.threads is False:
            raise RuntimeError(
                "`with` blocks its thread, and this budget is for one event loop: write `async with budget.reserve(...)`, or create the"
                " budget with scope='process'."
            )
        budget, taken = self._begin(), None
        try:
            waited, taken = budget._enter_blocking(self._amounts, self._limit)
            self._has(waited, taken)
        except BaseException as error:  # also one of a signal handler
            self._failed(error, taken)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The same as at the end of ``async with``."""
        self._leave(error)

    def _begin(self) -> Budget:
        if self._entered:
            raise RuntimeError("a lease can be entered only once. Call reserve() again for each call.")
        self._entered = True
        self._budget._node.tree.run(self._budget._forget_dimension)
        return self._budget

    def _has(self, waited: int, taken: Taken) -> None:
        """What was taken is held from now on."""
        self._budget._node.tree.run(hold, taken)
        self.limited_by = self._budget._refusals.dimension(self._amounts) if waited else None
        self.waited, self._taken = ns_to_seconds(waited), taken

    def _failed(self, error: BaseException, taken: Taken | None) -> None:
        """Nothing was spent, and it may be tried again."""
        self._entered = False
        if taken is not None:
            self._taken = None
            self._budget._node.tree.post(partial(undo, taken, False))
        self._budget._explain(error, self._amounts)

    def _leave(self, error: BaseException | None) -> None:
        refunded = error is not None and self._on_error == "refund" and not self._state
        tree = self._budget._node.tree  # a finalizer may leave, and must not wait
        if refunded:
            tree.post(partial(self._settle, dict.fromkeys(self._budget.dimensions, 0)))
            if tree.threads:
                self._state = self._state or "over"
        self._end("over")

    def settle(self, **used: int) -> None:
        """Say what was really used. Less is given back, and more is charged. Dimensions you leave out stay as reserved.

        Call it inside the block. A bucket takes back as much as it has room for.

        Raises:
            RuntimeError: The block has not begun, or has ended.
        """
        if self._state == "settled":
            return
        if self._taken is None or self._state:
            raise RuntimeError(f"settle(): {_OVER if self._state else _NOT_ENTERED}")
        for place, amount in used.items():
            self._budget._check_name("settle", place)
            check_count(f"settle({place})", amount)
        self._budget._node.tree.change(partial(self._settle, used))

    def refund(self) -> None:
        """Give everything back, because the call was not made."""
        self.settle(**dict.fromkeys(self._budget.dimensions, 0))

    def _settle(self, used: dict[str, int]) -> None:
        taken, self._taken = self._taken, None  # first: interrupted in the middle, the correction must not be made twice
        if taken is not None:  # else another thread has settled it
            self._state = "settled"
            try:
                reserved = self.amounts
                self._budget._shares.correct({place: amount - reserved[place] for place, amount in used.items()}, taken)
            finally:
                self._budget._node.tree.post(partial(kept, taken))

    def _end(self, state: Literal["settled", "over"]) -> None:
        taken, self._taken = self._taken, None
        if taken is not None:
            self._state = state
            self._budget._node.tree.post(partial(kept, taken))

    def __del__(self) -> None:
        try:  # not suppress(), which may be gone as the interpreter ends
            if self._entered is None:
                _logger.warning("%r was never entered: write `async with budget.reserve(...) as lease:` around the call.", self)
            self._end("over")  # entered by hand and never left
        except (AttributeError, ImportError):
            return  # a signal handler interrupted its making, or the interpreter ends

    def __repr__(self) -> str:
        state = self._state or ("reserved" if self._taken is not None else "waiting" if self._entered else "not entered")
        return f"<Lease {', '.join(f'{place}={amount}' for place, amount in self.amounts.items())}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Lease cannot be copied or pickled: the copy would give the same permits back again. Share it.")


_NOT_ENTERED = "nothing is reserved yet. Enter the lease with `async with` first."
_OVER = "the block has ended, and its estimate stands. Call settle() or refund() inside it, or use reserve(on_error='refund')."


def check_names(of: str, dimensions: Iterable[str]) -> None:
    """Raise TypeError, which names the class ``of``, for options of other calls, which would be limits that nobody asked for."""
    for name in dimensions:
        if name in ("burst", "catch_up", "max_concurrency", "max_wait", "on_error", "precise"):
            raise TypeError(f"{of}({name}): this is an option of other calls, and cannot be the name of a dimension. Choose another name.")


def check_dimensions(dimensions: dict[str, Limiter | Limits]) -> None:
    """Raise TypeError or ValueError for dimensions that a budget cannot have."""
    if not dimensions:
        raise TypeError("Budget() needs at least one dimension, such as Budget(requests='500/min', tokens='200_000/min').")
    check_names("Budget", dimensions)
    limiters = {place: limit for place, limit in dimensions.items() if isinstance(limit, Limiter)}
    if len(limiters) > 1:
        raise ValueError(
            f"Budget(): only one dimension may be a shared Limiter; {' and '.join(limiters)} are."
            " Give the others as rates or strategies, or share one Budget among all callers."
        )
    for place, limiter in limiters.items():
        limiter._check_as_shared(f"Budget({place})", "the Budget")
    if len(limiters) == len(dimensions):
        raise ValueError("Budget(): with a shared Limiter as its only dimension, a budget adds nothing. Use the Limiter itself.")


def check_on_error(what: str, on_error: object) -> None:
    """Raise ValueError for anything but the two words."""
    if on_error not in ("keep", "refund"):
        raise ValueError(f"{called(what, on_error)} must be 'keep' or 'refund'.")


def not_a_budget(what: str, shared: object) -> TypeError:
    """The error for what is given as the argument ``what``, a budget that is shared."""
    refuse_keyed(what, shared)
    return TypeError(f"{what} must be a Budget, not {kind_of(shared)}. A shared Limiter is a dimension: Budget(tokens=limiter, ...).")
