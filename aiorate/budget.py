"""Several limits that a call uses by different amounts: requests and tokens per minute. Reserve an estimate, settle the actual use.

Knows nothing of how a rate is computed, of event loops, or of HTTP.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aiorate.errors import LimiterClosed, check_count, kind_of
from aiorate.events import Event
from aiorate.feedback import check_feedback
from aiorate.lease import Lease, check_named, not_a_reservation
from aiorate.limiter import Limiter, pause_to_ns
from aiorate.options import check_options
from aiorate.rate import Rate, duration_to_ns, ns_to_seconds, seconds_to_ns
from aiorate.schedulers.dimensions import Amounts, Dimensions
from aiorate.schedulers.interface import Scheduler
from aiorate.schedulers.token_pool import TokenPool
from aiorate.waiting import changes
from aiorate.waiting.dispatcher import Dispatcher
from aiorate.waiting.gate import Gate
from aiorate.waiting.max_waiting import MaxWaiting
from aiorate.waiting.questions import available, estimate, is_closed, max_permits
from aiorate.waiting.receipts import Receipt, drop, give_back, keep
from aiorate.waiting.refusals import Refusals

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Never, NoReturn

    from aiorate.feedback import Feedback
    from aiorate.lease import OnError
    from aiorate.rate import Number
    from aiorate.statistics import Statistics
    from aiorate.waiting.clock import Clock

__all__ = ["Budget"]

_logger = logging.getLogger("aiorate")


class Budget:
    """Dimensions with a limit each, one line for all, all or nothing: ``Budget(requests="500/min", tokens="200_000/min")``.

    A dimension is a rate (for a `TokenPool`), a strategy, or a `Limiter`, which several budgets may share; one dimension of a budget
    may be, without ``max_concurrency`` and ``max_waiting``. ``on_error`` says what happens to a reservation whose
    block ends with an exception: ``"keep"`` lets the estimate stand, because the server may have counted the call; ``"refund"`` gives
    it back. ``max_waiting``, ``catch_up``, ``clock`` and ``name`` are as in `Limiter`; ``on_event`` is called with an `aiorate.Event`
    when a server asks for a pause, or an estimate is lowered to the most that can be granted. Raises TypeError and ValueError for wrong
    arguments. For one event loop, as a `Limiter` is.
    """

    __slots__ = (
        "__weakref__",
        "_clamped",
        "_dimensions",
        "_dispatcher",
        "_max_waiting",
        "_names",
        "_on_error",
        "_own",
        "_refusals",
        "_shared",
        "_unheeded",
    )

    def __init__(
        self,
        *misplaced: Never,
        on_error: OnError = "keep",
        max_waiting: int | None = None,
        catch_up: Number = 0.02,
        clock: Clock | None = None,
        name: str | None = None,
        on_event: Callable[[Event], object] | None = None,
        **dimensions: Limiter | Scheduler | Rate | str | Number,
    ) -> None:
        if misplaced:
            raise TypeError(f"Budget() takes dimensions by name. For {misplaced[0]!r}, write {_by_name(misplaced[0])}.")
        _check_on_error("Budget(on_error)", on_error)
        check_options("Budget", max_waiting, clock, name, on_event)
        _check_dimensions(dimensions)
        limiters = {place: limit for place, limit in dimensions.items() if isinstance(limit, Limiter)}
        own = {place: limit for place, limit in dimensions.items() if not isinstance(limit, Limiter)}
        self._shared: Limiter | None = next(iter(limiters.values()), None)
        self._names = (*own, *limiters)  # the shared one last
        self._own = len(own)  # dimensions; a shared Limiter's comes after them
        self._dimensions = self._scheduler(own)
        self._dispatcher = Dispatcher(self._dimensions, seconds_to_ns(catch_up, "Budget(catch_up)"), False, clock, name)
        self._dispatcher.notices.on_event = on_event
        if self._shared is not None:
            changes.share(self._dispatcher, Gate(self._shared.dispatcher, self._on_shared, _last_amount, self._shared))
        self._max_waiting = None if max_waiting is None else MaxWaiting(max_waiting, self._dispatcher)
        self._refusals = _Refusals(self._names, self._dimensions)
        self._on_error: OnError = on_error
        self._unheeded: set[str] = set()  # dimensions for which the nearly equal name of a quota was logged
        self._clamped: set[str] = set()  # dimensions for which a lowered estimate was reported

    def _scheduler(self, limits: dict[str, Scheduler | Rate | str | Number]) -> Dimensions:
        """The scheduler of the dimensions, which a subclass may keep elsewhere. Its permits are `Amounts`, in the same order.

        Called once, before anything else is made here.
        """
        return Dimensions(tuple(_strategy(place, limit) for place, limit in limits.items()))

    # Asking.

    def reserve(
        self, *misplaced: Never, max_wait: Number | timedelta | None = None, on_error: OnError | None = None, **amounts: int
    ) -> Lease:
        """Amounts to take before a call, for ``async with``; a dimension that is not named takes 1, and 0 takes nothing of it.

        An amount above the most that can be granted at once is lowered to that. Entering waits in line until every dimension has its
        amount, for at most ``max_wait`` (seconds, or a timedelta), and raises the errors of `Limiter.acquire`. Raises TypeError and
        ValueError for unknown dimensions and amounts below 0.
        """
        check_named("reserve", self._names, misplaced)
        if on_error is not None:
            _check_on_error("reserve(on_error)", on_error)
        limit = None if max_wait is None else duration_to_ns(max_wait, "reserve(max_wait)")
        wanted = self._amounts("reserve", amounts)
        for place, amount, lowered in zip(self._names, wanted, self._lowered(wanted), strict=True):
            if lowered < amount and place not in self._clamped:
                self._clamped.add(place)
                self._dispatcher.notices.tell(
                    Event("clamped", self._dispatcher.notices.name, key=place, permits=lowered), self._dispatcher.loop
                )
        return Lease(self, Amounts(self._lowered(wanted)), limit, self._on_error if on_error is None else on_error)

    async def enter(self, amounts: Amounts, limit: int | None) -> tuple[float, int, str | None]:
        """Wait for the amounts: the seconds waited, the receipt, and the dimension that was waited for. For `Lease`.

        A receipt is held from then on: `release` must follow.
        """
        dispatcher = self._dispatcher
        if not dispatcher.line:
            self._dimensions.waited_for = None
        ticket, _, now = dispatcher.ask(amounts, limit, self._max_waiting, self._refusals)
        keep(dispatcher)
        if ticket is None:
            return 0.0, now, None
        try:
            waited, _, receipt = await dispatcher.wait(ticket, amounts, now, limit, self._max_waiting, self._refusals)
        except BaseException:
            drop(dispatcher)
            raise
        place = amounts.waited_for
        return ns_to_seconds(waited), receipt, None if place is None or not waited else self._names[place]

    def settle(self, amounts: Amounts, receipt: int, used: dict[str, int]) -> None:
        """Correct the amounts that a lease took. For `Lease`."""
        for place, amount in used.items():
            self._check_name("settle", place)
            check_count(f"settle({place})", amount)
        dispatcher = self._dispatcher
        now = dispatcher.look()
        for place, amount in used.items():
            number = self._names.index(place)
            more = amount - amounts.of[number]
            if number < self._own:
                self._dimensions.correct(number, more, now, int(receipt))
            elif self._shared is not None and more > 0:
                self._shared.charge(more)
            elif self._shared is not None and more < 0:
                assert isinstance(receipt, Receipt)  # as all have that passed a gate
                give_back(self._shared.dispatcher, -more, receipt.shared, whole=False)
        dispatcher.changed()

    def release(self) -> None:
        """A lease has ended: its receipt is no longer needed. For `Lease`."""
        drop(self._dispatcher)

    # Changing, for those in line too.

    def pause(self, seconds: Number | timedelta) -> None:
        """Grant nothing for ``seconds``, a number or a timedelta, as `Limiter.pause` does. A shared Limiter is not paused."""
        changes.pause(self._dispatcher, pause_to_ns(seconds))

    def resume(self) -> None:
        """End a pause now, also one that a server asked for."""
        changes.resume(self._dispatcher)

    def observe(self, feedback: Feedback | None, *, jitter: Number = 0) -> None:
        """Heed what a server said; None does nothing. A pause holds all; a quota lowers the dimension of its name, or of its unit.

        ``jitter`` makes a pause longer by a random part of that many seconds. Raises TypeError and ValueError for anything else, and
        changes nothing then.
        """
        if feedback is None:
            return
        ns, told = check_feedback("observe()", feedback)
        extra = seconds_to_ns(jitter, "observe(jitter)")
        dispatcher = self._dispatcher
        now, timeline = dispatcher.look(), dispatcher.timeline
        news = changes.pause_longer(dispatcher, ns, extra)
        names = {quota.name for quota in feedback.quotas}
        for quota in told:
            # One dimension of tokens is not lowered by those that go in or out alone, where the server tells of all tokens too.
            place = quota.name if quota.name in self._names or quota.unit in names else quota.unit
            if place not in self._names:
                self._say_unheeded(quota.name, names)
                continue
            number = self._names.index(place)
            if number < self._own:
                self._dimensions.cap(number, quota.name, quota.left, quota.size, quota.ns, now, now + timeline.held_for)
            elif self._shared is not None:
                changes.cap(self._shared.dispatcher, quota.name, quota.left, quota.size, quota.ns)
        dispatcher.changed()
        changes.tell_of_pause(dispatcher, news, feedback)

    async def aclose(self) -> None:
        """Close: reservations in line fail with `LimiterClosed`. A shared Limiter stays open, and leases may still be settled."""
        changes.shut(self._dispatcher, LimiterClosed("reserve(): the budget was closed while this reservation was waiting."))
        await changes.finish(self._dispatcher)

    # Looking.

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names; a shared Limiter's comes last."""
        return self._names

    @property
    def waiting(self) -> int:
        """How many reservations are in line."""
        self._dispatcher.look()
        return self._dispatcher.line.count()

    def available(self, dimension: str) -> int:
        """How much of a dimension is available now, whatever the others lack. 0 while somebody waits, while paused, and once closed."""
        self._check_name("available", dimension)
        dispatcher = self._dispatcher
        now = dispatcher.look()
        if dispatcher.line or dispatcher.closed or dispatcher.timeline.held_at is not None:
            return 0
        number = self._names.index(dimension)
        if self._shared is not None and number == self._own:
            return available(self._shared.dispatcher)
        return self._dimensions.available_of(number, now)

    def delay(self, **amounts: int) -> float:
        """Seconds that a reservation of these amounts would wait now, the line included; infinite while closed. Changes nothing.

        With a shared Limiter it may be more: a reservation in line here has yet to stand in line there.
        """
        dispatcher = self._dispatcher
        wanted = Amounts(self._lowered(self._amounts("delay", amounts)))
        wait = estimate(dispatcher, wanted, dispatcher.look())
        return float("inf") if wait is None or is_closed(dispatcher) else ns_to_seconds(wait)

    def statistics(self) -> Statistics:
        """A snapshot of the counters, in reservations: ``granted`` is how many were, ``available`` how many of 1 each there are now.

        Settled amounts are not counted, ``refunded`` and ``charged`` are 0, and ``rate`` is that of the first dimension.
        """
        from aiorate.statistics import snapshot

        self._dispatcher.look()
        return snapshot(self._dispatcher)

    def _amounts(self, call: str, amounts: dict[str, int]) -> tuple[int, ...]:
        for place, amount in amounts.items():
            self._check_name(call, place)
            check_count(f"{call}({place})", amount)
        return tuple(amounts.get(place, 1) for place in self._names)

    def _lowered(self, amounts: tuple[int, ...]) -> tuple[int, ...]:
        """The amounts, none above the most that its dimension can grant at once."""
        most = self._dimensions.most
        if self._shared is not None:
            most.append(max_permits(self._shared.dispatcher))
        return tuple(amount if least is None else min(amount, least) for amount, least in zip(amounts, most, strict=True))

    def _say_unheeded(self, name: str, names: set[str]) -> None:
        """Log, once for each dimension, that the server's quota ``name`` is not heeded, if a dimension has nearly that name."""
        near = next((place for place in self._names if place not in names and name and (place in name or name in place)), None)
        if near is not None and near not in self._unheeded:
            self._unheeded.add(near)
            own = self._dispatcher.notices.name
            budget = f"budget {own!r}" if own else "budget"
            _logger.warning(
                "%s: the server reports a quota %r, but no dimension has that name. If dimension %r is that quota, name it %r.",
                *(budget, name, near, name),
            )

    def _check_name(self, call: str, place: str) -> None:
        if place not in self._names:
            from aiorate.mistakes import not_a_dimension

            raise not_a_dimension(call, place, self._names)

    def _on_shared(self) -> None:
        """Called when the shared limit has decided about the first in line, which waited for it."""
        self._dimensions.waited_for = self._own
        self._dispatcher.serve_if_alive()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            from aiorate.mistakes import not_of_a_budget

            raise AttributeError(not_of_a_budget(name), name=name, obj=self)

        __enter__ = __aenter__ = not_a_reservation
        __exit__ = __aexit__ = not_a_reservation

    def __repr__(self) -> str:
        name = f" {self._dispatcher.notices.name!r}" if self._dispatcher.notices.name else ""
        limits = [*self._dimensions.parts, *([] if self._shared is None else [self._shared])]
        parts = ", ".join(f"{place}={limit!r}" for place, limit in zip(self._names, limits, strict=True))
        state = ", closed" if self._dispatcher.closed else ", paused" if self._dispatcher.timeline.paused else ""
        return f"<Budget{name} {parts}, {len(self._dispatcher.line)} waiting{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Budget cannot be copied or pickled: the copy would grant the same permits again. Share it.")


