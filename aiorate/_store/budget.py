"""RedisBudget: a budget of several dimensions for many processes. It is a Budget whose permits a store books."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING
from urllib.parse import quote

from aiorate._budget import Budget, check_names
from aiorate._options import check_scope
from aiorate._rate import NS_PER_SECOND
from aiorate._schedulers.amounts import Amounts
from aiorate._schedulers.dimensions import Dimensions
from aiorate._schedulers.interface import Scheduler, check_window
from aiorate._store.address import check_source
from aiorate._store.options import check_name, read_limit, terms_of
from aiorate._store.pool import Pool
from aiorate._store.session import StoreSession
from aiorate._store.slots import Part, check_memory

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, NoReturn

    from aiorate._events import Event, Waited
    from aiorate._loops.loop import Clock
    from aiorate._options import Limits
    from aiorate._rate import Duration, Number, Rate
    from aiorate._schedulers.amounts import Permits
    from aiorate._schedulers.token_bucket import TokenBucket
    from aiorate._tree.limit import Taken


class _Dimension(Scheduler):
    """One dimension of a budget in a store, as its own process knows it: its rate, and its burst, or None for a rate without one.

    It grants everything, because the pool grants nothing that was not booked.
    """

    __slots__ = ("burst", "late", "rate")
    rate: Rate
    books_since: bool = False

    def __init__(self, rate: Rate, burst: int | None, late: int) -> None:
        self.rate, self.burst, self.late = rate, burst, late
        self._receipts: bool = True

    @property
    def max_permits(self) -> int | None:  # type: ignore[override]
        """The burst; None for a rate: an amount of any size is granted, and those after it wait."""
        return self.burst

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        return now

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        return now

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Nothing was taken here."""

    def charge(self, permits: int, now: int) -> None:
        """Nothing is counted here."""

    def set_rate(self, rate: Rate, now: int) -> NoReturn:
        """Refused: other processes go by the same rate."""
        raise RuntimeError("set_rate(): a budget has a rate for each dimension.")

    def lag(self, now: int) -> int:
        return 0

    def bound(self, window: int, largest: int = 1) -> int | None:
        """What all processes together reserve at most, less what comes back: the burst, or ``largest``, and rate times window."""
        check_window(window, largest)
        most = largest if self.burst is None else self.burst
        return most + max(self.rate.permits_in(window + self.late), self.rate.permits_in(window) + (largest + 1) // 2)

    def available(self, now: int) -> int:
        return 0 if self.burst is None else self.burst

    def __repr__(self) -> str:
        return str(self.rate) if self.burst is None else f"{self.rate} burst {self.burst}"


class Booked(Dimensions):
    """The dimensions of a budget in a store: what servers said of their quotas, which this process keeps, and the pool."""

    __slots__ = ("pool",)

    def __init__(self, limits: dict[str, tuple[Rate, int | None]], late: int, pool: type[Pool] = Pool) -> None:
        super().__init__({name: _Dimension(rate, burst, late) for name, (rate, burst) in limits.items()})
        self.pool: Pool = pool([Part(rate, 1 if burst is None else burst) for rate, burst in limits.values()], False, late)

    def take(self, permits: Permits, now: int, since: int | None = None) -> int:
        at = super().peek(permits, now)
        if at > now:
            return at
        at = self.pool.take(permits, now, since)
        if at <= now:
            self._take(permits, now, since)
        elif isinstance(permits, Amounts):
            permits.waited_for = self.names[self.pool.waits_for]
        return at

    def peek(self, permits: Permits, now: int, ahead: Permits = 0) -> int:
        at = super().peek(permits, now, ahead)
        return at if at > now else self.pool.peek(permits, now, ahead)

    def last(self, permits: Amounts, now: int) -> str | None:
        place = self.pool.last(permits, now)
        return super().last(permits, now) or (None if place is None else self.names[place])

    def give_back(self, permits: Permits, now: int, taken: int | None = None) -> None:
        super().give_back(permits, now, taken)
        self.pool.give_back(permits, now, taken)

    def correct(self, more: Amounts, now: int, taken: int) -> None:
        super().correct(more, now, taken)
        own = self.pool.need(more)
        if any(own):
            self.pool.correct(own, taken)

    def available_of(self, name: str, now: int) -> int:
        """How much of that dimension lies ready, as the store said last."""
        place = self.names.index(name)
        level, told = self.pool._standings(now)[place][0], self._permitted[place]
        return level if told is self.members[place] else min(level, told.available(now))

    def available(self, now: int) -> int:
        """The least of the dimensions'."""
        return min([self.available_of(name, now) for name in self.names])

    def _rested(self, now: int) -> bool:
        return super()._rested(now) and self.pool._rested(now)

    def shift(self, ns: int) -> None:
        super().shift(ns)
        self.pool.shift(ns)

    def reset(self, now: int) -> None:
        """Raises RuntimeError: the store knows of all grants, for all processes."""
        self.pool.reset(now)


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

    __slots__ = ("_booked", "_late", "_limits", "_session")

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
        kind = "budget:" + ",".join([quote(dimension) for dimension in dimensions])
        terms = terms_of("RedisBudget", kind, horizon, lease, slack, on_unavailable, local_share, grace, "reserve()")
        self._limits = {dimension: limit_of(f"RedisBudget({dimension})", limit) for dimension, limit in dimensions.items()}
        self._late = terms.late
        super().__init__(
            shared=shared,
            on_error=on_error,
            max_waiting=max_waiting,
            catch_up=Fraction(terms.late, NS_PER_SECOND),
            clock=clock,
            name=name,
            on_event=on_event,
            on_wait=on_wait,
            scope=scope,
            **dimensions,
        )
        terms = terms._replace(lease=0)
        self._session = StoreSession(client_or_url, f"aiorate:{name}", self._node, self._booked.pool, terms, self._refusals)
        if shared is not None:
            self._session.shared()

    def _scheduler(self, limits: dict[str, Limits]) -> Dimensions:
        self._booked = Booked(self._limits, self._late)
        return self._booked

    @property
    def key(self) -> str:
        """The key in the store."""
        return self._session.key

    async def _enter(self, amounts: Amounts, limit: int | None) -> tuple[int, Taken]:
        """As `Budget._enter`. A ``limit`` of 0, or shorter than an answer of the store takes, asks the store once."""
        if limit is None or not self._session.once.serves(limit):
            return await super()._enter(amounts, limit)
        return await self._session.once.take(amounts, limit)

    def _enter_blocking(self, amounts: Amounts, limit: int | None) -> tuple[int, Taken]:
        """As `Budget._enter_blocking`. A short ``limit`` is as in `_enter`."""
        if limit is None or not self._session.once.serves(limit):
            return super()._enter_blocking(amounts, limit)
        return self._session.once.take_blocking(amounts, limit)

    async def aclose(self) -> None:
        """Close the budget, and give back to the store what it had booked. Callers in the queue get `LimiterClosed`."""
        await super().aclose()
        await self._session.aclose()


def limit_of(place: str, limit: object) -> tuple[Rate, int | None]:
    """The rate of a dimension and its burst."""
    rate, burst = read_limit(
        place,
        limit,
        "a rate such as '500/min', or a TokenBucket",
        ": the store knows no other strategies. Of several limits, make each a dimension, such as requests='10/s',"
        " requests_of_a_minute='500/min', and reserve the same of both.",
    )
    check_memory(place, rate, burst or 1)
    return rate, burst
