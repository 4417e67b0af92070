"""Several limits that a call uses by different amounts: requests and tokens per minute. Reserve an estimate, settle the actual use.

Knows nothing of how a rate is computed, of event loops, or of HTTP. Longer than other files: a third of it documents the public calls.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate._above import SharedBudget, SharedLimiter
from aiorate._budget_options import (
    cannot_be_full,
    check_dimensions,
    check_on_error,
    check_same_scope,
    not_a_budget,
    shared_twice,
)
from aiorate._budget_quotas import QuotaNames
from aiorate._budget_refusals import BudgetRefusals
from aiorate._errors import LimiterClosed, check_count
from aiorate._events import Event
from aiorate._feedback import check_feedback
from aiorate._lease import Lease
from aiorate._limiter import Limiter, pause_to_ns
from aiorate._options import check_on_wait, check_options, check_scope
from aiorate._rate import NO_BOUND, duration_to_ns, ns_to_seconds
from aiorate._schedulers.dimensions import Amounts, Dimensions
from aiorate._several import strategy_of
from aiorate._tree import changes
from aiorate._tree.grants import hold, kept, undo
from aiorate._tree.max_waiting import MaxWaiting
from aiorate._tree.node import Node
from aiorate._tree.questions import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal, NoReturn

    from aiorate._above import Above
    from aiorate._feedback import Feedback, Left
    from aiorate._lease import OnError
    from aiorate._loops.clock import Clock
    from aiorate._rate import Duration
    from aiorate._several import Limits
    from aiorate._statistics import Statistics
    from aiorate._tree.limit import Answer, Taken
    from aiorate._tree.tree import Tree
    from aiorate._tree.watch import Totals
    from aiorate._waited import Waited

    Decide = Callable[..., Answer]

__all__ = ["Budget"]


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

    __slots__ = (
        "__weakref__",
        "_above",
        "_clamped",
        "_dimensions",
        "_max_waiting",
        "_names",
        "_node",
        "_of_key",
        "_on_error",
        "_own",
        "_quotas",
        "_refusals",
    )

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
            check_same_scope(f"Budget({place})", scope == "process", limiter)
        if shared is not None:
            self._check_shared("Budget(shared)", shared, limiters, scope == "process")
        own = {place: limit for place, limit in dimensions.items() if not isinstance(limit, Limiter)}
        self._names = tuple(own)
        self._own = len(own)  # dimensions; those that are only shared come after them
        self._above: Above | None = None
        self._of_key = False
        self._dimensions = self._scheduler(own)
        tree: Tree | None = None
        if scope == "process":
            from aiorate._tree.threads import ThreadTree

            tree = ThreadTree(clock)
        self._node = Node(self._dimensions, duration_to_ns(catch_up, "Budget(catch_up)"), False, clock, name, tree)
        self._node.on_event = on_event
        self._max_waiting = None if max_waiting is None else MaxWaiting(max_waiting, self._node)
        self._refusals = BudgetRefusals(self._names, self._dimensions, None)
        for place, limiter in limiters.items():
            self._share(SharedLimiter(self._names, place, limiter))
        if shared is not None:
            self._share(SharedBudget(self._names, shared))
        self._on_error: OnError = on_error
        self._quotas = QuotaNames()
        self._clamped: tuple[str, ...] = ()  # dimensions for which a lowered estimate was reported
        if on_wait is not None:
            self.watch(on_wait)

    def _scheduler(self, limits: dict[str, Limits]) -> Dimensions:
        """Make the scheduler of the dimensions, which a subclass may keep elsewhere. Its permits are `Amounts`, in the same order."""
        return Dimensions(tuple(strategy_of(f"Budget({place})", limit) for place, limit in limits.items()))

    @staticmethod
    def _check_shared(what: str, shared: object, present: Mapping[str, object], process: bool) -> None:
        if not isinstance(shared, Budget):
            raise not_a_budget(what, shared)
        for place, limit in present.items():
            raise shared_twice(what, place, limit)
        shared._check_as_shared(what)
        check_same_scope(what, process, shared)

    def _share(self, above: Above) -> None:
        self._node.tree.run(changes.share, self._node, above.limit._node, above.permits_of)
        self._node.waited_above = partial(_note_dimension, self._dimensions, above)
        self._above, self._names = above, above.names
        self._refusals = BudgetRefusals(self._names, self._dimensions, above)

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
            for place, amount, lowered in zip(self._names, wanted, granted, strict=True):
                if lowered < amount and place not in self._clamped:
                    self._clamped += (place,)
                    told = Event("clamped", self._node.name, key=place, permits=lowered)
                    self._node.tree.post(partial(self._node.tell, told))
        return Lease(self, Amounts(granted), limit, self._on_error if on_error is None else on_error)

    async def _enter(self, amounts: Amounts, limit: int | None, decide: Decide | None = None) -> tuple[float, Taken, str | None]:
        """Wait for the amounts: the seconds waited, what was taken, and the dimension that was waited for. For `Lease`.

        What was taken is held from then on: `_end_lease` must follow. ``decide`` replaces `Tree.request`.
        """
        node = self._node
        node.tree.run(self._forget_dimension)
        try:
            ticket, _, asked, taken = node.tree.ask(node, amounts, limit, self._max_waiting, self._refusals, None, False, decide)
            waited = 0
            if ticket is not None:
                waited, _, taken = await node.tree.wait(node, ticket, amounts, asked, limit, self._max_waiting, self._refusals)
        except Exception as error:
            self._explain(error, amounts)
            raise
        node.tree.run(hold, taken)
        return ns_to_seconds(waited), taken, self._refusals.dimension(amounts) if waited else None

    def _enter_blocking(self, amounts: Amounts, limit: int | None, decide: Decide | None = None) -> tuple[float, Taken, str | None]:
        """As `_enter`, in a thread without an event loop, which it blocks. Interrupted, the reservation is undone. For `Lease`."""
        from aiorate._tree.threads import wait_blocking

        node, taken = self._node, None
        node.tree.run(self._forget_dimension)
        try:
            waited, taken = wait_blocking(node, node.tree, amounts, limit, self._max_waiting, self._refusals, decide)
            node.tree.run(hold, taken)
        except BaseException as error:
            if taken is not None:
                node.tree.post(partial(undo, taken, False))
            self._explain(error, amounts)
            raise
        return ns_to_seconds(waited), taken, self._refusals.dimension(amounts) if waited else None

    def _forget_dimension(self) -> None:
        if not self._node.queue.line:
            self._dimensions.waited_for = None

    def _explain(self, error: BaseException, amounts: Amounts) -> None:
        """Raise a better error, where that is of a shared limit: it is closed, or allows less at once than when the lease was made."""
        node = self._node
        if isinstance(error, LimiterClosed) and not node.closed and node.shut:
            raise self._refusals.closed(node) from None
        if isinstance(error, ValueError):
            for place, amount, least in zip(self._names, amounts.of, self._lowered(amounts.of), strict=True):
                if least < amount:
                    raise ValueError(
                        f"reserve({place}={amount}) can no longer be granted: {least} is the most at once now. Reserve again."
                    ) from None

    def _check_used(self, used: dict[str, int]) -> None:
        """Raise TypeError or ValueError for amounts that cannot have been used. For `Lease`."""
        for place, amount in used.items():
            self._check_name("settle", place)
            check_count(f"settle({place})", amount)

    def _settle_lease(self, amounts: Amounts, taken: Taken, used: dict[str, int]) -> None:
        """Correct the amounts that a lease took. For `Lease`."""
        self._correct({place: amount - amounts.of[self._names.index(place)] for place, amount in used.items()}, taken)

    def _correct(self, more: dict[str, int], taken: Taken) -> None:
        """Charge how much ``more`` was used than was taken; below 0 it comes back. For budgets that share this one."""
        node = self._node
        now = node.look_now()
        instant, above = (taken[0][2], taken[1:]) if taken and taken[0][0] is node else (now, taken)
        for number, place in enumerate(self._names[: self._own]):
            if place in more:
                self._dimensions.correct(number, more[place], now, instant)
        if self._above is not None:
            self._above.correct(more, above)
        node.changed()

    def _end_lease(self, taken: Taken) -> None:
        """A lease has ended: what was taken cannot come back any more. Never waits. For `Lease`."""
        self._node.tree.post(partial(kept, taken))

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
            place = self._quotas.find(quota, names, self._names, node.name)
            if place is not None:
                self._cap(place, quota)
        node.changed()
        changes.tell_of_pause(node, news, feedback)

    def _cap(self, place: str, quota: Left) -> None:
        """Heed a server's quota of a dimension: of that here, or of the shared one if only that has it. For budgets that share this."""
        number, node = self._names.index(place), self._node
        if number < self._own:
            now = node.look_now()
            self._dimensions.cap(number, quota.name, quota.left, quota.size, quota.ns, now, now + node.timeline.held_for, quota.error)
            node.changed()
        elif self._above is not None:
            self._above.cap(place, quota)

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
        return self._names

    @property
    def waiting(self) -> int:
        """How many reservations are in the queue."""
        node = self._node
        return node.tree.run(lambda: (node.look_now(), node.queue.waiting)[1])

    def available(self, dimension: str) -> int:
        """Return how much of a dimension is available now. 0 while somebody waits, while paused, and once closed."""
        self._check_name("available", dimension)
        return self._node.tree.run(self._available_here, dimension)

    def _available_here(self, dimension: str) -> int:
        """As `available`, inside the critical section. For budgets that share this one."""
        node = self._node
        now = node.look_now()
        if node.queue.line or node.closed or node.timeline.held_at is not None:
            return 0
        number = self._names.index(dimension)
        own = self._dimensions.available_of(number, now) if number < self._own else None
        shared = None if self._above is None else self._above.available(dimension)
        return min(amount for amount in (own, shared) if amount is not None)

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
        if self._above is None:
            return tuple([amounts.get(place, 1) for place in self._names])
        default = self._above.default
        return tuple([amounts.get(place, 1 if number < self._own else default) for number, place in enumerate(self._names)])

    def _lowered(self, amounts: tuple[int, ...]) -> tuple[int, ...]:
        """The amounts, none above the most that can be granted at once, here and in what is shared."""
        most = self._dimensions.most if self._above is None else self._most.values()
        return tuple([amount if least is None else min(amount, least) for amount, least in zip(amounts, most, strict=True)])

    def _check_name(self, call: str, place: str) -> None:
        if place not in self._names:
            raise TypeError(f"{call}(): unknown dimension {place!r}; the dimensions are {', '.join(self._names)}.")

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
        """As `Limiter.totals`, with the amounts reserved and kept of each dimension, before they are settled."""
        from aiorate._tree.totals import totals_of

        return totals_of(self._node, self._names)

    @property
    def _most(self) -> dict[str, int | None]:
        """The largest amount of each dimension that can be granted at once, here and in what is shared; None: any."""
        most = dict(zip(self._names, self._dimensions.most, strict=False))
        if self._above is not None:
            for place, shared in self._above.most.items():
                own = most.get(place)
                most[place] = shared if own is None else own if shared is None else min(own, shared)
        return most

    def _part(self, amounts: Amounts, places: tuple[int, ...]) -> Amounts:
        """What a reservation of a budget that shares this one takes here: its amounts at these places."""
        if not self._node.is_waited_for:
            self._dimensions.waited_for = None
        return amounts.part(places)

    def _check_as_shared(self, what: str) -> None:
        """Raise ValueError, which names it ``what``, if other budgets cannot share it."""
        if self._max_waiting is not None:
            raise cannot_be_full(what, self._max_waiting.most)

    def _belong(self, shared: Budget | None) -> None:
        """From now on it is the budget of a key, and shares ``shared``, if that is given. Raises ValueError if it cannot."""
        if self._of_key:
            raise ValueError("the budget belongs to another key already: make one for each key.")
        if shared is not None:
            present = {} if self._above is None else {self._names[-1]: self._above.limit}
            self._check_shared("KeyedBudget(shared)", shared, present, self._node.tree.threads)
            self._share(SharedBudget(self._names, shared))
        self._of_key = True

    def _which_closed(self) -> str:
        """Which budget or Limiter is closed, of this one and those that it shares, and what to do, as a sentence."""
        if self._node.closed or self._above is None:
            name = self._node.name
            named = repr(name) if name else f"of {' and '.join(self._names)}"
            return f"the shared budget {named} is closed. Create a new one, and the budgets that share it."
        return self._above.closed()

    def __repr__(self) -> str:
        name = f" {self._node.name!r}" if self._node.name else ""
        limits: dict[str, object] = dict(zip(self._names, self._dimensions.members, strict=False))
        if self._above is not None:
            limits[self._names[-1] if isinstance(self._above.limit, Limiter) else "shared"] = self._above.limit
        parts = ", ".join(f"{place}={limit!r}" for place, limit in limits.items())
        state = ", closed" if self._node.closed else ", paused" if self._node.timeline.paused else ""
        return f"<Budget{name} {parts}, {len(self._node.queue.line)} waiting{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Budget cannot be copied or pickled: the copy would grant the same permits again. Share it.")


def _note_dimension(dimensions: Dimensions, above: Above, permits: int) -> None:
    """The request, or one before it in line, waited for what is shared."""
    assert isinstance(permits, Amounts)
    dimensions.waited_for = above.waited_for(permits)
