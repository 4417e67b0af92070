"""A budget whose permits a store books."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorate._limiters.budget import Budget
from aiorate._rate import ns_to_seconds
from aiorate._schedulers.amounts import Amounts
from aiorate._schedulers.dimensions import Dimensions
from aiorate._store.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiorate._schedulers.amounts import Permits
    from aiorate._store.slots import Limited


class _Booked(Dimensions):
    """The dimensions, with what servers said of their quotas, which this process keeps, and the pool."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool, names: Iterable[str]) -> None:
        self.pool: Pool = pool
        super().__init__(dict(zip(names, pool.parts, strict=True)))

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

    def available(self, now: int) -> int:
        return min([self.available_of(name, now) for name in self.names])

    def available_of(self, name: str, now: int) -> int:
        return 0 if self.pool.outage in ("raise", "wait") else super().available_of(name, now)

    def _rested(self, now: int) -> bool:
        return super()._rested(now) and self.pool._rested(now)


class StoreBudget(Budget):
    """A budget whose slots are used up to ``late`` ns late. A burst of None is that of a rate without one."""

    __slots__ = ("_late", "_pool")
    _pool: Pool

    def __init__(self, late: int, limits: dict[str, Limited], **options: Any) -> None:
        self._late = late
        super().__init__(catch_up=ns_to_seconds(late), **options, **limits)  # type: ignore[arg-type]  # as _scheduler() has them

    def _scheduler(self, limits: dict[str, Any]) -> Dimensions:
        self._pool = Pool([*limits.values()], False, self._late)
        return _Booked(self._pool, limits)


StoreBudget.__name__ = "FileBudget"  # for errors. A RedisBudget has its own name