class _Refusals(Refusals):
    """Those of `Budget.reserve`, which say for which dimension a call would wait."""

    __slots__ = ("_dimensions", "_names")

    def __init__(self, names: tuple[str, ...], dimensions: Dimensions) -> None:
        super().__init__("reserve")
        self._names = names
        self._dimensions = dimensions

    def named(self, permits: int) -> str:
        return "reserve()"

    def closed(self, dispatcher: Dispatcher) -> LimiterClosed:
        if dispatcher.closed:
            return LimiterClosed(f"reserve(): {_CLOSED}")
        return LimiterClosed(f"reserve(): the shared Limiter {self._names[-1]!r} is closed. Reopen it, or create a new Budget.")

    def reason(self, permits: int, dispatcher: Dispatcher, now: int) -> str:
        if dispatcher.line:
            return " in line"
        if dispatcher.timeline.held_at is not None:
            return " because the budget is paused"
        place = self._dimensions.last(permits, now)
        return f" for {self._names[-1 if place is None else place]}"


def _last_amount(permits: int) -> int:
    assert isinstance(permits, Amounts)
    return permits.of[-1]


def _strategy(place: str, limit: Scheduler | Rate | str | Number) -> Scheduler:
    if isinstance(limit, Scheduler):
        return limit
    try:
        return TokenPool(limit)
    except TypeError as error:
        raise TypeError(f"Budget({place}) must be a rate such as '500/min', a strategy or a Limiter, not {kind_of(limit)}.") from error


