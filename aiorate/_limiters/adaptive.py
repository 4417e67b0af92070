"""A rate that follows what a server answers, between two bounds. `aiorate._limiters.finder` decides it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from aiorate._errors import kind_of
from aiorate._events import Event
from aiorate._feedback import Feedback
from aiorate._limiters.finder import Finder
from aiorate._limiters.limiter import Limiter
from aiorate._rate import NS_PER_SECOND, Rate, duration_to_ns, exact, ns_to_seconds
from aiorate._schedulers.window import Window

if TYPE_CHECKING:
    from aiorate._rate import Duration, Number
    from aiorate._tree.limit import Limit

__all__ = ["AdaptiveRate", "adaptive_of"]

_WORTH_AN_EVENT = 0.1  # a settled rate that differs by more
_LEAST, _MOST = 1e-9, 1e12  # permits per second
_LONGEST = 10**9 * NS_PER_SECOND  # a longer pause is as good as this one
_LEAST_REFUSED = 1e-6  # a smaller share counts as this one, or a climb would be paid for forever
_DIGITS = 2000  # a rate is rounded down to at least three digits, so that it is short in logs
_MOST_SECONDS = 10**12


class AdaptiveRate:
    """Find a server's rate limit from its answers, and follow it when it changes.

    Callers wait at the limiter. The HTTP adapters take an AdaptiveRate wherever they take a limiter, and so does the function of a
    `KeyedLimiter`.

    Args:
        limiter: The `Limiter` whose rate is moved. The search begins at its rate.
        lowest: The lowest rate to try. While a server refuses everything, single requests ask more rarely.
        highest: The highest rate to try.
        refused: The share of requests that may be refused in order to find out whether the limit has risen, between 0 and 1.

    A limiter has one AdaptiveRate at most. Several rates, and a rate that processes share, cannot be moved.
    """

    __slots__ = ("_search", "limiter")

    def __init__(self, limiter: Limiter, lowest: Rate | str | Number, highest: Rate | str | Number, *, refused: Number = 0.02) -> None:
        if not isinstance(limiter, Limiter):
            raise TypeError(f"AdaptiveRate() takes a Limiter, not {kind_of(limiter)}: AdaptiveRate(Limiter('10/s'), '1/s', '100/s').")
        if limiter._node.provider.state != "local":
            raise ValueError("AdaptiveRate(): processes share this rate. Give each an AdaptiveRate over a Limiter: they find their shares.")
        if limiter.scheduler.members:
            raise ValueError("AdaptiveRate(): the limiter has several rates. Use one, and KeyedLimiter(..., shared=) for the others.")
        if limiter in _SEARCHES:
            raise ValueError("AdaptiveRate(): the limiter has an AdaptiveRate already: aiorate.adaptive.adaptive_of(limiter) returns it.")
        least, most = Rate.of(lowest), Rate.of(highest)
        if most._slower_than(least):
            raise ValueError(f"AdaptiveRate(): lowest is {least} and highest is {most}. Give the lower rate first.")
        if least.per_second < _LEAST or most.per_second > _MOST:
            raise ValueError(f"AdaptiveRate(lowest={least}, highest={most}): rates must be from {_LEAST:g} to {_MOST:g} per second.")
        num, den = exact(refused, "AdaptiveRate(refused)")
        if not 0 < num < den:
            raise ValueError(f"AdaptiveRate(refused={refused!r}) must be greater than 0 and less than 1, such as 0.02.")
        period = limiter.rate.period_ns if isinstance(limiter.scheduler, Window) else 0
        if period:  # a window counts whole permits
            fewest, many = -(-least.permits * period // least.period_ns), most._permits_in(period)
            if fewest > many:
                raise ValueError(f"AdaptiveRate(): a window holds whole permits, none is from {least} to {most}. Widen the range.")
            least, most = Rate._exactly(fewest, period), Rate._exactly(many, period)
        rate = least if limiter.rate._slower_than(least) else most if most._slower_than(limiter.rate) else limiter.rate
        self.limiter: Limiter = limiter
        """The limiter, at which callers wait."""
        self._search = _SEARCHES[limiter] = _Search(limiter._node, rate, least, most, max(num / den, _LEAST_REFUSED), period)

    @property
    def rate(self) -> Rate:
        """The limiter's rate at present."""
        return self.limiter.rate

    def succeeded(self, *, took: Duration | None = None) -> None:
        """Say that the server did not refuse a request because of its rate.

        Args:
            took: The time from the grant to the answer, in seconds or as a timedelta. It tells requests that were in flight when the rate
                changed from later ones.
        """
        self._search.hear(0 if took is None else duration_to_ns(took, "succeeded(took)"), None)

    def throttled(self, retry_after: Duration | None = None, *, took: Duration | None = None) -> None:
        """Say that the server refused a request because of its rate.

        Args:
            retry_after: How long the server asked you to stay away, in seconds or as a timedelta. The limiter is paused for so long.
            took: See `succeeded`.
        """
        pause = 0 if retry_after is None else duration_to_ns(retry_after, "throttled(retry_after)")
        waited = 0 if took is None else duration_to_ns(took, "throttled(took)")
        self._search.hear(waited, pause, Feedback(429, ns_to_seconds(pause), source="Retry-After") if pause else None)

    def _heed(self, pause: float | None, granted: int) -> None:
        """What an adapter heard: the pause if the server throttled, or None; and the reading at the grant."""
        self._search.hear(self.limiter._node.tree.now() - granted, None if pause is None else duration_to_ns(pause, "observe(pause)"))

    def __repr__(self) -> str:
        search = self._search
        return f"<AdaptiveRate {self.rate}, {search.lowest} to {search.highest}, of {self.limiter!r}>"


