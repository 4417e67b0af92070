"""AdaptiveRate: a rate that follows what a server answers, between two bounds.

Checks what it is told, keeps the limiter's time, and sets the limiter's rate. Which rate is next, `aiorate._finder` decides. Knows
nothing of HTTP.
"""

from __future__ import annotations

from functools import partial
from math import gcd
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from aiorate._errors import kind_of
from aiorate._events import Event
from aiorate._feedback import Feedback
from aiorate._finder import Finder
from aiorate._limiter import Limiter
from aiorate._rate import NS_PER_SECOND, Rate, duration_to_ns, exact, ns_to_seconds
from aiorate._schedulers.window import Window
from aiorate._tree import changes

if TYPE_CHECKING:
    from typing import NoReturn

    from aiorate._rate import Duration, Number
    from aiorate._tree.node import Node

__all__ = ["AdaptiveRate", "adaptive_of"]

_WORTH_AN_EVENT = 0.1  # a settled rate that differs by more
_LEAST, _MOST = 1e-9, 1e12  # permits per second
_LONGEST = 10**9 * NS_PER_SECOND  # a longer pause is as good as this one
_LEAST_REFUSED = 1e-6  # a smaller share counts as this one, or a climb would be paid for until the end of time
_DIGITS = 2000  # a rate is rounded down to at least three digits, so that it is short in logs
_MOST_SECONDS = 10**12


class AdaptiveRate:
    """Find a server's rate limit from its answers, and follow it when it changes.

    Callers wait at the limiter. The HTTP adapters take an AdaptiveRate wherever they take a limiter, and so does the function of a
    `KeyedLimiter`.

    Args:
        limiter: The `Limiter` whose rate is moved. The search begins at its rate.
        lowest: The lowest rate to try.
        highest: The highest rate to try.
        refused: The share of requests that may be refused in order to find out whether the limit has risen, between 0 and 1.

    A limiter has one AdaptiveRate at most. Several rates, and a rate that processes share, cannot be moved.
    """

    __slots__ = ("__weakref__", "_limiter", "_search")

    def __init__(self, limiter: Limiter, lowest: Rate | str | Number, highest: Rate | str | Number, *, refused: Number = 0.02) -> None:
        _check_limiter(limiter)
        least, most = _rate("lowest", lowest), _rate("highest", highest)
        if most.slower_than(least):
            raise ValueError(f"AdaptiveRate(): lowest is {least} and highest is {most}. Give the lower rate first.")
        if least.per_second < _LEAST or most.per_second > _MOST:
            raise ValueError(f"AdaptiveRate(lowest={least}, highest={most}): rates must be from {_LEAST:g} to {_MOST:g} per second.")
        num, den = exact(refused, "AdaptiveRate(refused)")
        if not 0 < num < den:
            raise ValueError(
                f"AdaptiveRate(refused={refused!r}) must be a share of the requests, greater than 0 and less than 1, such as 0.02."
            )
        self._limiter = limiter
        self._search = _Search(limiter, least, most, max(num / den, _LEAST_REFUSED))
        self._search.found_by = ref(self)
        self._begin()
        _SEARCHES[limiter] = self._search

    @property
    def limiter(self) -> Limiter:
        """The limiter, at which callers wait."""
        return self._limiter

    @property
    def rate(self) -> Rate:
        """The limiter's rate at present."""
        return self._limiter.rate

    @property
    def _node(self) -> Node:
        return self._limiter._node

    def succeeded(self, *, took: Duration | None = None) -> None:
        """Say that the server did not refuse a request because of its rate.

        Args:
            took: The time from the grant to the answer, in seconds or as a timedelta. It tells requests that were in flight when the rate
                changed from later ones.
        """
        self._succeeded(None if took is None else duration_to_ns(took, "succeeded(took)"))

    def throttled(self, retry_after: Duration | None = None, *, took: Duration | None = None) -> None:
        """Say that the server refused a request because of its rate.

        Args:
            retry_after: How long the server asked you to stay away, in seconds or as a timedelta. The limiter is paused for so long.
            took: See `succeeded`.
        """
        if isinstance(retry_after, str):
            raise TypeError(
                f"throttled() takes seconds or a timedelta, not the text {retry_after[:40]!r}. Read a response with"
                " aiorate.http.read_feedback(status, headers), and pass its pause."
            )
        pause = 0 if retry_after is None else duration_to_ns(retry_after, "throttled(retry_after)")
        waited = None if took is None else duration_to_ns(took, "throttled(took)")
        self._throttled(Feedback(429, ns_to_seconds(pause), source="Retry-After") if pause else None, pause, waited)

    def _reading(self) -> int:
        """The reading of the limiter's clock in ns, from which an adapter measures how long an answer took."""
        return self._node.read()

    def _heed(self, throttled: bool, feedback: Feedback | None, granted: int) -> None:
        """What an adapter heard: whether the server throttled, what else it said, and the `reading` at the grant.

        The limiter is to observe ``feedback`` after this call.
        """
        took = max(0, self._reading() - granted)
        if throttled:
            pause = None if feedback is None else feedback.pause
            self._throttled(None, 0 if pause is None else duration_to_ns(pause, "heed(pause)"), took)
        else:
            self._succeeded(took)

    def _begin(self) -> None:
        self._node.tree.change(partial(changes.move_rate, self._node, self._search.applied))

    def _succeeded(self, took: int | None) -> None:
        self._node.tree.change(partial(self._on_success, took))

    def _on_success(self, took: int | None) -> None:
        now, took = self._search.instant(self._node, took)
        self._search.finder.succeeded(now, took)
        self._apply()

    def _throttled(self, feedback: Feedback | None, pause: int, took: int | None) -> None:
        self._node.tree.change(partial(self._on_refusal, feedback, pause, took))

    def _on_refusal(self, feedback: Feedback | None, pause: int, took: int | None) -> None:
        now, took = self._search.instant(self._node, took)
        self._search.finder.throttled(now, took, min(pause, _LONGEST))
        if feedback is not None:
            changes.observe(self._node, feedback, 0)
        self._apply()

    def _apply(self) -> None:
        search, node = self._search, self._node
        rate = search.changed(node.scheduler.rate)
        if rate is not None:
            changes.move_rate(node, rate)
        settled = search.news()
        if settled is not None:
            node.tell(Event("rate", node.name, rate=settled))

    def __repr__(self) -> str:
        search = self._search
        return f"<AdaptiveRate {self.rate}, {search.lowest} to {search.highest}, of {self._limiter!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an AdaptiveRate cannot be copied or pickled: it belongs to one limiter. Share it, or create another.")