def _by_name(limits: object) -> str:
    if isinstance(limits, dict) and limits:
        return "Budget(**limits)"
    return f"Budget(requests={limits!r})" if isinstance(limits, str) else "Budget(requests=...)"


def _check_dimensions(dimensions: dict[str, Limiter | Scheduler | Rate | str | Number]) -> None:
    if not dimensions:
        raise TypeError("Budget() needs at least one dimension, such as Budget(requests='500/min', tokens='200_000/min').")
    for place in ("max_wait", "on_error"):
        if place in dimensions:
            raise TypeError(f"Budget(): a dimension cannot be named {place!r}, which is an option of reserve(). Choose another name.")
    for place in ("burst", "timeout", "scope", "max_concurrency", "precise"):
        if place in dimensions:
            from aiorate.mistakes import NOT_DIMENSIONS

            raise TypeError(f"Budget({place}): {NOT_DIMENSIONS[place]}. If it is a dimension, give it another name.")
    limiters = [place for place, limit in dimensions.items() if isinstance(limit, Limiter)]
    if len(limiters) > 1:
        raise ValueError(
            f"Budget(): only one dimension may be a shared Limiter; {' and '.join(limiters)} are."
            " Give the others as rates or strategies, or share one Budget among all callers."
        )
    for place in limiters:
        limit = dimensions[place]
        if isinstance(limit, Limiter) and limit.dispatcher.section is not None:
            raise ValueError(f"Budget({place}): a Budget is for one event loop, and this Limiter has scope='process'. Use scope='loop'.")
        if isinstance(limit, Limiter):
            limit.check_shared(f"Budget({place})", "the Budget")
    if len(limiters) == len(dimensions):
        raise ValueError("Budget(): with a shared Limiter as its only dimension, a budget adds nothing. Use the Limiter itself.")


def _check_on_error(what: str, on_error: object) -> None:
    if on_error not in ("keep", "refund"):
        raise ValueError(f"{what} must be 'keep' or 'refund'; {on_error!r} was given.")


_CLOSED = "the budget is closed. Create a new one."
