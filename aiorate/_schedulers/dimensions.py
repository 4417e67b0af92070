"""Dimensions: the scheduler of an `aiorate.Budget`. A request takes an amount of each of several limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorate._schedulers.all_of import AllOf
from aiorate._schedulers.server_quotas import ServerQuotas, quotas_of

if TYPE_CHECKING:
    from aiorate._schedulers.amounts import Amounts
    from aiorate._schedulers.interface import Scheduler


class Dimensions(AllOf):
    """Grants a request when every dimension grants its amount. Its permits are `Amounts`.

    A refused request notes the dimension for which it waits, and so do those behind it in line.
    """

    __slots__ = ("_waited", "names")
    max_permits: int | None = None  # pyright: ignore[reportIncompatibleMethodOverride]
    """None: the amounts are compared with those of the dimensions."""

    def __init__(self, parts: dict[str, Scheduler]) -> None:
        self.names: tuple[str, ...] = tuple(parts)
        super().__init__(*parts.values())
        self._waited: tuple[int, str | None] = (0, None)  # the last grant: its instant, and the dimension that it waited for

    def available_of(self, name: str, now: int) -> int:
        return self._permitted[self.names.index(name)].available(now)

    def _shares(self, permits: Any) -> list[tuple[Any, int]]:
        """The dimensions of which it takes more than 0, and how much. Those of limits above come last."""
        return [(part, amount) for part, amount in zip(self._permitted, permits.of, strict=False) if amount]

    # The members check the amounts.

    def _take(self, permits: Any, now: int, since: int | None) -> int:
        permits.waited_for = permits.waited_for or (self._waited[1] if self._waited[0] == now else None)
        self._waited = now, permits.waited_for
        return super()._take(permits, now, since)

    def peek(self, permits: Any, now: int, ahead: Any = 0) -> int:
        """The latest instant that a dimension names. With nothing ahead, the request notes which one it waits for."""
        before = ahead.of if ahead else (0,) * len(self.names)
        latest, waited_for = now, permits.waited_for
        for name, part, amount, others in zip(self.names, self._permitted, permits.of, before, strict=False):
            if amount and (at := part.peek(amount, now, others)) > latest:
                latest, waited_for = at, name
        if not ahead:
            permits.waited_for = waited_for
        return latest

    def correct(self, more: Amounts, now: int, taken: int) -> None:
        """Charge how much ``more`` a request used than it took at that instant. Less (below 0) comes back by receipt."""
        for part, amount in zip(self._permitted, more.of, strict=False):
            if amount > 0:
                part.charge(amount, now)
            elif amount < 0:
                part.give_back(-amount, now, taken)

    def _shift(self, ns: int) -> None:
        super()._shift(ns)
        self._waited = 0, None  # who waits for the end of a pause does not wait for what was granted at the same instant

    def quotas_of(self, name: str) -> ServerQuotas:
        """What servers say of that dimension, which is heeded from now on."""
        place = self.names.index(name)
        quotas = quotas_of(self._permitted[place])
        self._permitted = (*self._permitted[:place], quotas, *self._permitted[place + 1 :])
        return quotas