def adaptive_of(limiter: Limiter) -> AdaptiveRate | None:
    """Return the AdaptiveRate that moves a limiter's rate; None if there is none. For a key, ``adaptive_of(keyed[key])``."""
    if not isinstance(limiter, Limiter):
        raise TypeError(f"adaptive_of() takes a Limiter, not {kind_of(limiter)}. For a KeyedLimiter, write adaptive_of(keyed[key]).")
    search = _SEARCHES.get(limiter) if _SEARCHES else None
    if search is None:
        return None
    found = search.found_by()
    if found is None:  # a KeyedLimiter keeps the limiter only
        found = object.__new__(AdaptiveRate)
        found._limiter, found._search = limiter, search
        search.found_by = ref(found)
    return found


class _Search:
    """What is known of one limiter's rate. Holds no limiter, which would never be freed then."""

    __slots__ = ("_begun", "_edge", "_gap", "_last", "_offset", "_period", "_told", "applied", "finder", "found_by", "highest", "lowest")
    found_by: ref[AdaptiveRate]

    def __init__(self, limiter: Limiter, lowest: Rate, highest: Rate, refused: float) -> None:
        self.lowest, self.highest = lowest, highest
        rate = lowest if limiter.rate.slower_than(lowest) else highest if highest.slower_than(limiter.rate) else limiter.rate
        self._period = limiter.rate.period_ns if isinstance(limiter.scheduler, Window) else 0
        if self._period:
            self._check_whole(rate)
        self.finder = Finder(rate.per_second, lowest.per_second, highest.per_second, refused)
        self.applied = self._told = rate if not self._period else self._rounded(rate.per_second)
        self._last = self._edge = self._begun = limiter._node.tree.run(limiter._node.look_now)
        self._offset, self._gap = limiter._node.offset, 0

    def _check_whole(self, rate: Rate) -> None:
        # A window counts whole permits in its period.
        least, most = -(-self.lowest.permits * self._period // self.lowest.period_ns), self.highest.permits_in(self._period)
        if least > most:
            raise ValueError(
                f"AdaptiveRate(): the limiter's window of {ns_to_seconds(self._period):g} s counts whole permits, and there is no such rate"
                f" from {self.lowest} to {self.highest}. Use a wider range, or another strategy."
            )
        self.lowest, self.highest = Rate.exactly(least, self._period), Rate.exactly(most, self._period)

    def instant(self, node: Node, took: int | None) -> tuple[int, int | None]:
        """The limiter's time, which stands still in a pause, and how much of it went by since the grant ``took`` ns ago."""
        now = node.look_now()
        if node.offset != self._offset:
            self._edge, self._gap, self._offset = self._last, node.offset - self._offset, node.offset
            self.finder.paused(self._gap)
        elif node.held_at is None:
            self.finder.paused(0)
        self._last = now
        if took is None:
            return now, None
        return now, now - self._granted(now, node, took)

    def _granted(self, now: int, node: Node, took: int) -> int:
        # No grant was before the search began, whatever a clock or a caller says.
        at = max(self._begun, now + node.held_for - took)
        if at < self._edge:  # before the latest pause
            at = min(self._edge, at + self._gap)
        return min(at, now)

    def changed(self, present: Rate) -> Rate | None:
        """The rate to set, if it is another one than at present."""
        self.applied = self._rounded(self.finder.rate)
        return None if self.applied == present else self.applied

    def news(self) -> Rate | None:
        """The rate that was settled on, if it has changed by more than 10 % since it was last told."""
        settled = self.finder.settled
        if settled is None or abs(settled - self._told.per_second) <= _WORTH_AN_EVENT * self._told.per_second:
            return None
        self._told = self._rounded(settled)
        return self._told

    def _rounded(self, per_second: float) -> Rate:
        """The rate rounded down to what the strategy takes, within the range."""
        if self._period:
            rate = Rate.exactly(max(1, int(per_second * self._period / NS_PER_SECOND + 1e-9)), self._period)
        else:
            seconds = 1
            while per_second * seconds < _DIGITS and seconds < _MOST_SECONDS:
                seconds *= 10
            permits = max(1, int(per_second * seconds + 1e-9))
            common = gcd(permits, seconds)
            rate = Rate.exactly(permits // common, seconds // common * NS_PER_SECOND)
        if not self.lowest.slower_than(rate):
            return self.lowest
        return rate if rate.slower_than(self.highest) else self.highest


_SEARCHES: WeakKeyDictionary[Limiter, _Search] = WeakKeyDictionary()


def _check_limiter(limiter: object) -> None:
    if not isinstance(limiter, Limiter):
        raise TypeError(f"AdaptiveRate() takes a Limiter, not {kind_of(limiter)}: AdaptiveRate(Limiter('10/s'), '1/s', '100/s').")
    if limiter._node.provider.state != "local":
        raise ValueError(
            "AdaptiveRate(): processes share the rate of a RedisLimiter, and each would move it by what it alone hears. Give each process"
            " an AdaptiveRate over a Limiter: those of one server find their shares."
        )
    if limiter.scheduler.members:
        raise ValueError(
            "AdaptiveRate(): the limiter has several rates, and only one can be moved. Use a Limiter of one rate, and keep the others in"
            " a limit that it shares: KeyedLimiter(lambda key: adaptive, shared=Limiter(...))."
        )
    if limiter in _SEARCHES:
        raise ValueError("AdaptiveRate(): the limiter has an AdaptiveRate already: aiorate.adaptive.adaptive_of(limiter) returns it.")


def _rate(what: str, rate: Rate | str | Number) -> Rate:
    try:
        return Rate.of(rate)
    except TypeError:
        raise TypeError(
            f"AdaptiveRate({what}) must be a rate, such as '1/s', a number per second or a Rate, not {kind_of(rate)}."
        ) from None
    except ValueError as error:
        raise ValueError(f"AdaptiveRate({what}): {error}") from None
