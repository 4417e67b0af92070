"""RedisBudget: a budget of several dimensions for many processes. It is a Budget whose permits a store books."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction
from gc import collect
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from aiorate.budget import Budget
from aiorate.errors import kind_of
from aiorate.explained import explained
from aiorate.limiter import Limiter
from aiorate.options import check_scope
from aiorate.rate import NS_PER_SECOND, Rate, duration_to_ns
from aiorate.redis.booking_ledger import BookingLedger
from aiorate.redis.booking_outage import BookingOutage
from aiorate.redis.booking_script import Limits as StoreLimits
from aiorate.redis.immediate import AskOnce
from aiorate.redis.options import check_name, horizon_of, lateness_of, share_of
from aiorate.redis.place import LoopPlace
from aiorate.redis.session import StoreSession
from aiorate.redis.store import check_source
from aiorate.schedulers.booked_dimensions import BookedDimensions
from aiorate.schedulers.interface import Scheduler
from aiorate.schedulers.slot_scheduler import check_memory
from aiorate.schedulers.token_bucket import TokenBucket
from aiorate.several import is_list
from aiorate.waiting.questions import shares_on_demand

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, Never

    from aiorate.budget import Decide
    from aiorate.events import Event
    from aiorate.rate import Duration, Number
    from aiorate.redis.place import Place
    from aiorate.schedulers.dimensions import Amounts, Dimensions
    from aiorate.several import Limits
    from aiorate.waited import Waited
    from aiorate.waiting.clock import Clock
    from aiorate.waiting.dispatcher import Answer

__all__ = ["RedisBudget"]

_OF_OTHERS = ("burst", "rate", "rates", "precise", "max_concurrency", "catch_up", "timeout", "max_wait", "key", "url")


class RedisBudget(Budget):
    """One budget for all processes that give the same name, through Redis or Valkey: ``requests="500/min", tokens="200_000/min"``.

    ``client_or_url`` and ``name`` are as in `RedisLimiter`, and the key in the store is ``aiorate:{name}``. A dimension is a rate or a
    `TokenBucket`. Of a rate nothing is saved up: an amount of any size is granted, and later ones wait until it has passed, so estimates
    are not lowered. A bucket starts full, and an amount above its burst is lowered to it, as in `Budget`. ``shared`` is a Budget or
    RedisBudget from which every reservation takes too, as in `Budget`; its key is another one, and the process asks for both.

    The store books reservations by its own clock, each for the first instant at which all dimensions have its amount. Let R be the rate
    of a dimension, n the largest amount, b the burst (of a rate: n), and W any window in seconds. What all processes together reserve
    in it, less what comes back in it or was about to, is at most ``b + R * (W + max(slack, lease, 0.5 * n / R))``, where W grows by as
    much as answers take longer to one process than to another. In the long run the use never exceeds R. Permits that come back serve the
    next bookings of all processes. A process with a short line hears of them within 0.3 seconds. With a long one it has bookings already,
    and those stay as they are.

    ``horizon`` is how far ahead, in seconds, all processes together aim to book at most; the time of 12 reservations if that is shorter.
    A process that dies wastes a part of that, and its open estimates stand. A lower horizon means more calls to the store at low rates.
    ``slack`` is how many seconds a booking may be used late, 0.001 or more, and ``lease`` the same: the longer one counts.
    ``on_unavailable``, ``local_share`` and ``grace`` are as in `RedisLimiter`: under ``"local"`` this process has ``local_share`` of each
    dimension, and what it reserved is charged afterwards. When the store loses its state, at most what was booked ahead is granted a
    second time, and a burst once more where no process remembers.

    `pause`, `observe` and `resume` are for all processes. A quota from a response is kept by the process that received it. The other
    arguments are those of `Budget`. For asyncio and uvloop, or with ``scope="process"`` for any loops and threads of the process, through
    one connection in one thread, as `RedisLimiter`. Raises TypeError and ValueError for wrong arguments.
    """

    __slots__ = ("_booked", "_counts", "_late", "_ledger", "_limits", "_pairs", "_session")

    @explained
    def __init__(
        self,
        client_or_url: Any,
        name: str,
        *misplaced: Never,
        shared: Budget | None = None,
        lease: Duration = 0.0,
        horizon: Duration = 2.0,
        slack: Duration = 0.005,
        on_unavailable: Literal["raise", "wait", "local", "open"] = "raise",
        local_share: Number | None = None,
        grace: Duration = 1.0,
        on_error: Literal["keep", "refund"] = "keep",
        max_waiting: int | None = None,
        clock: Clock | None = None,
        on_event: Callable[[Event], object] | None = None,
        on_wait: Callable[[Waited], object] | None = None,
        scope: Literal["loop", "process"] = "loop",
        **dimensions: TokenBucket | Rate | str | Number,
    ) -> None:
        if misplaced:
            raise TypeError(
                f"RedisBudget() takes a client or URL, a name, and dimensions by name, not {misplaced[0]!r}. Write"
                " RedisBudget(url, name, requests='500/min', tokens='200_000/min')."
            )
        check_scope("RedisBudget", scope)
        check_source(client_or_url, alone=scope == "process")
        check_name("RedisBudget", name)
        for option in _OF_OTHERS:
            if option in dimensions:
                raise TypeError(f"RedisBudget({option}): {_hint(option)} If it is a dimension, give it another name.")
        late = max(lateness_of("RedisBudget", slack, lease))
        ahead = horizon_of("RedisBudget", horizon, 2.0)
        share = share_of("RedisBudget", on_unavailable, local_share)
        patience = duration_to_ns(grace, "RedisBudget(grace)")
        self._pairs = {dimension: _limit(dimension, limit) for dimension, limit in dimensions.items()}
        _check_alike(client_or_url, name, self._pairs)
        self._late, self._counts = late, on_unavailable != "open"
        super().__init__(
            shared=shared,
            on_error=on_error,
            max_waiting=max_waiting,
            catch_up=Fraction(late, NS_PER_SECOND),
            clock=clock,
            name=name,
            on_event=on_event,
            on_wait=on_wait,
            scope=scope,
            **dimensions,
        )
        place: Place = LoopPlace(client_or_url)
        if scope == "process":
            from aiorate.redis.process_place import ProcessPlace

            place = ProcessPlace(client_or_url, self._dispatcher)
        bookings = self._booked.bookings
        self._ledger = BookingLedger(bookings, self._limits, self._dispatcher, place, ahead, late)
        outage = BookingOutage(on_unavailable, patience, bookings.rates, bookings.bursts, share, self._ledger)
        self._session = StoreSession(client_or_url, f"aiorate:{name}", self._dispatcher, self._ledger, outage, place)
        if shared is not None:
            self._session.shared()
        _named[_identity(client_or_url), name] = self

    @property
    def limits(self) -> dict[str, tuple[Rate, int | None]]:
        """Rate and burst of each dimension; none once it is closed, or its event loop is."""
        loop = self._dispatcher.loop
        return {} if self._dispatcher.closed or (loop is not None and loop.closed) else self._pairs

    def _scheduler(self, limits: dict[str, Limits]) -> Dimensions:
        rates, bursts = zip(*self._pairs.values(), strict=True)
        self._booked = BookedDimensions(rates, bursts, self._late, self._counts)
        self._limits = StoreLimits(tuple(limits), self._booked.bookings.rates, self._booked.bookings.bursts)
        return self._booked

    @property
    def key(self) -> str:
        """The key in the store: text, written again by every call, and gone soon after the last."""
        return self._session.key

    async def enter(self, amounts: Amounts, limit: int | None, decide: Decide | None = None) -> tuple[float, int, str | None]:
        """As `Budget.enter`. A ``limit`` of 0, or shorter than an answer of the store takes, asks the store once."""
        if not self._asks_once(limit):
            return await super().enter(amounts, limit, decide)
        once = AskOnce(self._dispatcher, self._session, limit or 0, "reserve")

        def decided(*asked: Any) -> Answer:
            return once.decide(*asked, None, None, True)  # as if the loop had just turned: it does until the answer is here

        try:
            return await super().enter(amounts, None, decided)
        finally:
            once.forget()

    def enter_blocking(self, amounts: Amounts, limit: int | None, decide: Decide | None = None) -> tuple[float, int, str | None]:
        """As `Budget.enter_blocking`. A short ``limit`` is as in `enter`."""
        if not self._asks_once(limit):
            return super().enter_blocking(amounts, limit, decide)
        once = AskOnce(self._dispatcher, self._session, limit or 0, "reserve")
        try:
            return super().enter_blocking(amounts, None, once.decide)
        finally:
            once.forget()

    def _asks_once(self, limit: int | None) -> bool:
        return limit is not None and (not limit or limit < self._session.answer_ns) and not shares_on_demand(self._dispatcher)

    def resume(self) -> None:
        """End a pause, for all processes. A key whose value has become unreadable starts again as new."""
        super().resume()

    async def aclose(self) -> None:
        """Close: reservations in line fail with `LimiterClosed`, and what is booked goes back to the store.

        Once the last limit of the client or URL is closed, no task, timer, thread or connection that was opened here is left.
        Synchronous code writes ``asyncio.run(budget.aclose())`` for one with ``scope="process"``.
        """
        await super().aclose()
        self._dispatcher.run(self._ledger.close)
        await self._session.aclose()


def _limit(place: str, limit: object) -> tuple[Rate, int | None]:
    """The rate of a dimension and its burst."""
    rate, burst = _rate(place, limit)
    check_memory(f"RedisBudget({place})", rate, 1 if burst is None else burst)
    return rate, burst


def _rate(place: str, limit: object) -> tuple[Rate, int | None]:
    if isinstance(limit, TokenBucket):
        if deepcopy(limit).peek(limit.burst, 0) > 0:
            raise ValueError(
                f"RedisBudget({place}): only the rate and the burst of {limit!r} count: the bucket in the store starts full. Give a new one"
                " without initial= and start=."
            )
        return limit.rate, limit.burst
    if is_list(limit):
        raise TypeError(
            f"RedisBudget({place}): a dimension in a store has one limit. Make each limit a dimension, such as"
            f" {place}='10/s', {place}_of_a_minute='500/min', and reserve the same of both."
        )
    if isinstance(limit, (Scheduler, Limiter, type)):
        raise TypeError(
            f"RedisBudget({place}) must be a rate such as '500/min', or a TokenBucket, not {kind_of(limit)}: the store knows no other"
            " strategies."
        )
    try:
        return Rate.of(limit), None  # type: ignore[arg-type]  # which says what is wrong
    except TypeError as error:
        raise TypeError(f"RedisBudget({place}) must be a rate such as '500/min', or a TokenBucket, not {kind_of(limit)}.") from error


def _check_alike(source: object, name: str, limits: dict[str, tuple[Rate, int | None]]) -> None:
    """Raise ValueError if another budget of that name, in use in this process, has another rate or burst for the same dimension."""
    found = _differing(source, name, limits)
    if found is not None:
        collect()  # a budget that nobody holds does not count, though a cycle may keep it for a while
        found = _differing(source, name, limits)
    if found is not None:
        place, rate, burst = found
        raise ValueError(
            f"RedisBudget({place}): a budget named {name!r} has {rate} with {'no burst' if burst is None else f'burst={burst}'} in this"
            " process. All of one name share one schedule: give both the same limits, or two names, or close the other one first."
        )


def _differing(source: object, name: str, limits: dict[str, tuple[Rate, int | None]]) -> tuple[str, Rate, int | None] | None:
    other = _named.get((_identity(source), name))
    for place, (rate, burst) in ({} if other is None else other.limits).items():
        mine, my_burst = limits.get(place, (rate, burst))
        if (mine.permits * rate.period_ns, my_burst) != (rate.permits * mine.period_ns, burst):
            return place, rate, burst
    return None


def _identity(source: object) -> object:
    return source if isinstance(source, str) else id(source)  # a budget keeps its client, so its id is that of no other


def _hint(place: str) -> str:
    from aiorate.mistakes import NOT_DIMENSIONS

    if place in NOT_DIMENSIONS:
        return f"{NOT_DIMENSIONS[place]}."
    return "this is an option of something else, and not of RedisBudget."


_named: WeakValueDictionary[tuple[object, str], RedisBudget] = WeakValueDictionary()
"""Of each client or URL and each name, the budget made last in this process."""
