"""Rates, and every conversion between permits, seconds and nanoseconds.

All arithmetic is on whole numbers, and a float is read as it is written (0.3 is three tenths), so 3 per second never drifts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import gcd, lcm
from typing import TYPE_CHECKING

from aiorate._errors import called

if TYPE_CHECKING:
    from datetime import timedelta
    from decimal import Decimal
    from fractions import Fraction

    Number = int | float | Decimal | Fraction
    Duration = Number | timedelta  # every public argument that is a duration; a number is in seconds


NS_PER_SECOND = 1_000_000_000
_DAY_NS = 86_400 * NS_PER_SECOND
_WRITTEN_DIGITS = 15  # a float with more digits is the result of a computation
_SHORT = 10**6  # seconds: below it, a float times 10**9 is within a quarter of what is written
_PLACES = 4  # after the point of a rate that is shown
MOST_DIGITS = 400  # numbers outside 1e-400 to 1e400 are refused, because their arithmetic would take minutes
_MOST = 10**MOST_DIGITS
EVEN = 1, 1  # the ratio of strategies that never catch up

_UNITS = {
    name: ns
    for ns, names in {
        1: "ns",
        1_000: "us µs",
        1_000_000: "ms",
        NS_PER_SECOND: "s sec second seconds",
        60 * NS_PER_SECOND: "min minute minutes",
        3_600 * NS_PER_SECOND: "h hr hour hours",
        _DAY_NS: "day d days",
        7 * _DAY_NS: "week weeks",
    }.items()
    for name in names.split()
}

_MONTHS = {"month": 1, "mo": 1, "year": 12, "yr": 12, "y": 12}  # of the units that have no fixed length
DAYS = {1: (28, 31), 2: (59, 62), 3: (90, 92), 4: (120, 123), 6: (181, 184), 12: (365, 366)}  # months: the fewest days, and the most
_NUMBER = r"\d+(?:_\d+)*(?:\.\d+)?(?:[eE][+-]?\d{1,4})?"
_TEXT = rf"({_NUMBER})(?:\s*(?:/|per\b)\s*({_NUMBER})?\s*([a-zµ]+))?"


class Rate:
    """A number of permits per period, kept exactly.

    ``permits`` is an int, float, Decimal or Fraction. ``per`` is a number of seconds of the same types, or a timedelta. A float is
    read as it is written: ``Rate(0.3)`` is 3 per 10 s. A float period of more than 15 digits, such as ``1 / 3``, is read to the
    nearest nanosecond. Both numbers are kept as given, because windows count by them: 100 per 60 s is not equal to 5 per 3 s.

    Raises ValueError for a value that is zero, negative, infinite, NaN or outside 1e-400 to 1e400, and TypeError for a bool or
    any other type.
    """

    __slots__ = ("_is_whole", "_months", "_ticks", "period_ns", "permits")
    permits: int
    """Permits per period, a whole number."""
    period_ns: int
    """Length of the period in nanoseconds, a whole number."""
    _ticks: tuple[int, int]  # for exact arithmetic: the least whole numbers of ticks of a nanosecond and of a permit
    _is_whole: bool  # whether it was given as whole permits per whole nanoseconds, unlike ``Rate(0.3)``
    _months: int  # of its period, which then has no fixed length: `period_ns` is that of the longest such months

    def __init__(self, permits: Number, per: Duration = 1) -> None:
        n, n_den = exact(permits, "Rate(permits)")
        t, t_den = exact_seconds(per, "Rate(per)")
        if isinstance(per, float) and len(float.__repr__(per).partition("e")[0].strip("0.").replace(".", "")) > _WRITTEN_DIGITS:
            ns = (2 * t * NS_PER_SECOND + t_den) // (2 * t_den)
            t, t_den = (ns, NS_PER_SECOND) if ns else (t, t_den)
        for value, name in ((n, "permits"), (t, "per")):
            if value <= 0:
                raise ValueError(f"Rate({permits!r}, per={per!r}): {name} must be greater than 0.")
        self._keep(n, n_den, t * NS_PER_SECOND, t_den)

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read ``"100/s"``, ``"500/min"``, ``"10000/day"``, ``"3/250ms"``, ``"0.5/s"``, ``"200_000 per hour"`` or ``"20"``.

        The units are ns, us, ms, s (sec, second), min (minute), h (hr, hour), d (day) and week. A plain number means per second.
        Raises ValueError for any other text. ``m`` is such a text, because it may mean minutes or months. A month has no fixed
        length: write ``"1000/30day"``, or ``CalendarWindow("1000/month", "UTC")`` for a quota of each month.
        """
        if not isinstance(text, str):
            raise TypeError(f"Rate.parse() takes text such as '100/s', not {type(text).__name__}.")
        return read_rate(text)

    @classmethod
    def of(cls, value: Rate | str | Number) -> Rate:
        """The Rate itself, the rate that a text names, or a number per second. ValueError for one of months."""
        if isinstance(value, Rate):
            return read_rate(str(value)) if value._months else value
        return read_rate(value) if isinstance(value, str) else cls(value)

    @classmethod
    def _of(cls, value: Rate | str | Number) -> Rate:
        """As `of`, with months too."""
        return value if isinstance(value, Rate) else read_rate(value, True) if isinstance(value, str) else cls(value)

    @classmethod
    def _exactly(
        cls, permits: int, period_ns: int, permits_den: int = 1, period_den: int = 1, months: int = 0, is_whole: bool = True
    ) -> Rate:
        """``permits / permits_den`` per ``period_ns / period_den``, which the caller has checked."""
        rate = object.__new__(cls)
        rate._keep(permits, permits_den, period_ns, period_den, months, is_whole)
        return rate

    def _keep(self, n: int, n_den: int, ns: int, ns_den: int, months: int = 0, is_whole: bool = True) -> None:
        """Keep n per ns, both fractions. Windows count by these numbers, so the scale is the least that makes both whole."""
        scale = lcm(n_den // gcd(n, n_den), ns_den // gcd(ns, ns_den))
        permits, period_ns = n * scale // n_den, ns * scale // ns_den
        least = gcd(permits, period_ns)
        _set(self, "permits", permits)
        _set(self, "period_ns", period_ns)
        _set(self, "_ticks", (permits // least, period_ns // least))
        _set(self, "_is_whole", is_whole and scale == 1)
        _set(self, "_months", months)

    def _with_permits(self, permits: int) -> Rate:
        return Rate._exactly(permits, self.period_ns, months=self._months)

    @property
    def per_second(self) -> float:
        """Permits per second, for display. The two integers are the exact rate."""
        return as_float(self.permits * NS_PER_SECOND, self.period_ns)

    @property
    def interval_ns(self) -> int:
        """Nanoseconds from one permit to the next, rounded down."""
        return self.period_ns // self.permits

    def _permits_in(self, ns: int) -> int:
        """Whole permits that a duration is worth, rounded down."""
        return ns * self.permits // self.period_ns

    def _slower_than(self, other: Rate) -> bool:
        return self.permits * other.period_ns < other.permits * self.period_ns

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rate):
            return NotImplemented
        return (self.permits, self.period_ns, self._months) == (other.permits, other.period_ns, other._months)

    def __hash__(self) -> int:
        return hash((self.permits, self.period_ns))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Rate cannot be changed; make a new one instead of setting {name!r}")

    def __reduce__(self) -> tuple[object, tuple[int, ...]]:
        return Rate._exactly, (self.permits, self.period_ns, 1, 1, self._months, self._is_whole)

    def __str__(self) -> str:
        if self._months:
            return f"{self.permits}/{ {1: 'month', 12: 'year'}.get(self._months, f'{self._months}months') }"
        name = next(name for name in ("day", "h", "min", "s", "ms", "us", "ns") if self.period_ns % _UNITS[name] == 0)
        length = _UNITS[name]
        count = self.period_ns // length
        if length >= NS_PER_SECOND and self.permits > count > 1 == gcd(self.permits, count):
            for places in range(1, _PLACES):
                shown, rest = divmod(self.permits * 10**places, count)
                if not rest:  # 34.2/s, which is read as 171/5s
                    return f"{shown // 10**places}.{shown % 10**places:0{places}}/{name}"
        return f"{self.permits}/{'' if count == 1 else count}{name}"

    def __repr__(self) -> str:
        return f"Rate.parse({str(self)!r})"


@lru_cache(maxsize=256)
def read_rate(text: str, calendar: bool = False) -> Rate:
    """The rate that a text names. ``calendar``: also of months. Cached, because the limits of all keys have the same few texts."""
    match = re.fullmatch(_TEXT, text.strip(), re.ASCII | re.IGNORECASE)
    unit = (match[3] or "s").lower() if match else ""
    months = _MONTHS.get(unit.removesuffix("s"), 0) if calendar else 0
    if match is None or not (months or unit in _UNITS):
        raise ValueError(
            f"Rate.parse({text[:80]!r}) is not a rate. Write '100/s', '500/min' ('m' may mean minutes or months: write 'min'), '3/250ms' or"
            " '10000/day'. A month has no fixed length: write '1000/30day', or CalendarWindow('1000/month', 'UTC')."
        )
    n, n_den = written(match[1], "Rate.parse()")
    count, count_den = written(match[2] or "1", "Rate.parse()")
    if months:
        months, rest = divmod(count * months, count_den)
        if rest or n < 1 or n % n_den or months not in DAYS:
            raise ValueError(
                f"CalendarWindow({text[:80]!r}): a window is 1, 2, 3, 4, 6 or 12 months, and has a whole number of permits, 1 or more."
                " Write '10/month', '10/3months' or '10/year'."
            )
        return Rate._exactly(n // n_den, DAYS[months][1] * _DAY_NS, months=months)
    if not (n and count):
        raise ValueError(f"Rate.parse({text[:80]!r}): a rate must be greater than 0.")
    return Rate._exactly(n, count * _UNITS[unit], n_den, count_den)


def exact(value: Number, what: str) -> tuple[int, int]:
    """Numerator and denominator of a finite number. A float counts as it is written, not as it is stored.

    Raises ValueError or TypeError that begins with ``what``.
    """
    given = value
    if isinstance(value, int) and not isinstance(value, bool):
        fits = -_MOST < value < _MOST
    else:
        from decimal import Decimal  # as slow as importing all of aiorate
        from fractions import Fraction

        if isinstance(value, bool) or not isinstance(value, (float, Decimal, Fraction)):
            raise TypeError(f"{what} must be an int, float, Decimal or Fraction, not {type(value).__name__}.")
        if isinstance(value, float):
            value = Decimal(float.__repr__(value))
        if isinstance(value, Decimal) and not value.is_finite():
            raise ValueError(f"{called(what, given)} must be a finite number.")
        fits = isinstance(value, Fraction) or not value or abs(value.adjusted()) <= MOST_DIGITS
    if not fits:
        raise ValueError(f"{called(what, given)} must be within 1e-{MOST_DIGITS} to 1e{MOST_DIGITS}.")
    return value.as_integer_ratio()


def ratio_of(value: Number, what: str) -> tuple[int, int]:
    """As `exact`, of a ratio of 1 or more. ``what`` is like ``"BurstRatio(ratio"``."""
    num, den = exact(value, f"{what})")
    if num < den:
        raise ValueError(f"{what}={value!r}) must be 1 or more; 1 means no catching up.")
    return num, den


def written(text: str, what: str) -> tuple[int, int]:
    """Numerator and denominator of a decimal text."""
    if text.isdigit():
        return exact(int(text), what)
    from decimal import Decimal

    return exact(Decimal(text), what)


def exact_seconds(value: Duration, what: str) -> tuple[int, int]:
    """As `exact`, of a duration in seconds, below 0 too."""
    if not isinstance(value, (int, float)):
        from datetime import timedelta  # slower than importing all of aiorate

        if isinstance(value, timedelta):  # total_seconds() is a float, these three are whole numbers
            return (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds, 1_000_000
    try:
        return exact(value, what)
    except TypeError:
        raise TypeError(f"{what} must be a timedelta or a number of seconds, not {type(value).__name__}.") from None


def duration_to_ns(value: Duration, what: str) -> int:
    """A duration of 0 or more, in seconds or as a timedelta, to the nearest whole nanosecond. Errors are as in `exact`."""
    if type(value) in (float, int) and 0 <= value < _SHORT:  # type: ignore[operator]  # in a sixth of the time of the exact way
        ns: float = value * NS_PER_SECOND  # type: ignore[assignment]
        nearest = int(ns + 0.5)
        if -0.25 < ns - nearest < 0.25:
            return nearest
    num, den = exact_seconds(value, what)
    if num < 0:
        raise ValueError(f"{called(what, value)} must be 0 seconds or more.")
    return (2 * num * NS_PER_SECOND + den) // (2 * den)


def ns_to_seconds(ns: int) -> float:
    """Nanoseconds in seconds. Infinite where a float cannot hold it."""
    return as_float(ns, NS_PER_SECOND)


def as_float(num: int, den: int) -> float:
    """num / den as a float. Infinite where a float cannot hold it."""
    try:
        return num / den
    except OverflowError:
        return float("inf")


def ceil_div(num: int, den: int) -> int:
    """num / den rounded up: an event within a nanosecond counts at its end."""
    return -(-num // den)


_set = object.__setattr__
