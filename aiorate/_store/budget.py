"""RedisBudget: a budget of several dimensions for many processes. It is a Budget whose permits a store books."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction
from gc import collect
from typing import TYPE_CHECKING
from urllib.parse import quote
from weakref import WeakValueDictionary

from aiorate._budget import Budget, check_names
from aiorate._errors import kind_of
from aiorate._limiter import Limiter
from aiorate._options import check_scope, is_list
from aiorate._rate import NS_PER_SECOND, Rate, duration_to_ns
from aiorate._schedulers.interface import Scheduler
from aiorate._schedulers.token_bucket import TokenBucket
from aiorate._store.booked_dimensions import BookedDimensions
from aiorate._store.demand import Terms
from aiorate._store.once import AskOnce
from aiorate._store.options import check_name, horizon_of, lateness_of, share_of
from aiorate._store.session import StoreSession
from aiorate._store.slots import check_memory
from aiorate._store.store import check_source
from aiorate._tree.questions import above_on_demand

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

    from aiorate._budget import Decide
    from aiorate._events import Event, Waited
    from aiorate._loops.clock import Clock
    from aiorate._options import Limits
    from aiorate._rate import Duration, Number
    from aiorate._schedulers.amounts import Amounts
    from aiorate._schedulers.dimensions import Dimensions
    from aiorate._tree.limit import Taken

__all__ = ["RedisBudget"]


class RedisBudget(Budget):
    """One budget for all processes that use the same name, through Redis or Valkey.

    It has all the calls of a `Budget`. A dimension is a rate or a `TokenBucket`. Of a rate nothing is saved up: an amount of any size is
    granted, and later ones wait until it has been paid for. A bucket starts full, and larger amounts are lowered to its burst.

    The store books reservations by its own clock. With the rate R of a dimension, the largest amount n and the burst b (of a rate: n), all
    processes together reserve at most ``b + R * (w + max(slack, lease, 0.5 * n / R))`` in any window of w seconds, apart from what comes
    back.

    Args:
        client_or_url: See `RedisLimiter`.
        name: Processes with the same name share the budget. The key in the store is ``aiorate:{name}``.
        shared: A Budget or RedisBudget to take from as well, by the names of the dimensions.
        lease: How many seconds late a booking may be used; the longer of this and ``slack`` counts.
        horizon: How many seconds ahead all processes together aim to book at most.
        slack: How many seconds late a booking may be used, 0.001 or more.
        on_unavailable: See `RedisLimiter`; the same for ``local_share``, ``grace`` and ``scope``.
        **dimensions: The limits, by name: rates or buckets.

    The other arguments are those of `Budget`. Durations may be timedeltas.
    """

    __slots__ = ("_booked", "_late", "_pairs", "_session")

    def __init__(
        self,
        client_or_url: Any,
        name: str,
        *,
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
        check_scope("RedisBudget", scope)
        check_source(client_or_url, alone=scope == "process")
        check_name("RedisBudget", name)
        check_names("RedisBudget", dimensions)
        at_most, leased = lateness_of("RedisBudget", slack, lease)
        terms = Terms(
            "budget:" + ",".join([quote(dimension) for dimension in dimensions]),
            horizon_of("RedisBudget", horizon, 2.0),
            0,
            at_most,
            on_unavailable,
            duration_to_ns(grace, "RedisBudget(grace)"),
            share_of("RedisBudget", on_unavailable, local_share),
            "reserve()",
        )
        late = self._late = max(at_most, leased)
        self._pairs = {dimension: _limit(dimension, limit) for dimension, limit in dimensions.items()}
        _check_alike(client_or_url, name, self._pairs)
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
        self._session = StoreSession(client_or_url, f"aiorate:{name}", self._node, self._booked.pool, terms)
        if shared is not None:
            self._session.shared()
        _named[_identity(client_or_url), name] = self

    @property
    def limits(self) -> dict[str, tuple[Rate, int | None]]:
        """Rate and burst of each dimension; none once it is closed, or its event loop is."""
        loop = self._node.loop
        return {} if self._node.closed or (loop is not None and loop.closed) else self._pairs

    def _scheduler(self, limits: dict[str, Limits]) -> Dimensions:
        self._booked = BookedDimensions(self._pairs, self._late)
        return self._booked

    @property
    def key(self) -> str:
        """The key in the store."""
        return self._session.key

    async def _enter(self, amounts: Amounts, limit: int | None, decide: Decide | None = None) -> tuple[int, Taken]:
        """As `Budget._enter`. A ``limit`` of 0, or shorter than an answer of the store takes, asks the store once."""
        if not self._asks_once(limit):
            return await super()._enter(amounts, limit, decide)
        once = AskOnce(self._node, self._session.once, limit or 0, "reserve")
        try:
            return await super()._enter(amounts, None, once.decide)
        finally:
            once.forget()

    def _enter_blocking(self, amounts: Amounts, limit: int | None, decide: Decide | None = None) -> tuple[int, Taken]:
        """As `Budget._enter_blocking`. A short ``limit`` is as in `_enter`."""
        if not self._asks_once(limit):
            return super()._enter_blocking(amounts, limit, decide)
        once = AskOnce(self._node, self._session.once, limit or 0, "reserve")
        try:
            return super()._enter_blocking(amounts, None, once.decide)
        finally:
            once.forget()

    def _asks_once(self, limit: int | None) -> bool:
        return limit is not None and (not limit or limit < self._session.answer_ns) and not above_on_demand(self._node)

    def resume(self) -> None:
        """End a pause, for all processes."""
        super().resume()

    async def aclose(self) -> None:
        """Close the budget, and give back to the store what it had booked. Callers in the queue get `LimiterClosed`."""
        await super().aclose()
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


_named: WeakValueDictionary[tuple[object, str], RedisBudget] = WeakValueDictionary()
"""Of each client or URL and each name, the budget made last in this process."""
