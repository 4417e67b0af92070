"""One limit for all processes of one machine, with nothing to install: through a small file.

>>> limiter = FileLimiter("/var/tmp/search.limits", "100/s")
>>> await limiter.acquire()       # or: async with limiter: ...
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Generic, TypeVar

import aiorate._tree.threads  # noqa: F401  # now: if a thread imported it during a fork, the child would wait for that forever
from aiorate._limiters.base import Base
from aiorate._limiters.budget import Budget
from aiorate._limiters.limiter import Limiter
from aiorate._loops.table import running_loop
from aiorate._rate import duration_to_ns, ns_to_seconds
from aiorate._schedulers.amounts import count_of
from aiorate._store.budget import StoreBudget
from aiorate._store.file import Record
from aiorate._store.file_session import SLACK_NS, FileSession
from aiorate._store.options import check_name, limit_of, limits_of
from aiorate._store.pool import Pool

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any, Literal

    from aiorate._events import Event, Waited
    from aiorate._limiters.budget import Lease
    from aiorate._limiters.statistics import Statistics
    from aiorate._loops.loop import Clock
    from aiorate._rate import Duration, Number, Rate
    from aiorate._schedulers.token_bucket import TokenBucket
    from aiorate._spec import RateSpec
    from aiorate._store.options import OneLimit

    Scope = Literal["loop", "process"]

__all__ = ["FileBudget", "FileLimiter"]

D = TypeVar("D", bound=Base)


class _Desks(Generic[D]):
    """Two desks, so that only those who need a lock pay for it. The first serves the thread that called first, with its event loops. The
    second serves all other threads and all who block. Attributes are those of the caller's desk.
    """

    _may_block = True

    def _open(self, desk: Callable[[Scope], D], scope: Scope) -> None:
        self._make = desk
        self._desks: dict[bool, D] = {False: desk(scope)}  # True: the second, once it is needed. setdefault() is one step for all threads
        self._thread: dict[None, int] = {}  # that of the first desk; empty until somebody calls

    def _desk(self, blocks: bool = False) -> D:
        me, first = get_ident(), self._desks[False]
        if first._node.tree.threads or (not blocks and self._thread.setdefault(None, me) == me):
            return first
        if first._node.above is not None:
            raise RuntimeError("with a shared limit it is for one event loop. For threads, create all of them with scope='process'.")
        return self._desks.get(True) or self._desks.setdefault(True, self._make("process"))

    def _each(self, call: Callable[[D], object]) -> None:
        """Call it with all desks, in a desk's own event loop if that runs."""
        here = self._desk()
        for desk in [*self._desks.values()]:
            loop = desk._node.tree.loop
            if desk is here or loop is None or desk._node.tree.threads or not loop.running:
                call(desk)
            else:
                loop.post(partial(call, desk))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if "_thread" not in vars(self):  # it is being made
                raise AttributeError(name)
            return getattr(self._desk(), name)

    def _share(self, shared: Any, place: str = "") -> None:
        self._desk()._share(shared)

    def _totals(self) -> Counter[tuple[str, str | None]]:
        total: Counter[tuple[str, str | None]] = Counter()
        for desk in [*self._desks.values()]:
            total.update(desk._totals())
        return total

    def statistics(self) -> Statistics:
        """Return a snapshot of the counters, those of this process. The lengths of waits are those of the event loop that calls or,
        elsewhere, of all other threads; ``available`` is what all processes have."""
        found, total = self._desk().statistics(), self._totals()
        nodes, names = [desk._node for desk in [*self._desks.values()]], ("cancelled", "refunded", "charged", "skipped")
        granted = sum([count_of(node.granted - node.counters.given_back) for node in nodes])
        counts: dict[str, Any] = {name: sum([getattr(node.counters, name) for node in nodes]) for name in names}
        return replace(found, granted=granted, refused=total["refusals", None], waiting=total["waiting", None], **counts)

    def watch(self, on_wait: Callable[[Waited], object]) -> Callable[[], None]:
        """Call a function after each wait, with a `Waited`; see `Limiter.watch`. Returns a function that ends the calls."""
        if self._desks[False]._node.above is None:
            self._desk(blocks=True)
        ends = ExitStack()
        for desk in self._desks.values():
            ends.callback(desk.watch(on_wait))
        return ends.close

    def _close(self) -> None:
        self._each(lambda desk: desk._close())


