"""CalendarRate: a number of permits per month, or per any whole number of months that divides a year.

A month has no fixed length, so this is not a `Rate` to pace by: `aiorate.CalendarWindow` counts by it. Knows no time and no time zone.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from aiorate._rate import CALENDAR_UNITS, NS_PER_SECOND, RATE_TEXT, Rate, written

if TYPE_CHECKING:
    from aiorate._rate import Number

__all__ = ["CalendarRate"]

_DAY = 86_400
_DAYS = {1: (28, 31), 2: (59, 62), 3: (90, 92), 4: (120, 123), 6: (181, 184), 12: (365, 366)}  # months: the fewest days, and the most


class CalendarRate(Rate):
    """Permits per calendar months, 1, 2, 3, 4, 6 or 12 of them. Where a length is needed, it is that of the longest such months."""

    __slots__ = ("months",)
    months: int
    """How many calendar months are a window."""

    def __init__(self, permits: int, months: int) -> None:
        super().__init__(permits, _DAYS[months][1] * _DAY)
        object.__setattr__(self, "months", months)

    @classmethod
    def of(cls, value: Rate | str | Number) -> Rate:
        """As `Rate.of`, of a text such as ``"10000/month"``, ``"10000/3 months"`` or ``"10000/year"`` too."""
        return _parsed(value) if isinstance(value, str) else Rate.of(value)

    @property
    def shortest_ns(self) -> int:
        """The length of the shortest window, without a change of the clocks in it."""
        return _DAYS[self.months][0] * _DAY * NS_PER_SECOND

    def with_permits(self, permits: int) -> CalendarRate:
        """Another number of permits in as many months."""
        return CalendarRate(permits, self.months)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rate):
            return NotImplemented
        return isinstance(other, CalendarRate) and (self.permits, self.months) == (other.permits, other.months)

    def __hash__(self) -> int:
        return hash((self.permits, self.months, "months"))

    def __reduce__(self) -> tuple[object, tuple[int, int]]:  # type: ignore[override]
        return CalendarRate, (self.permits, self.months)

    def __str__(self) -> str:
        return f"{self.permits}/{ {1: 'month', 12: 'year'}.get(self.months, f'{self.months}months') }"

    def __repr__(self) -> str:
        return f"CalendarRate({self.permits}, {self.months})"


@lru_cache(maxsize=256)
def _parsed(value: str) -> Rate:
    """Once for each text, because the limits of all keys have the same few rates."""
    match = re.fullmatch(RATE_TEXT, value.strip(), re.ASCII | re.IGNORECASE)
    unit = CALENDAR_UNITS.get((match[3] or "").lower().removesuffix("s")) if match else None
    if match is None or unit is None:
        return Rate.of(value)
    permits, den = written(match[1], "CalendarWindow()")
    count, count_den = written(match[2] or "1", "CalendarWindow()")
    months = count * unit.months
    if permits < 1 or permits % den:
        raise ValueError(f"CalendarWindow({value!r}): the permits of a {unit.name} must be a whole number of 1 or more.")
    if months % count_den or months // count_den not in _DAYS:
        raise ValueError(
            f"CalendarWindow({value!r}): a window is 1, 2, 3, 4, 6 or 12 months, so that windows begin with the year."
            f" Write '{match[1]}/month', '{match[1]}/3months' or '{match[1]}/year'."
        )
    return CalendarRate(permits // den, months // count_den)
