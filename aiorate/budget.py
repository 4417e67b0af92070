"""Several limits that a call uses by different amounts: requests and tokens per minute. Reserve an estimate, settle the actual use.

Knows nothing of how a rate is computed, of event loops, or of HTTP. Longer than other files: a third of it documents the public calls.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from aiorate.above import SharedBudget, SharedLimiter
from aiorate.budget_options import (
    cannot_be_full,
    check_dimensions,
    check_on_error,
    check_same_scope,
    not_a_budget,
    shared_twice,
)
from aiorate.budget_quotas import QuotaNames
from aiorate.budget_refusals import BudgetRefusals
from aiorate.errors import LimiterClosed, check_count
from aiorate.events import Event
from aiorate.feedback import check_feedback
from aiorate.lease import Lease
from aiorate.limiter import Limiter, pause_to_ns
from aiorate.options import check_on_wait, check_options, check_scope
from aiorate.rate import NO_BOUND, duration_to_ns, ns_to_seconds
from aiorate.schedulers.dimensions import Amounts, Dimensions
from aiorate.several import strategy_of
from aiorate.waiting import changes
from aiorate.waiting.deciding import changing, deciding, looking
from aiorate.waiting.dispatcher import Dispatcher
from aiorate.waiting.gate import Gate
from aiorate.waiting.max_waiting import MaxWaiting
from aiorate.waiting.questions import estimate, is_closed
from aiorate.waiting.receipts import drop, give_back, keep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal, NoReturn

    from aiorate.above import Above
    from aiorate.feedback import Feedback, Left
    from aiorate.lease import OnError
    from aiorate.rate import Duration
    from aiorate.several import Limits
    from aiorate.statistics import Statistics
    from aiorate.totals import Totals
    from aiorate.waited import Waited
    from aiorate.waiting.clock import Clock
    from aiorate.waiting.dispatcher import Answer

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
        "_dispatcher",
        "_max_waiting",
        "_names",
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
        self._dispatcher = Dispatcher(self._dimensions, duration_to_ns(catch_up, "Budget(catch_up)"), False, clock, name)
        self._dispatcher.notices.on_event = on_event
        if scope == "process":
            from aiorate.waiting.process.scope import widen

            widen([self._dispatcher], name)
        self._max_waiting = None if max_waiting is None else MaxWaiting(max_waiting, self._dispatcher)
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
        dispatcher = self._dispatcher
        if dispatcher.section is not None:
            from aiorate.waiting.process.scope import family_of, join

            join(family_of(above.limit._dispatcher), dispatcher)
        dispatcher.run(self._pass_through, above)
        self._above, self._names = above, above.names
        self._refusals = BudgetRefusals(self._names, self._dimensions, above)

    def _pass_through(self, above: Above) -> None:
        # By a weak reference, so that the budget of a key that is evicted is freed at once.
        gate = Gate(above.limit._dispatcher, partial(_decided_above, ref(self)), above.permits_of, above.limit)
        changes.share(self._dispatcher, gate, self._dispatcher.section)

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
                    told = Event("clamped", self._dispatcher.notices.name, key=place, permits=lowered)
                    self._dispatcher.post(partial(self._dispatcher.notices.tell, told, self._dispatcher.loop))
        return Lease(self, Amounts(granted), limit, self._on_error if on_error is None else on_error)

    async def _enter(self, amounts: Amounts, limit: int | None, decide: Decide | None = None) -> tuple[float, int, str | None]:
        """Wait for the amounts: the seconds waited, the receipt, and the dimension that was waited for. For `Lease`.

        A receipt is held from then on: `end_lease` must follow. ``decide`` replaces `Dispatcher.decide`.
        """
        dispatcher = self._dispatcher
        try:
            ticket, _, now = dispatcher.run(self._ask, amounts, limit, decide or dispatcher.decide)
        except ValueError as error:
            self._explain(error, amounts)
            raise
        if ticket is None:
            return 0.0, now, None
        try:
            waited, _, receipt = await dispatcher.wait(ticket, amounts, now, limit, self._max_waiting, self._refusals)
        except BaseException as error:
            self._end_lease()
            self._explain(error, amounts)
            raise
        return ns_to_seconds(waited), receipt, self._refusals.dimension(amounts) if waited else None

    def _enter_blocking(self, amounts: Amounts, limit: int | None, decide: Decide | None = None) -> tuple[float, int, str | None]:
        """As `enter`, in a thread without an event loop, which it blocks. Interrupted, the reservation is undone. For `Lease`."""
        from aiorate.waiting.process.blocking import wait_blocking

        dispatcher, kept, receipt = self._dispatcher, list[bool](), None
        try:
            dispatcher.run(self._begin, kept)
            waited, receipt, _ = wait_blocking(dispatcher, amounts, limit, self._max_waiting, None, self._refusals, decide)
            return ns_to_seconds(waited), receipt, self._refusals.dimension(amounts) if waited else None
        except BaseException as error:
            if receipt is not None:
                dispatcher.post(partial(give_back, dispatcher, amounts, receipt))
            elif kept:
                self._end_lease()
            self._explain(error, amounts)
            raise

    def _ask(self, amounts: Amounts, limit: int | None, decide: Decide) -> Answer:
        dispatcher = self._dispatcher
        if not dispatcher.line:
            self._dimensions.waited_for = None
        answer = decide(amounts, limit, self._max_waiting, self._refusals)
        keep(dispatcher)
        return answer

    def _begin(self, kept: list[bool]) -> None:
        if not self._dispatcher.line:
            self._dimensions.waited_for = None
        keep(self._dispatcher)
        kept.append(True)

    def _explain(self, error: BaseException, amounts: Amounts) -> None:
        """Raise a better error, where that is of a shared limit: it is closed, or allows less at once than when the lease was made."""
        dispatcher = self._dispatcher
        if isinstance(error, LimiterClosed) and not dispatcher.closed and is_closed(dispatcher):
            raise self._refusals.closed(dispatcher) from None
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

    def _settle_lease(self, amounts: Amounts, receipt: int, used: dict[str, int]) -> None:
        """Correct the amounts that a lease took. For `Lease`."""
        self._correct({place: amount - amounts.of[self._names.index(place)] for place, amount in used.items()}, receipt)

    def _correct(self, more: dict[str, int], receipt: int) -> None:
        """Charge how much ``more`` was used than that receipt is for; below 0 it comes back. For budgets that share this one."""
        dispatcher = self._dispatcher
        now = dispatcher.look()
        for number, place in enumerate(self._names[: self._own]):
            if place in more:
                self._dimensions.correct(number, more[place], now, int(receipt))
        if self._above is not None:
            self._above.correct(more, receipt)
        dispatcher.changed()

    def _end_lease(self) -> None:
        """A lease has ended: its receipt is no longer needed. Never waits. For `Lease`."""
        if self._dispatcher.section is None:
            drop(self._dispatcher)
        else:
            self._dispatcher.post(partial(drop, self._dispatcher))

    # Changing, for those in line too.

    @changing
    def pause(self, seconds: Duration) -> None:
        """Let nothing through for this many seconds, or a timedelta; see `Limiter.pause`. What it shares is not paused."""
        changes.pause(self._dispatcher, pause_to_ns(seconds))

    @changing
    def resume(self) -> None:
        """End a pause now, whoever began it."""
        changes.resume(self._dispatcher)

    @changing
    def observe(self, feedback: Feedback | None, *, jitter: Duration = 0) -> None:
        """Apply what a server's response said about the limits; None does nothing.

        A refusal pauses the whole budget. A quota lowers the dimension of its name or, if there is none, of its unit.

        Args:
            feedback: What the response said, as `aiorate.http.read_feedback` reads it.
            jitter: Make a pause longer by a random part of this many seconds.
        """
        if feedback is None:
            return
        ns, told = check_feedback("observe()", feedback)
        extra = duration_to_ns(jitter, "observe(jitter)")
        dispatcher = self._dispatcher
        dispatcher.look()
        news = changes.pause_longer(dispatcher, ns, extra)
        names = {quota.name for quota in feedback.quotas}
        for quota in told:
            place = self._quotas.find(quota, names, self._names, dispatcher.notices.name)
            if place is not None:
                self._cap(place, quota)
        dispatcher.changed()
        changes.tell_of_pause(dispatcher, news, feedback)

    def _cap(self, place: str, quota: Left) -> None:
        """Heed a server's quota of a dimension: of that here, or of the shared one if only that has it. For budgets that share this."""
        number, dispatcher = self._names.index(place), self._dispatcher
        if number < self._own:
            now = dispatcher.look()
            self._dimensions.cap(number, quota.name, quota.left, quota.size, quota.ns, now, now + dispatcher.timeline.held_for, quota.error)
            dispatcher.changed()
        elif self._above is not None:
            self._above.cap(place, quota)

    async def aclose(self) -> None:
        """Close the budget. Callers in the queue get `LimiterClosed`. What it shares stays open, and leases can still be settled."""
        error = LimiterClosed("reserve(): the budget was closed while this reservation was waiting.")
        self._dispatcher.run(changes.shut, self._dispatcher, error)
        await changes.finish(self._dispatcher)

    # Looking.

    @property
    def name(self) -> str | None:
        """The name that it was given."""
        return self._dispatcher.notices.name

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names of the dimensions. Those that are only shared come last."""
        return self._names

    @property
    @deciding
    def waiting(self) -> int:
        """How many reservations are in the queue."""
        self._dispatcher.look()
        return self._dispatcher.line.count()

    def available(self, dimension: str) -> int:
        """Return how much of a dimension is available now. 0 while somebody waits, while paused, and once closed."""
        self._check_name("available", dimension)
        return self._dispatcher.run(self._available_here, dimension)

    def _available_here(self, dimension: str) -> int:
        """As `available`, inside the critical section. For budgets that share this one."""
        dispatcher = self._dispatcher
        now = dispatcher.look()
        if dispatcher.line or dispatcher.closed or dispatcher.timeline.held_at is not None:
            return 0
        number = self._names.index(dimension)
        own = self._dimensions.available_of(number, now) if number < self._own else None
        shared = None if self._above is None else self._above.available(dimension)
        return min(amount for amount in (own, shared) if amount is not None)

    def delay(self, **amounts: int) -> float:
        """Return how many seconds a reservation of these amounts would have to wait now; infinite if the budget is closed."""
        wanted = Amounts(self._lowered(self._amounts("delay", amounts)))
        return self._dispatcher.run(self._wait_of, wanted)

    def _wait_of(self, wanted: Amounts) -> float:
        dispatcher = self._dispatcher
        wait = estimate(dispatcher, wanted, dispatcher.look())
        return float("inf") if wait is None or is_closed(dispatcher) else ns_to_seconds(wait)

    @deciding
    def statistics(self) -> Statistics:
        """Return a snapshot of the counters, in reservations.

        ``available`` is how many reservations of 1 each could be made now. Settled amounts are not counted, and ``rate`` is that of the
        first dimension.
        """
        from aiorate.statistics import snapshot

        self._dispatcher.look()
        return snapshot(self._dispatcher)

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
        from aiorate.waiting.watch import watch_of

        return self._dispatcher.run(watch_of, self._dispatcher).add(on_wait)

    # For parts of aiorate that are built upon a budget.

    def _totals(self) -> Totals:
        """As `Limiter.totals`, with the amounts reserved and kept of each dimension, before they are settled."""
        from aiorate.totals import totals_of

        return totals_of(self._dispatcher, self._names)

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
        if not self._dispatcher.line:
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
            self._check_shared("KeyedBudget(shared)", shared, present, self._dispatcher.section is not None)
            self._share(SharedBudget(self._names, shared))
        self._of_key = True

    def _which_closed(self) -> str:
        """Which budget or Limiter is closed, of this one and those that it shares, and what to do, as a sentence."""
        if self._dispatcher.closed or self._above is None:
            name = self._dispatcher.notices.name
            named = repr(name) if name else f"of {' and '.join(self._names)}"
            return f"the shared budget {named} is closed. Create a new one, and the budgets that share it."
        return self._above.closed()

    def _decided_above(self) -> None:
        """Called when what is shared has decided about the first in line, which waited for it."""
        first = self._dispatcher.line.first()
        if first is not None and self._above is not None:
            amounts = first[1]
            assert isinstance(amounts, Amounts)
            self._dimensions.waited_for = self._above.waited_for(amounts)
        self._dispatcher.serve_if_alive()

    @looking
    def __repr__(self) -> str:
        name = f" {self._dispatcher.notices.name!r}" if self._dispatcher.notices.name else ""
        limits: dict[str, object] = dict(zip(self._names, self._dimensions.parts, strict=False))
        if self._above is not None:
            limits[self._names[-1] if isinstance(self._above.limit, Limiter) else "shared"] = self._above.limit
        parts = ", ".join(f"{place}={limit!r}" for place, limit in limits.items())
        state = ", closed" if self._dispatcher.closed else ", paused" if self._dispatcher.timeline.paused else ""
        return f"<Budget{name} {parts}, {len(self._dispatcher.line)} waiting{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Budget cannot be copied or pickled: the copy would grant the same permits again. Share it.")


def _decided_above(budget: ref[Budget]) -> None:
    """Tell a budget that what it shares has decided, if it is still there. A task that waits holds it."""
    there = budget()
    if there is not None:
        there._decided_above()
