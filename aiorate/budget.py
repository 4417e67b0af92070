"""Several limits that a call uses by different amounts: requests and tokens per minute. Reserve an estimate, settle what was used.

Knows nothing of how a rate is computed, of event loops, or of HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.errors import LimiterClosed, LineFull, WaitTooLong
from aiorate.events import Event, emit
from aiorate.limiter import Limiter
from aiorate.rate import Rate, ns_to_seconds, seconds_to_ns
from aiorate.schedulers.dimensions import Amounts, Dimensions
from aiorate.schedulers.interface import Scheduler, check_permits
from aiorate.schedulers.token_pool import TokenPool
from aiorate.waiting.dispatcher import Dispatcher
from aiorate.waiting.gate import Gate, Receipt
from aiorate.waiting.request import stand_in_line, yield_to_loop

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Literal, NoReturn

    from aiorate.feedback import Feedback
    from aiorate.rate import Number
    from aiorate.waiting.clock import Clock

    OnError = Literal["keep", "refund"]

__all__ = ["Budget", "Lease"]


class Budget:
    """Dimensions with a limit each, one line, all or nothing: ``Budget(requests="500/min", tokens="200_000/min")``.

    A dimension is a rate (for a `TokenPool`), a strategy, or a `Limiter`, which several budgets may share; one dimension of a budget
    may be. ``on_error`` says what becomes of a reservation whose block ends with an exception: ``"keep"`` lets the estimate stand,
    because the server may have counted the call; ``"refund"`` gives it back. ``max_waiting``, ``catch_up``, ``clock``, ``name`` and
    ``on_event`` are as in `Limiter`. Raises TypeError and ValueError for wrong arguments.
    """

    __slots__ = ("__weakref__", "_clamped", "_dimensions", "_dispatcher", "_limits", "_max_waiting", "_names", "_on_error", "_shared")

    def __init__(
        self,
        *,
        on_error: OnError = "keep",
        max_waiting: int | None = None,
        catch_up: Number = 0.02,
        clock: Clock | None = None,
        name: str | None = None,
        on_event: Callable[[Event], object] | None = None,
        **dimensions: Limiter | Scheduler | Rate | str | Number,
    ) -> None:
        if not dimensions:
            raise TypeError("Budget() needs at least one dimension, such as Budget(requests='500/min', tokens='200_000/min').")
        _check_on_error("Budget(on_error)", on_error)
        if max_waiting is not None:
            check_permits("Budget(max_waiting)", max_waiting)
        limiters = [(place, limit) for place, limit in dimensions.items() if isinstance(limit, Limiter)]
        if len(limiters) > 1:
            raise ValueError(
                f"Budget(): one dimension may be a Limiter that others share; {' and '.join(place for place, _ in limiters)} are."
                " Give the others as rates or strategies."
            )
        own = {place: _strategy(place, limit) for place, limit in dimensions.items() if not isinstance(limit, Limiter)}
        shared = limiters[0] if limiters else None
        if shared is not None and not own:
            raise ValueError("Budget(): with a shared Limiter as its only dimension, a budget adds nothing. Use the Limiter itself.")
        self._shared = None if shared is None else shared[1]
        self._names = (*own, *(place for place, _ in limiters))
        self._dimensions = Dimensions(tuple(own.values()))
        self._dispatcher = Dispatcher(self._dimensions, seconds_to_ns(catch_up, "Budget(catch_up)"), False, clock, name)
        self._dispatcher.on_event = on_event
        if self._shared is not None:
            self._dispatcher.share(Gate(self._shared.dispatcher, self._dispatcher.serve_if_alive, _last_amount))
        self._max_waiting = max_waiting
        self._on_error = on_error
        self._clamped: set[str] = set()  # dimensions of which it was said that an estimate was above what can be granted

    def reserve(self, *, max_wait: Number | None = None, on_error: OnError | None = None, **amounts: int) -> Lease:
        """Amounts to take before a call, for ``async with``; a dimension that is not named takes 1.

        An amount above what can be granted at once is lowered to that. Entering waits in line until every dimension has its amount,
        and raises what `Limiter.acquire` raises. Raises TypeError and ValueError for unknown dimensions and amounts below 1.
        """
        if on_error is not None:
            _check_on_error("reserve(on_error)", on_error)
        limit = None if max_wait is None else seconds_to_ns(max_wait, "reserve(max_wait)")
        return Lease(self, self._amounts("reserve", amounts), limit, self._on_error if on_error is None else on_error)

    def delay(self, **amounts: int) -> float:
        """Seconds that such a reservation would wait now; infinite while closed. Changes nothing."""
        wait = self._dispatcher.estimate(self._amounts("delay", amounts), self._dispatcher.look())
        return float("inf") if wait is None or self._dispatcher.closed else ns_to_seconds(wait)

    def observe(self, feedback: Feedback | None) -> None:
        """Heed what a server said; None does nothing. A pause holds all; a quota lowers the dimension of its name, or of its unit."""
        if feedback is None:
            return
        dispatcher = self._dispatcher
        now = dispatcher.look()
        if feedback.pause:
            dispatcher.timeline.pause(seconds_to_ns(feedback.pause, "observe()"), dispatcher.on_pause_end)
            emit(Event("paused", dispatcher.name, seconds=feedback.pause, source=feedback.source), dispatcher.on_event)
        for quota in feedback.quotas:
            place = quota.name if quota.name in self._names else quota.unit
            if place in self._names and quota.remaining is not None and quota.reset:
                reset, left = quota.reset, quota.remaining
                if quota.full_at_reset:
                    if left or not quota.limit:
                        continue
                    reset, left = reset / quota.limit, 0
                number = self._names.index(place)
                if number < len(self._dimensions.parts):
                    self._dimensions.cap(number, left, now, now + dispatcher.timeline.held_for + seconds_to_ns(reset, "observe()"))
                elif self._shared is not None:
                    self._shared.dispatcher.cap(left, seconds_to_ns(reset, "observe()"))
        dispatcher.changed()

    @property
    def waiting(self) -> int:
        """How many reservations are in line."""
        return self._dispatcher.line.count()

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names."""
        return self._names

    def available(self, dimension: str) -> int:
        """How much of a dimension is to be had now."""
        number = self._names.index(dimension)
        if number < len(self._dimensions.parts):
            return self._dimensions.parts[number].available(self._dispatcher.look())
        assert self._shared is not None
        return self._shared.dispatcher.available()

    async def aclose(self) -> None:
        """Send those in line away with `LimiterClosed`. A shared Limiter stays open."""
        await self._dispatcher.close(LimiterClosed(f"reserve(): while this reservation stood in line, {_CLOSED}"))

    async def enter(self, amounts: Amounts, limit: int | None) -> tuple[float, int, str | None]:
        """Wait for the amounts: the seconds waited, the receipt, and the dimension that was waited for. For `Lease`."""
        dispatcher = self._dispatcher
        at, now = dispatcher.try_take(amounts)
        if at <= now:
            dispatcher.keep_receipt()
            try:
                await yield_to_loop(dispatcher, amounts, now)
            except BaseException:
                dispatcher.drop_receipt()
                raise
            return 0.0, now, None
        limited_by = self._limited_by(amounts, now)
        if dispatcher.closed:
            raise LimiterClosed(f"reserve(): {_CLOSED}")
        if self._max_waiting is not None and dispatcher.full(self._max_waiting):
            dispatcher.counters.refused += 1
            raise LineFull(f"reserve(): {self._max_waiting} are waiting, and max_waiting is {self._max_waiting}. Try later.")
        if limit is not None:
            wait = dispatcher.estimate(amounts, now)
            if wait is None or wait > limit:
                dispatcher.counters.refused += 1
                seconds = float("inf") if wait is None else ns_to_seconds(wait)
                raise WaitTooLong(
                    f"reserve() would wait {seconds:.6g} s for {limited_by}, and max_wait is {ns_to_seconds(limit):g} s."
                    " Nothing was spent; try later, or allow more.",
                    seconds,
                    ns_to_seconds(limit),
                )
        dispatcher.keep_receipt()  # until the lease is settled: a record that is kept too long costs little, one too few is wrong
        try:
            waited, _, granted_at = await stand_in_line(dispatcher, amounts, at, now, now)
        except BaseException:
            dispatcher.drop_receipt()
            raise
        return ns_to_seconds(waited), granted_at, limited_by

    def settle(self, amounts: Amounts, receipt: int, used: dict[str, int]) -> None:
        """Correct what a lease took. For `Lease`."""
        for place, amount in used.items():
            if place not in self._names:
                raise TypeError(f"settle(): there is no dimension {place!r}; there are {', '.join(self._names)}.")
            if amount != 0 or type(amount) is not int:
                check_permits(f"settle({place})", amount)
        dispatcher = self._dispatcher
        now = dispatcher.look()
        for place, amount in used.items():
            number = self._names.index(place)
            more = amount - amounts.of[number]
            if number < len(self._dimensions.parts):
                self._dimensions.correct(number, more, now, int(receipt))
            elif self._shared is not None and more > 0:
                self._shared.charge(more)
            elif self._shared is not None and more < 0:
                assert isinstance(receipt, Receipt)  # as all have that passed a gate
                self._shared.dispatcher.return_some(-more, receipt.shared)
        dispatcher.changed()

    def release(self) -> None:
        """A lease is over: its receipt is not needed any more. For `Lease`."""
        self._dispatcher.drop_receipt()

    def _amounts(self, call: str, amounts: dict[str, int]) -> Amounts:
        for place, amount in amounts.items():
            if place not in self._names:
                raise TypeError(f"{call}(): there is no dimension {place!r}; there are {', '.join(self._names)}.")
            check_permits(f"{call}({place})", amount)
        return Amounts(tuple(self._clamp(place, number, amounts.get(place, 1)) for number, place in enumerate(self._names)))

    def _limited_by(self, amounts: Amounts, now: int) -> str:
        if self._dimensions.peek(amounts, now) <= now and self._shared is not None:
            return self._names[-1]
        return self._names[self._dimensions.last(amounts, now)]

    def _clamp(self, place: str, number: int, amount: int) -> int:
        parts = self._dimensions.parts
        most = parts[number].max_permits if number < len(parts) else self._shared.dispatcher.max_permits if self._shared else None
        if most is None or amount <= most:
            return amount
        if place not in self._clamped:
            self._clamped.add(place)
            emit(Event("clamped", self._dispatcher.name, key=place, permits=most), self._dispatcher.on_event)
        return most

    def __repr__(self) -> str:
        name = f" {self._dispatcher.name!r}" if self._dispatcher.name else ""
        limits = [*self._dimensions.parts, *([] if self._shared is None else [self._shared])]
        parts = ", ".join(f"{place}={limit!r}" for place, limit in zip(self._names, limits, strict=True))
        return f"<Budget{name} {parts}, {len(self._dispatcher.line)} waiting>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Budget cannot be copied or pickled: the copy would grant the same permits again. Share it.")


