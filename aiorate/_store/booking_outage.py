"""An outage of the store as a budget sees it: this process's share, and what must be charged, are amounts of each dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._rate import Rate
from aiorate._schedulers.amounts import Amounts
from aiorate._schedulers.levels import Levels
from aiorate._store.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from aiorate._schedulers.amounts import Permits
    from aiorate._store.booking_ledger import BookingLedger

__all__ = ["BookingOutage"]


class BookingOutage(Outage):
    """``rates`` and ``bursts`` are those of the store; this process has ``share`` of them for the policy ``"local"``."""

    call = "reserve()"
    __slots__ = ("_ledger", "_part")

    def __init__(
        self, policy: str, grace: int, rates: Sequence[Rate], bursts: Sequence[int], share: Fraction, ledger: BookingLedger
    ) -> None:
        own = [Rate.exactly(rate.permits * share.numerator, rate.period_ns * share.denominator) for rate in rates]
        super().__init__(policy, grace, own, [max(1, burst * share.numerator // share.denominator) for burst in bursts], share)
        self._part: Fraction = share
        self._ledger: BookingLedger = ledger

    def local(self, now: int) -> Levels:
        return Levels(self._rates, self._bursts, now)

    def owed(self, spent: Permits, unused: float) -> Permits:
        """The amounts that were granted here, less this process's share of what nobody used meanwhile, by the store's count."""
        if not isinstance(spent, Amounts):  # nothing was granted
            return 0
        parts = [int(max(each, 0) * self._part) for each in self._ledger.unused]
        return Amounts(tuple([own - min(own, part) for own, part in zip(spent.of, parts, strict=True)]))
