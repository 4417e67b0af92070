"""One limit for all processes of one machine, with nothing to install: through a small file.

>>> limiter = FileLimiter("/var/tmp/search.limits", "100/s")
>>> await limiter.acquire()       # or: async with limiter: ...
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from aiorate._budget import Budget, check_names
from aiorate._limiter import Limiter
from aiorate._rate import NS_PER_SECOND, duration_to_ns
from aiorate._store.budget import Booked, limit_of
from aiorate._store.file import file_of
from aiorate._store.file_session import SLACK_NS, FilePool, FileSession
from aiorate._store.options import check_name, parts_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from typing import Any, Literal

    from aiorate._events import Event, Waited
    from aiorate._loops.loop import Clock
    from aiorate._rate import Duration, Number, Rate
    from aiorate._schedulers.dimensions import Dimensions
    from aiorate._schedulers.token_bucket import TokenBucket
    from aiorate._statistics import Statistics
    from aiorate._store.file import StoreFile
    from aiorate._store.options import OneLimit

__all__ = ["FileBudget", "FileLimiter"]


class FileLimiter(Limiter):
    """One limit for all processes of one machine that use the same file and name.

    It has all the calls of a `Limiter`. `pause`, `observe` and `resume` reach all processes.

    With rate R and burst b, all processes together are granted at most ``b + R * (w + max(0.01, lease, 0.5 / R))`` in any window of w
    seconds. If requests are for several permits, add the largest one per process.

    Args:
        path: A file on a local disk, which is made when it is first needed, for this user only. Many limits may use the same one. Remove it
            to forget all of them.
        rate: A rate, ``TokenBucket("10/s", burst=20)``, a list of at most 8 of these, or a ``CalendarWindow("1000/day", "Europe/Berlin")``
            alone. All processes have to give the same.
        name: Limits of the same name in a file are one limit.
        burst: How many permits at once, for a rate; 1 by default.
        lease: How many seconds ahead a process books what it is going to use, which makes a permit cheaper. 0 by default.

    The other arguments are those of `Limiter`. Durations are in seconds, or timedeltas.

    Raises:
        EngineUnavailable: Not here, but by all calls that need a permit: the file cannot be used, for example because the disk is full, or
            a stopped process has had it locked for a second.
        RuntimeError: There are no locks of files, as on Windows.
    """

    __slots__ = ("_session",)
    _ANY_SCOPE = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        rate: OneLimit | Sequence[OneLimit],
        *,
        name: str = "",
        burst: int | Sequence[int] | None = None,
        lease: Duration = 0.0,
        max_waiting: int | None = None,
        max_concurrency: int | None = None,
        precise: bool = False,
        clock: Clock | None = None,
        on_event: Callable[[Event], object] | None = None,
        on_wait: Callable[[Waited], object] | None = None,
        scope: Literal["loop", "process"] = "loop",
    ) -> None:
        file, ahead, late = _opened("FileLimiter", path, name, lease)
        parts = parts_of("FileLimiter", rate, burst)
        kind = "limiter" if parts[0].calendar is None else "window"
        if kind == "window" and ahead:
            raise ValueError("FileLimiter(lease): a CalendarWindow has no lease. Its permits are taken one request at a time.")
        pool = FilePool(parts, kind == "limiter", late)
        super().__init__(
            pool,
            catch_up=Fraction(late, NS_PER_SECOND),
            max_waiting=max_waiting,
            max_concurrency=max_concurrency,
            precise=precise,
            scope=scope,
            clock=clock,
            name=name or None,
            on_event=on_event,
            on_wait=on_wait,
        )
        self._session = FileSession(file, name, kind, self._node, pool, ahead)

    def delay(self, permits: int = 1) -> float:
        """Return how many seconds a request made now would have to wait; see `Limiter.delay`. Nothing is booked."""
        self._session.look()
        return super().delay(permits)

    def statistics(self) -> Statistics:
        """Return a snapshot of the counters, those of this process. ``available`` is what all processes have."""
        self._session.look()
        return super().statistics()

    def reset(self) -> None:
        """Raises RuntimeError: other processes share the limit and remember it. Use another name, or remove the file."""
        self._node.scheduler.reset(0)

    async def aclose(self) -> None:
        """Close the limiter, and give back what was booked ahead. Callers in the queue get `LimiterClosed`."""
        await super().aclose()
        self._session.end()


class FileBudget(Budget):
    """One budget for all processes of one machine that use the same file and name.

    It has all the calls of a `Budget`. A dimension is a rate or a `TokenBucket`. Of a rate nothing is saved up: an amount of any size is
    granted, and later ones wait until it has been paid for. A bucket starts full, and larger amounts are lowered to its burst.

    With the rate R of a dimension, the largest amount n and the burst b (of a rate: n), all processes together reserve at most
    ``b + R * (w + max(0.01, lease, 0.5 * n / R))`` in any window of w seconds, apart from what comes back.

    Args:
        path: See `FileLimiter`; the same for ``name``.
        shared: A Budget or FileBudget to take from as well, by the names of the dimensions.
        lease: How many seconds late a booking may be used; 0.01 at least.
        **dimensions: At most 8 limits, by name: rates or buckets.

    The other arguments are those of `Budget`. Durations are in seconds, or timedeltas.
    """

    __slots__ = ("_booked", "_late", "_session")

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str = "",
        shared: Budget | None = None,
        lease: Duration = 0.0,
        on_error: Literal["keep", "refund"] = "keep",
        max_waiting: int | None = None,
        clock: Clock | None = None,
        on_event: Callable[[Event], object] | None = None,
        on_wait: Callable[[Waited], object] | None = None,
        scope: Literal["loop", "process"] = "loop",
        **dimensions: TokenBucket | Rate | str | Number,
    ) -> None:
        file, _, self._late = _opened("FileBudget", path, name, lease)
        check_names("FileBudget", dimensions)
        super().__init__(
            shared=shared,
            on_error=on_error,
            max_waiting=max_waiting,
            catch_up=Fraction(self._late, NS_PER_SECOND),
            clock=clock,
            name=name or None,
            on_event=on_event,
            on_wait=on_wait,
            scope=scope,
            **dimensions,
        )
        self._session = FileSession(file, name, "budget:" + ",".join(dimensions), self._node, self._booked.pool, 0)
        if shared is not None:
            self._session.shared()

    def _scheduler(self, limits: dict[str, Any]) -> Dimensions:
        self._booked = Booked({name: limit_of(f"FileBudget({name})", limit) for name, limit in limits.items()}, self._late, FilePool)
        return self._booked

    def available(self, dimension: str) -> int:
        """Return how much of a dimension is available now, to all processes; see `Budget.available`."""
        self._session.look()
        return super().available(dimension)

    def delay(self, **amounts: int) -> float:
        """Return how many seconds a reservation of these amounts would have to wait now; see `Budget.delay`."""
        self._session.look()
        return super().delay(**amounts)

    def statistics(self) -> Statistics:
        """Return a snapshot of the counters, those of this process. ``available`` is what all processes have."""
        self._session.look()
        return super().statistics()

    async def aclose(self) -> None:
        """Close the budget, and give back what was booked ahead. Callers in the queue get `LimiterClosed`."""
        await super().aclose()
        self._session.end()


def _opened(call: str, path: str | os.PathLike[str], name: str, lease: Duration) -> tuple[StoreFile, int, int]:
    """The file; how many ns ahead it is booked, and how late a slot may be used."""
    if name != "":
        check_name(call, name)
    ahead = duration_to_ns(lease, f"{call}(lease)")
    return file_of(path), ahead, max(SLACK_NS, ahead)
