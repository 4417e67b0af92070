"""Dimensions: the scheduler of an `aiorate.Budget`. A request takes an amount of each of several limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from aiorate._schedulers.all_of import AllOf
from aiorate._schedulers.amounts import Amounts
from aiorate._schedulers.interface import given_twice
from aiorate._schedulers.server_quotas import ServerQuotas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Rate
    from aiorate._schedulers.all_of import Shares
    from aiorate._schedulers.amounts import Permits
    from aiorate._schedulers.interface import Scheduler

__all__ = ["Dimensions"]

_NONE: dict[int, ServerQuotas] = {}  # shared by all budgets of which no server has said anything; never changed


class Dimensions(AllOf):
    """Grants a request when every dimension grants its amount, and takes from all of them or none. Its permits are `Amounts`."""

    __slots__ = ("told", "waited_for")
    max_permits: int | None = None  # pyright: ignore[reportIncompatibleMethodOverride]
    """None: a request counts as 1. Its amounts are compared with those of the dimensions."""

    def __init__(self, parts: Sequence[Scheduler]) -> None:
        if given_twice(parts):
            raise ValueError("Budget(): a strategy given for two dimensions would be charged for both. Make two.")
        self.members = tuple(parts)
        self.told: dict[int, ServerQuotas] = _NONE
        """What servers said of the dimension of that place, which is asked for its permits in place of it."""
        self.waited_for: int | None = None
        """The place of the dimension that last had a request wait. Those that are only shared come after the own ones."""
        self._receipts = True

    @property
    def rate(self) -> Rate:  # type: ignore[override]
        """The rate of the first dimension."""
        return self.members[0].rate

    @property
    def most(self) -> list[int | None]:
        """The largest amount of each dimension that can ever be granted; None: any."""
        return [part.max_permits for part in self.members]

    def available_of(self, place: int, now: int) -> int:
        """How much of that dimension is available."""
        return self._permitted[place].available(now)

    @property
    def _permitted(self) -> Sequence[Scheduler | ServerQuotas]:
        """The dimensions, each with what servers said of it."""
        told = self.told
        return [told.get(place, part) for place, part in enumerate(self.members)] if told else self.members

    def _shares(self, permits: Permits) -> Shares:
        """The dimensions of which it takes more than 0. A plain number is one request that takes 1 of each."""
        of = permits.of if isinstance(permits, Amounts) else (1,) * len(self.members)
        return [(part, amount) for part, amount in zip(self._permitted, of, strict=False) if amount]  # the last may be of a shared limit

    # The members check the amounts.

    def take(self, permits: Permits, now: int, since: int | None = None) -> int:
        at = self._take_shares(self._shares(permits), now, since)
        if at <= now and isinstance(permits, Amounts):
            permits.waited_for = self.waited_for
        return at

    def peek(self, permits: Permits, now: int, ahead: Permits = 0) -> int:
        return self._peek_shares(self._shares(permits), now, self._shares(ahead) if ahead else [])

    def give_back(self, permits: Permits, now: int, taken: int | None = None) -> None:
        for part, amount in self._shares(permits):
            part.give_back(amount, now, taken)

    def charge(self, permits: Permits, now: int) -> None:
        for part, amount in self._shares(permits):
            part.charge(amount, now)

    def _due(self, shares: Shares, now: int) -> int:
        """The latest instant that a dimension names. If that is after ``now``, the dimension is noted in `waited_for`."""
        at, place = self._latest(shares, now)
        if place is not None:
            self.waited_for = place
        return at

    def last(self, permits: Permits, now: int) -> int | None:
        """The place of the dimension for which the request would wait longest; None: none."""
        return self._latest(self._shares(permits), now)[1]

    def _latest(self, shares: list[tuple[Scheduler | ServerQuotas, int]], now: int) -> tuple[int, int | None]:
        """The latest instant that a dimension names and, if that is after ``now``, the place of that dimension."""
        dues = [part.peek(amount, now) for part, amount in shares]
        at = max(dues, default=now)
        if at <= now:
            return at, None
        latest = shares[dues.index(at)][0]
        return at, [part is latest for part in self._permitted].index(True)

    def correct(self, place: int, more: int, now: int, taken: int) -> None:
        """Charge the ``more`` permits of that dimension that a request used than it took. Fewer (below 0) come back by receipt."""
        if more > 0:
            self.members[place].charge(more, now)
        elif more < 0:
            self._permitted[place].give_back(-more, now, taken)

    def cap(self, place: int, name: str, left: int, size: int, ns: int, now: int, at: int, error: int = 0) -> None:
        """Heed what a server said is left of that dimension; see `ServerQuotas.heed`."""
        told = self.told.get(place)
        if told is None or told.ended(now):
            told = ServerQuotas(self.members[place])
        if told.heed(name, left, size, ns, now, at, error):
            self.told = {**self.told, place: told}

    def reset(self, now: int) -> None:
        """Reset all dimensions, and forget what servers said, which a new budget would not know."""
        super().reset(now)
        self.told = _NONE

    def set_rate(self, rate: Rate, now: int) -> NoReturn:
        """Refused: each dimension has a rate."""
        raise RuntimeError("set_rate(): a budget has a rate for each dimension.")

    def _bound_when_late(self, window: int, largest: int, late: int) -> None:
        """None: the bounds are those of the dimensions."""
