"""Strategies that store unused time, from Guava: SmoothBursty, SmoothWarmingUp.

A stored permit costs nothing with the first, and more than a fresh one with the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND, Rate, as_float, ceil_div, exact, exact_seconds
from aiorate._schedulers.interface import check_window
from aiorate._schedulers.ticks import Pacing

if TYPE_CHECKING:
    from aiorate._rate import Duration, Number


class _Smooth(Pacing):
    """The store holds permits."""

    __slots__ = ()
    _shown: tuple[str, ...] = ("stored",)

    @property
    def stored(self) -> float:
        """Permits in the store after the latest call. One that warms up is cold when it is full."""
        return as_float(self._stored, self._cost)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate. A debt keeps its duration, and the store its fraction."""
        self._line.due, self._stored, self._lost = self._after(0, self._due(now), self._stored, self._lost, now)
        super().set_rate(rate, now)


class SmoothBursty(_Smooth):
    """Save up unused permits and let them go at once, like Guava's SmoothBursty.

    The store is empty at first. A request pays later: one of any size starts at once if nothing is owed, and the next one waits for it. So
    after a long quiet spell, one permit more than the store holds can pass at one instant.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        max_burst: How much time fills the store, in seconds or as a timedelta. 1 s by default.
        max_stored: How many permits the store holds, in place of ``max_burst``.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_in_permits", "_most", "_size")

    def __init__(
        self,
        rate: Rate | str | Number,
        max_burst: Duration | None = None,
        max_stored: Number | None = None,
        *,
        start: int | None = None,
    ) -> None:
        if max_stored is None:
            self._size = exact_seconds(1 if max_burst is None else max_burst, "SmoothBursty(max_burst)")
        elif max_burst is None:
            self._size = exact(max_stored, "SmoothBursty(max_stored)")
        else:
            raise ValueError("SmoothBursty() takes max_burst (seconds) or max_stored (permits), not both.")
        self._in_permits = max_stored is not None
        if self._size[0] < 0:
            raise ValueError("SmoothBursty(max_burst, max_stored) must be 0 or more; 0 stores nothing.")
        super().__init__(rate, start=start)

    def bound(self, window: int, largest: int = 1) -> int:
        """``store + rate x window + largest``: a full store, the permits that flow in, and one request on credit."""
        check_window(window, largest)
        return (self._most + window * self._unit) // self._cost + largest

    def _measure(self) -> None:
        self._unit, self._cost, (num, den) = self.rate.permits, self.rate.period_ns, self._size
        self._most = num * (self._cost if self._in_permits else NS_PER_SECOND * self._unit) // den

    def _rescaled(self, unit: int, cost: int) -> int:
        return self._stored * self._cost // cost if self._in_permits else super()._rescaled(unit, cost)


class SmoothWarmingUp(_Smooth):
    """Start slowly and warm up to the rate, like Guava's SmoothWarmingUp.

    For servers that must fill caches or pools before they can bear the full rate. It starts cold, and cools down again while idle.

    The price of a stored permit depends on the level x of the store (interval I, cold interval c I)::

          c I |            /          The store holds max permits when cold. Taking k of them costs the
              |          /            area under the line from the level down to level - k: from max to
            I |--------/              threshold exactly the warm-up time. Permits above the store cost I.
              |        |      |
              0    threshold  max     threshold = warmup / 2I,  max = threshold + 2 warmup / (I + cI)

    A cost is the difference of the areas up to two levels, each rounded once, so splitting a request does not change the total.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        warmup: How long it takes from cold to warm under load, in seconds or as a timedelta.
        cold_factor: The cold interval divided by the warm one, 1 or more.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("_cold_factor", "_earn", "_most", "_warmup")
    _starts_full: bool = True
    _price: int = 1  # see _priced(): stored permits are not free

    def __init__(self, rate: Rate | str | Number, warmup: Duration, cold_factor: Number = 3.0, *, start: int | None = None) -> None:
        num, den = exact_seconds(warmup, "SmoothWarmingUp(warmup)")
        if num <= 0:
            raise ValueError(f"SmoothWarmingUp(warmup={warmup!r}) must be more than 0 seconds. For no warm-up, use SmoothBursty.")
        # Rounded up to a whole nanosecond: never to 0, which would stop all throttling.
        self._warmup = ceil_div(num * NS_PER_SECOND, den)
        cold, warm = self._cold_factor = exact(cold_factor, "SmoothWarmingUp(cold_factor)")
        if cold < warm:
            raise ValueError(f"SmoothWarmingUp(cold_factor={cold_factor!r}) must be 1 or more: cold is slower than warm.")
        # max permits = warmup / I x (5 + c) / (2 (1 + c)). In the unit of the store, a permit is period_ns x 2 (cold + warm) and
        # a tick of idle time earns (5 warm + cold), all whole numbers.
        self._earn = 5 * warm + cold
        super().__init__(rate, start=start)

    def bound(self, window: int, largest: int = 1) -> int:
        """``largest + rate x window``, because no permit costs less than the interval."""
        check_window(window, largest)
        return largest + self.rate._permits_in(window)

    def _measure(self) -> None:
        self._unit, self._cost = self.rate.permits, self.rate.period_ns * 2 * sum(self._cold_factor)
        self._most = self._warmup * self._unit * self._earn

    def _priced(self, stored: int, permits: int) -> tuple[int, int]:
        left = stored - permits * self._cost
        return max(left, 0), self._area(stored) - self._area(left)

    def _area(self, level: int) -> int:
        """The ticks that all permits up to the level cost. Below 0 nothing is stored, and the price is the interval."""
        cold, warm = self._cold_factor
        warmup = self._warmup * self._unit
        above = max(level - warmup * (cold + warm), 0)
        # level / (2 (cold + warm)) for the rectangle; above^2 slope / 2 for the triangle, slope = (cI - I) / (max - threshold).
        scale = 8 * warm * warm * warmup
        return ceil_div(level * scale + above * above * (cold - warm), scale * 2 * (cold + warm))

    def _rescaled(self, unit: int, cost: int) -> int:
        return ceil_div(self._stored * self._unit, unit)  # rounded up: a fuller store is colder, so this gives no credit