class Lease:
    """What a call reserved: ``async with budget.reserve(tokens=1800) as lease: ...; lease.settle(tokens=used)``.

    The first of `settle` and `refund` counts, and others do nothing. Unsettled, the estimate stands.
    """

    __slots__ = ("_budget", "_limit", "_on_error", "_receipt", "_settled", "amounts", "limited_by", "waited")

    def __init__(self, budget: Budget, amounts: Amounts, limit: int | None, on_error: OnError) -> None:
        self._budget = budget
        self._limit = limit
        self._on_error = on_error
        self._receipt: int | None = None
        self._settled = False
        self.amounts = amounts
        self.waited = 0.0
        """Seconds waited."""
        self.limited_by: str | None = None
        """The dimension that was waited for; None: none."""

    async def __aenter__(self) -> Lease:
        """Wait until every dimension has its amount."""
        if self._receipt is not None:
            raise RuntimeError("a lease is entered once; reserve() anew for each call.")
        self.waited, self._receipt, self.limited_by = await self._budget.enter(self.amounts, self._limit)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """With an exception and ``on_error="refund"``, give everything back. Otherwise the estimate stands if it was not settled."""
        if error is not None and self._on_error == "refund":
            self.refund()
        elif not self._settled:
            self._settled = True
            self._budget.release()

    def settle(self, **used: int) -> None:
        """Say what the call used: less comes back at once, more is owed by later calls. Dimensions not named stay as reserved.

        0 is a legal amount. Raises TypeError and ValueError for anything else than known dimensions and ints of 0 or more.
        """
        if self._receipt is None:
            raise RuntimeError("settle(): nothing is reserved yet. Enter the lease with `async with` first.")
        if self._settled:
            return
        self._budget.settle(self.amounts, self._receipt, used)
        self._settled = True
        self._budget.release()

    def refund(self) -> None:
        """Give everything back: the call was not made."""
        names = self._budget.dimensions
        self.settle(**dict.fromkeys(names, 0))


def _last_amount(permits: int) -> int:
    assert isinstance(permits, Amounts)
    return permits.of[-1]


def _strategy(place: str, limit: Scheduler | Rate | str | Number) -> Scheduler:
    if isinstance(limit, Scheduler):
        return limit
    try:
        return TokenPool(limit)
    except TypeError as error:
        raise TypeError(
            f"Budget({place}) must be a rate such as '500/min', a strategy or a Limiter, not {type(limit).__name__}."
        ) from error


def _check_on_error(what: str, on_error: object) -> None:
    if on_error not in ("keep", "refund"):
        raise ValueError(f"{what} must be 'keep' or 'refund'; {on_error!r} was given.")


_CLOSED = "the budget is closed. Make another."
