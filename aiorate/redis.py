"""One limit for many processes, through Redis or Valkey.

>>> limiter = RedisLimiter("redis://127.0.0.1:6379/0", "search", "100/s")
>>> await limiter.acquire()       # or: async with limiter: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from aiorate._limiters.limiter import Limiter
from aiorate._rate import ns_to_seconds
from aiorate._store.budget import StoreBudget
from aiorate._store.options import limit_of, limits_of
from aiorate._store.pool import Pool
from aiorate._store.session import KEY, StoreSession

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Literal

    from aiorate._events import Event, Waited
    from aiorate._limiters.budget import Budget
    from aiorate._loops.loop import Clock
    from aiorate._rate import Duration, Number, Rate
    from aiorate._schedulers.token_bucket import TokenBucket
    from aiorate._store.options import OneLimit

__all__ = ["RedisBudget", "RedisLimiter"]


class RedisLimiter(Limiter):
    """One limit for all processes that use the same name, through Redis or Valkey.

    It has all the calls of a `Limiter`. With ``max_wait=0``, or less than an answer of the store takes, the store is asked once, and grants
    what is due now. `pause`, `observe` and `resume` reach all processes. `aclose` gives back to the store what was booked; synchronous code
    writes ``asyncio.run(limiter.aclose())``.

    The store assigns time slots by its own clock: with rate R and burst b, all processes together are granted at most
    ``b + R * (w + max(slack, lease, 0.5 / R))`` in any window of w seconds, plus as much as answers take longer to one process than to
    another. If requests are for several permits, add the largest one per process.

    Args:
        client_or_url: A URL such as ``redis://localhost``, or an asyncio client of redis-py or valkey-py, which is never closed. It
            lends its settings to a connection of aiorate's own; only that of a cluster is used itself.
        name: Processes with the same name share the limit. The key in the store is ``aiorate:`` and the name.
        rate: A rate, ``TokenBucket("10/s", burst=20)``, a list of these, or a ``CalendarWindow("1000/day", "Europe/Berlin")`` alone.
        burst: How many permits at once, for a rate; 1 by default.
        lease: How many seconds ahead a process books what it is going to use. Callers then hardly ever wait for the store, and
            `try_acquire` works, which raises RuntimeError otherwise. 0 by default.
        horizon: How many seconds ahead all processes together aim to book.
        slack: How many seconds late a slot may be used, 0.001 or more.
        on_unavailable: What happens while the store is down: ``"raise"`` `EngineUnavailable`, ``"wait"``, ``"local"`` for a limit of this
            process alone, or ``"open"`` for no limit. A store that refuses, because of a wrong password for example, always raises.
        local_share: With ``"local"``, this process's share of the rate, above 0 and at most 1.
        grace: How many seconds an outage may take before ``on_unavailable`` applies.
        scope: ``"process"`` for threads, synchronous code, trio and several event loops. Not for clusters.

    The other arguments are those of `Limiter`. Durations may be timedeltas.
    """

    __slots__ = ()

    def __init__(
        self,
        client_or_url: Any,
        name: str,
        rate: OneLimit | Sequence[OneLimit],
        *,
        burst: int | None = None,
        lease: Duration = 0.0,
        horizon: Duration = 0.02,
        slack: Duration = 0.005,
        on_unavailable: Literal["raise", "wait", "local", "open"] = "raise",
        local_share: Number | None = None,
        grace: Duration = 1.0,
        max_waiting: int | None = None,
        precise: bool = False,
        clock: Clock | None = None,
        max_concurrency: int | None = None,
        on_event: Callable[[Event], object] | None = None,
        on_wait: Callable[[Waited], object] | None = None,
        scope: Literal["loop", "process"] = "loop",
    ) -> None:
        limits = limits_of("RedisLimiter", rate, burst, lease)
        kind = "limiter" if limits[0][2] is None else "window"
        durations: dict[str, Any] = {"horizon": horizon, "lease": lease, "slack": slack, "grace": grace}
        session = StoreSession("RedisLimiter", kind, client_or_url, name, scope, on_unavailable, local_share, **durations)
        pool = Pool(limits, kind == "limiter", session.late)
        super().__init__(
            pool,
            catch_up=ns_to_seconds(session.late),
            max_waiting=max_waiting,
            precise=precise,
            clock=clock,
            name=name,
            max_concurrency=max_concurrency,
            on_event=on_event,
            on_wait=on_wait,
            scope=scope,
        )
        session.begin(self._node, pool)

    @property
    def key(self) -> str:
        """The key in the store."""
        return f"{KEY}{self._node.name}"


class RedisBudget(StoreBudget):
    """One budget for all processes that use the same name, through Redis or Valkey.

    It has all the calls of a `Budget`. A dimension is a rate or a `TokenBucket`. Of a rate nothing is saved up: an amount of any size is
    granted, and later ones wait until it has been paid for. A bucket starts full, and larger amounts are lowered to its burst.

    The store books reservations by its own clock. With the rate R of a dimension, the largest amount n and the burst b (of a rate: n), all
    processes together reserve at most ``b + R * (w + max(slack, lease, 0.5 * n / R))`` in any window of w seconds, and n more per process,
    apart from what comes back.

    Args:
        client_or_url: See `RedisLimiter`.
        name: Processes with the same name share the budget. The key in the store is ``aiorate:`` and the name.
        shared: A Budget or RedisBudget to take from as well, by the names of the dimensions.
        lease: How many seconds late a booking may be used; the longer of this and ``slack`` counts.
        horizon: How many seconds ahead all processes together aim to book at most.
        slack: How many seconds late a booking may be used, 0.001 or more.
        on_unavailable: See `RedisLimiter`; the same for ``local_share``, ``grace`` and ``scope``.
        **dimensions: The limits, by name: rates or buckets.

    The other arguments are those of `Budget`. Durations may be timedeltas.
    """

    __slots__ = ()

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
        kind = "budget:" + ",".join(map(quote, dimensions))
        durations: dict[str, Any] = {"horizon": horizon, "lease": lease, "slack": slack, "grace": grace}
        session = StoreSession("RedisBudget", kind, client_or_url, name, scope, on_unavailable, local_share, **durations)
        super().__init__(
            session.late,
            {each: limit_of(f"RedisBudget({each})", limit) for each, limit in dimensions.items()},
            shared=shared,
            on_error=on_error,
            max_waiting=max_waiting,
            clock=clock,
            name=name,
            on_event=on_event,
            on_wait=on_wait,
            scope=scope,
        )
        session.begin(self._node, self._pool)

    @property
    def key(self) -> str:
        """The key in the store."""
        return f"{KEY}{self._node.name}"
