"""AllOf: a scheduler of several members, each of which must grant the same request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from aiorate._errors import kind_of
from aiorate._rate import Rate
from aiorate._schedulers.compound import Compound
from aiorate._schedulers.interface import Scheduler, given_twice

if TYPE_CHECKING:
    from aiorate._rate import Number

__all__ = ["AllOf"]


class AllOf(Compound):
    """Apply several limits at once, all or nothing. A list of limits makes one.

    A request is granted when every member grants it. If one refuses, none of them is charged. The guarantee is the lowest of theirs.

    Args:
        *schedulers: The strategies, all different objects.
    """

    __slots__ = ()

    def __init__(self, *schedulers: Scheduler) -> None:
        if not schedulers:
            raise ValueError("AllOf() needs at least one scheduler.")
        for member in schedulers:
            if not isinstance(member, Scheduler):
                unpack = " Write AllOf(*schedulers)." if isinstance(member, (list, tuple)) else ""
                if isinstance(member, (str, int, float, Rate)):
                    unpack = " For a list of rates, write Limiter(['10/s', '100/min'])."
                raise TypeError(f"AllOf() takes schedulers such as TokenBucket('10/s', burst=5), not {kind_of(member)}.{unpack}")
        if given_twice(schedulers):
            raise ValueError("AllOf(): a scheduler given twice would be charged twice. Make two, or give it once.")
        self.parts = schedulers
        self._receipts = True

    def _read_rate(self, rate: Rate | str | Number) -> NoReturn:
        """As `set_rate`."""
        self.set_rate(self.rate, 0)

    def apply(self, rate: Rate, burst_ratio: Number, now: int) -> None:
        """Nothing for the rate in force, as to reopen a closed limiter. Another one is refused: a `RateSpec` has one rate."""
        if rate != self.rate:
            raise RuntimeError("apply(): this limit has several rates, and a RateSpec has one. Use set_rate(rate, member=0) and pause().")

    def set_rate(self, rate: Rate, now: int) -> NoReturn:
        """Refused, because only the members have rates to change. Change one: ``limiter.set_rate(rate, member=0)``."""
        raise RuntimeError("set_rate(): an AllOf changes one of its members at a time. Say which: limiter.set_rate(rate, member=0).")