class FileLimiter(_Desks[Limiter], Limiter):
    """One limit for all processes of one machine that use the same file and name.

    It has all the calls of a `Limiter`, and they work everywhere: in any event loop, with asyncio or trio, and in any thread, where
    `acquire_blocking`, ``with limiter:`` and decorated plain functions block. `pause`, `observe` and `resume` reach all processes.

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
        max_waiting: As for a `Limiter`. This and the next one hold for the first event loop, and once more for all other threads.
        max_concurrency: As for a `Limiter`. Each process has so many places.
        scope: ``"process"`` for keys of a `KeyedLimiter` with that scope, what these share, and calls in handlers of ``signal.signal()``.
            Otherwise there is no need.

    The other arguments are those of `Limiter`. Durations are in seconds, or timedeltas.

    Raises:
        EngineUnavailable: Not here, but by all calls that need a permit: the file cannot be used, for example because the disk is full, or
            a stopped process has had it locked for a second.
        RuntimeError: There are no locks of files, as on Windows.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rate: OneLimit | Sequence[OneLimit],
        *,
        name: str = "",
        burst: int | None = None,
        lease: Duration = 0.0,
        max_waiting: int | None = None,
        max_concurrency: int | None = None,
        precise: bool = False,
        clock: Clock | None = None,
        on_event: Callable[[Event], object] | None = None,
        on_wait: Callable[[Waited], object] | None = None,
        scope: Scope = "loop",
    ) -> None:
        check_name("FileLimiter", "-" if name == "" else name)
        ahead = duration_to_ns(lease, "FileLimiter(lease)")
        limits, late = limits_of("FileLimiter", rate, burst, ahead), max(SLACK_NS, ahead)
        unit = limits[0][2] is None
        record = Record(path, name, "limiter" if unit else "window", len(limits))

        def desk(scope: Scope) -> Limiter:
            limiter = Limiter(
                pool := Pool(limits, unit, late),
                catch_up=ns_to_seconds(late),
                max_waiting=max_waiting,
                max_concurrency=max_concurrency,
                precise=precise,
                scope=scope,
                clock=clock,
                name=name or None,
                on_event=on_event,
                on_wait=on_wait,
            )
            FileSession(record, limiter._node, pool, ahead)
            return limiter

        self._open(desk, scope)

    def acquire(  # pyright: ignore[reportIncompatibleMethodOverride]  # it returns a coroutine: one await less
        self, permits: int = 1, *, max_wait: Duration | None = None
    ) -> Coroutine[Any, Any, float]:
        """Wait until it is your turn, and take the permits; see `Limiter.acquire`."""
        return self._desk().acquire(permits, max_wait=max_wait)

    def try_acquire(self, permits: int = 1) -> bool:
        """Take the permits if they are available right now, which takes some microseconds; see `Limiter.try_acquire`."""
        return self._desk().try_acquire(permits)

    def acquire_blocking(self, permits: int = 1, *, max_wait: Duration | None = None) -> float:
        """Wait in synchronous code, in any thread; see `Limiter.acquire_blocking`."""
        return self._desk(blocks=True).acquire_blocking(permits, max_wait=max_wait)

    def _enter_blocking(self, permits: int) -> float:
        return self._desk(blocks=True)._enter_blocking(permits)

    def _leave(self) -> None:
        self._desk(blocks=running_loop() is None)._leave()

    def set_rate(self, rate: Rate | str | Number, *, member: int | None = None) -> None:
        """Change the rate by which this process books. Do so in all processes."""
        self._each(lambda desk: desk.set_rate(rate, member=member))

    def apply(self, spec: RateSpec | str) -> None:
        """Apply a `RateSpec`, in this process; see `Limiter.apply`."""
        self._each(lambda desk: desk.apply(spec))


class FileBudget(_Desks[Budget], Budget):
    """One budget for all processes of one machine that use the same file and name.

    It has all the calls of a `Budget`, in any event loop and any thread. A dimension is a rate or a `TokenBucket`. Of a rate nothing is
    saved up: an amount of any size is granted, and later ones wait until it has been paid for. A bucket starts full, and larger amounts are
    lowered to its burst.

    With the rate R of a dimension, the largest amount n and the burst b (of a rate: n), all processes together reserve at most
    ``b + R * (w + max(0.01, lease, 0.5 * n / R))`` in any window of w seconds, and n more per process, apart from what comes
    back, and with another 25 ms if reservations are settled for less.

    Args:
        path: See `FileLimiter`; the same for ``name`` and ``scope``.
        shared: A Budget or FileBudget to take from as well, by the names of the dimensions.
        lease: How many seconds late a booking may be used; 0.01 at least.
        **dimensions: At most 8 limits, by name: rates or buckets.

    The other arguments are those of `Budget`. Durations are in seconds, or timedeltas.
    """

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
        scope: Scope = "loop",
        **dimensions: TokenBucket | Rate | str | Number,
    ) -> None:
        check_name("FileBudget", "-" if name == "" else name)
        late = max(SLACK_NS, duration_to_ns(lease, "FileBudget(lease)"))
        limits = {each: limit_of(f"FileBudget({each})", limit) for each, limit in dimensions.items()}
        record = Record(path, name, "budget:" + ",".join(limits), len(limits))

        def desk(scope: Scope) -> Budget:
            budget = StoreBudget(
                late,
                limits,
                shared=shared._desk(scope == "process") if isinstance(shared, FileBudget) else shared,
                on_error=on_error,
                max_waiting=max_waiting,
                clock=clock,
                name=name or None,
                on_event=on_event,
                on_wait=on_wait,
                scope=scope,
            )
            FileSession(record, budget._node, budget._pool, 0)
            return budget

        self._open(desk, scope)

    def reserve(self, *, max_wait: Duration | None = None, on_error: Literal["keep", "refund"] | None = None, **amounts: int) -> Lease:
        """Return a lease of these amounts, for ``async with``, or ``with`` where no event loop runs; see `Budget.reserve`.

        Entering it raises EngineUnavailable if the file cannot be used.
        """
        return self._desk(blocks=running_loop() is None).reserve(max_wait=max_wait, on_error=on_error, **amounts)
