"""Levels: when amounts of several dimensions are due, by GCRA. Exact, in whole ticks. Knows nothing of clocks, stores or waiters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._rate import ceil_div
from aiorate._schedulers.amounts import Amounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Rate
    from aiorate._schedulers.amounts import Permits

__all__ = ["Levels", "amounts_of"]


class Levels:
    """When amounts would be due, if nobody else took any: of each dimension, when it is full. Exact, in ticks."""

    __slots__ = ("_bursts", "_full", "_rates", "not_before")

    def __init__(self, rates: Sequence[Rate], bursts: Sequence[int], now: int | None = None) -> None:
        """They begin full, or at ``now`` with a single permit of each."""
        self._rates = tuple(rates)
        self._bursts = tuple(bursts)
        self._full: list[int | None] = [None] * len(self._rates)
        if now is not None:
            self._full = [now * rate.permits + (burst - 1) * rate.period_ns for rate, burst in zip(self._rates, self._bursts, strict=True)]
        self.not_before: int | None = None
        """The instant before which nothing is due; None: no such instant."""

    def follow(self, full: Sequence[int]) -> None:
        """Set the instants (ns) at which the dimensions are full."""
        self._full = [instant * rate.permits for instant, rate in zip(full, self._rates, strict=True)]

    def at(self, permits: Permits, now: int) -> int:
        """When the amounts are due: ``now`` if at once."""
        at = now if self.not_before is None else max(now, self.not_before)
        for place, amount in enumerate(amounts_of(permits, len(self._rates))):
            full = self._full[place]
            if amount and full is not None:
                rate, burst = self._rates[place], self._bursts[place]
                at = max(at, ceil_div(full - (burst - min(amount, burst)) * rate.period_ns, rate.permits))
        return at

    def last(self, permits: Permits, now: int) -> int | None:
        """The place of the dimension that is due last; None: all are due at ``now``."""
        dues = [
            self.at(Amounts(tuple(amount if place == own else 0 for place in range(len(self._rates)))), now)
            for own, amount in enumerate(amounts_of(permits, len(self._rates)))
        ]
        latest = max(dues)
        return dues.index(latest) if latest > min(dues) or (latest > now and self.not_before is None) else None

    def spend(self, permits: Permits, now: int) -> None:
        """Take them, due or not."""
        for place, amount in enumerate(amounts_of(permits, len(self._rates))):
            if amount:
                rate, full = self._rates[place], self._full[place]
                begin = now * rate.permits
                self._full[place] = (begin if full is None or full < begin else full) + amount * rate.period_ns

    def level(self, place: int, now: int) -> int:
        """How much of a dimension lies ready."""
        rate, burst, full = self._rates[place], self._bursts[place], self._full[place]
        lacks = 0 if full is None else max(ceil_div(full - now * rate.permits, rate.period_ns), 0)
        return max(burst - lacks, 0)

    def shift(self, ns: int) -> None:
        """Move all instants ``ns`` earlier."""
        self._full = [None if full is None else full - ns * rate.permits for full, rate in zip(self._full, self._rates, strict=True)]
        if self.not_before is not None:
            self.not_before -= ns


def amounts_of(permits: Permits, count: int) -> tuple[int, ...]:
    """The amounts of the dimensions in the store. A plain number is that many requests of 1 of each."""
    return permits.of[:count] if isinstance(permits, Amounts) else (permits,) * count
