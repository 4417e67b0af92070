"""A budget whose permits a store books, and its dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorate._limiters.budget import Budget
from aiorate._rate import ns_to_seconds
from aiorate._schedulers.amounts import Amounts
from aiorate._schedulers.dimensions import Dimensions
from aiorate._schedulers.interface import Scheduler
from aiorate._store.pool import Pool
from aiorate._store.slots import Part

if TYPE_CHECKING:
    from aiorate._rate import Rate
    from aiorate._schedulers.amounts import Permits
    from aiorate._schedulers.interface import Standing


class _Dimension(Scheduler):
    """One dimension of a budget in a store: its rate, and its burst, or None for a rate without one.

    It grants everything, because the pool grants only what was booked.
    """

    __slots__ = ("_place", "_pool", "max_permits", "rate")
    books_since: bool = False

    def __init__(self, pool: Pool, place: int, rate: Rate, burst: int | None) -> None:
        self._pool, self._place = pool, place
        self.rate, self.max_permits = rate, burst

    def take(self, permits: int, now: int, *_: object, **__: object) -> int:
        return now

    def _nothing(self, *_: object, **__: object) -> None:
        """The pool counts, and other processes have the same rate."""

    peek = take
    give_back = charge = set_rate = bound = _nothing

    def available(self, now: int) -> int:
        return self._standings(now)[0][2]

    def _standings(self, now: int) -> list[Standing]:
        return [self._pool._standings(now)[self._place]]

    def _rested(self, now: int) -> bool:
        return self._pool._rested(now)

    def __repr__(self) -> str:
        return str(Part(self.rate, self.max_permits or 1))


class _Booked(Dimensions):
    """The dimensions, with what servers said of their quotas, which this process keeps, and the pool."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool, limits: dict[str, tuple[Rate, int | None]]) -> None:
        self.pool: Pool = pool
        super().__init__({name: _Dimension(pool, place, *limits[name]) for place, name in enumerate(limits)})

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

    def give_back(self, permits: Permits, now: int, taken: int | None = None) -> None:
        super().give_back(permits, now, taken)
        self.pool.give_back(permits, now, taken)

    def correct(self, more: Amounts, now: int, taken: int) -> None:
        super().correct(more, now, taken)
        own = self.pool.need(more)
        if any(own):
            self.pool.correct(own, taken)

    def _shift(self, ns: int) -> None:
        super()._shift(ns)
        self.pool._shift(ns)


class StoreBudget(Budget):
    """A budget whose slots are used up to ``late`` ns late. A burst of None is that of a rate without one."""

    __slots__ = ("_late", "_pool")
    _pool: Pool

    def __init__(self, late: int, limits: dict[str, tuple[Rate, int | None]], **options: Any) -> None:
        self._late = late
        super().__init__(catch_up=ns_to_seconds(late), **options, **limits)  # type: ignore[arg-type]  # as _scheduler() has them

    def _scheduler(self, limits: dict[str, Any]) -> Dimensions:
        self._pool = Pool([Part(rate, burst or 1) for rate, burst in limits.values()], False, self._late)
        return _Booked(self._pool, limits)


StoreBudget.__name__ = "FileBudget"  # for errors. A RedisBudget has its own name