def adaptive_of(limiter: Limiter) -> AdaptiveRate | None:
    """Return the AdaptiveRate that moves a limiter's rate; None if there is none. For a key, ``adaptive_of(keyed[key])``."""
    if not isinstance(limiter, Limiter):
        raise TypeError(f"adaptive_of() takes a Limiter, not {kind_of(limiter)}. For a KeyedLimiter, write adaptive_of(keyed[key]).")
    search = _SEARCHES.get(limiter) if _SEARCHES else None
    if search is None:
        return None
    adaptive = object.__new__(AdaptiveRate)  # a KeyedLimiter keeps the limiter only
    adaptive.limiter, adaptive._search = limiter, search
    return adaptive


class _Search:
    """What is known of one limiter's rate. It must not hold the limiter, which would never be freed then."""

    __slots__ = ("_begun", "_finder", "_period", "_told", "highest", "lowest", "node")

    def __init__(self, node: Limit, rate: Rate, lowest: Rate, highest: Rate, refused: float, period: int) -> None:
        self.node, self.lowest, self.highest, self._period, self._told = node, lowest, highest, period, rate.per_second
        self._finder = Finder(rate.per_second, lowest.per_second, highest.per_second, refused)
        self._begun = node.tree.run(node.look_now)
        node.tree.change(node.set_rate, rate, found=True)

    def hear(self, took: int, pause: int | None, feedback: Feedback | None = None) -> None:
        """A request granted ``took`` ns ago was answered. ``pause``: for how many ns to stay away; None: the server served it."""
        self.node.tree.change(self._learn, took, pause, feedback)

    def _learn(self, took: int, pause: int | None, feedback: Feedback | None) -> None:
        node, finder = self.node, self._finder
        now = node.look_now()
        stood = node.offset + node.held_for
        took = max(0, min(took, now - self._begun))  # no grant was before, whatever a clock or a caller says
        if pause is None:
            finder.succeeded(now, took, stood)
        else:
            finder.throttled(now, took, stood, min(pause, _LONGEST))
        if feedback is not None:
            node.observe(feedback, 0)
        rate = self._rounded(finder.rate)
        if rate != node.scheduler.rate:
            node.set_rate(rate, found=True)
        if finder.settled and abs(finder.rate - self._told) > _WORTH_AN_EVENT * self._told:
            self._told = finder.rate
            node.tell(Event("rate", node.name, rate=rate))

    def _rounded(self, per_second: float) -> Rate:
        for bound in (self.lowest, self.highest):
            if per_second == bound.per_second:
                return bound
        if self._period:
            return Rate._exactly(max(1, int(per_second * self._period / NS_PER_SECOND + 1e-9)), self._period)
        seconds = 1
        while per_second * seconds < _DIGITS and seconds < _MOST_SECONDS:
            seconds *= 10
        return Rate._exactly(max(1, int(per_second * seconds + 1e-9)), NS_PER_SECOND, seconds)


_SEARCHES: WeakKeyDictionary[Limiter, _Search] = WeakKeyDictionary()
