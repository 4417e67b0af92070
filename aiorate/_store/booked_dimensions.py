"""BookedDimensions: the scheduler of a budget in a store, which books. Quotas of which servers told are kept by this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._schedulers.amounts import Amounts
from aiorate._schedulers.dimensions import Dimensions
from aiorate._schedulers.interface import Scheduler, check_window
from aiorate._store.pool import Pool
from aiorate._store.slots import Part

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from aiorate._rate import Rate
    from aiorate._schedulers.amounts import Permits

__all__ = ["BookedDimensions", "StoreDimension"]


class StoreDimension(Scheduler):
    """One dimension of a budget in a store, as its own process knows it: its rate, and its burst, or None for a rate without one.

    It grants everything, because the pool grants nothing that was not booked.
    """

    __slots__ = ("burst", "largest", "late", "rate")
    rate: Rate
    books_since: bool = False

    def __init__(self, rate: Rate, burst: int | None, late: int) -> None:
        self.rate = rate
        self.burst: int | None = burst
        self.late: int = late
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

    def reset(self, now: int) -> None:
        """Raises RuntimeError: the store knows of all grants, for all processes."""
        raise RuntimeError("reset(): other processes share this budget and remember it. Use another name.")

    def available(self, now: int) -> int:
        return 0 if self.burst is None else self.burst

    def _rested(self, now: int) -> bool:
        return True

    def __repr__(self) -> str:
        return str(self.rate) if self.burst is None else f"{self.rate} burst {self.burst}"


class BookedDimensions(Dimensions):
    """The dimensions of a budget in a store: what servers said of their quotas, which this process keeps, and the pool."""

    __slots__ = ("pool",)
    waited_for: int | None

    def __init__(self, limits: Sequence[tuple[Rate, int | None]], late: int) -> None:
        super().__init__([StoreDimension(rate, burst, late) for rate, burst in limits])
        self.pool: Pool = Pool([Part(rate, 1 if burst is None else burst) for rate, burst in limits], False, late)

    def take(self, permits: Permits, now: int, since: int | None = None) -> int:
        shares = self._shares(permits)
        at = self._due(shares, now)
        if at > now:
            return at
        at = self.pool.take(permits, now, since)
        if at > now:
            self.waited_for = self.pool.waits_for
            return at
        for part, amount in shares:
            part.take(amount, now, since)
        if isinstance(permits, Amounts):
            permits.waited_for = self.waited_for
        return at

    def peek(self, permits: Permits, now: int, ahead: Permits = 0) -> int:
        at = super().peek(permits, now, ahead)
        return at if at > now else self.pool.peek(permits, now, ahead)

    def give_back(self, permits: Permits, now: int, taken: int | None = None) -> None:
        super().give_back(permits, now, taken)
        self.pool.give_back(permits, now, taken)

    def correct(self, place: int, more: int, now: int, taken: int) -> None:
        super().correct(place, more, now, taken)
        if more:
            self.pool.correct([more if own == place else 0 for own in range(len(self.members))], taken)

    def charge(self, permits: Permits, now: int) -> None:
        super().charge(permits, now)
        self.pool.charge(permits, now)

    def last(self, permits: Permits, now: int) -> int | None:
        place = super().last(permits, now)
        return self.pool.last(permits, now) if place is None else place

    def available_of(self, place: int, now: int) -> int:
        """How much of that dimension lies ready, as the store said last."""
        level, told = self.pool.available_of(place, now), self.told.get(place)
        return level if told is None else min(level, told.available(now))

    def available(self, now: int) -> int:
        """The least of the dimensions'."""
        return min([self.available_of(place, now) for place in range(len(self.members))])

    def _rested(self, now: int) -> bool:
        return super()._rested(now) and self.pool._rested(now)

    def shift(self, ns: int) -> None:
        super().shift(ns)
        self.pool.shift(ns)

    def reset(self, now: int) -> None:
        """Raises RuntimeError: the store knows of all grants, for all processes."""
        self.pool.reset(now)
