"""What a server tells of a limiter: its policies, which rarely change, and how each stands now."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, isfinite
from operator import is_
from typing import TYPE_CHECKING, NamedTuple

from aiorate._rate import NS_PER_SECOND, ceil_div
from aiorate._schedulers.interface import NOBODY_KNOWS
from aiorate.asgi._fields import MOST, names_of, quoted, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiorate._limiter import Limiter
    from aiorate._meter import Meter
    from aiorate._rate import Rate
    from aiorate._schedulers.interface import Scheduler
    from aiorate._tree.node import Node

    Field = tuple[bytes, bytes]

__all__ = ["Policies", "Refusal"]

_POLICY, _LIMIT = b"ratelimit-policy", b"ratelimit"
_CONCURRENT = "concurrent-requests"  # a unit of draft 11, beside requests and content-bytes
_UNKNOWN = NOBODY_KNOWS >> 1  # no wait is that long
_REMEMBERED = 256  # different limits: those of all keys are mostly the same


class Refusal(NamedTuple):
    """How the policies stand after a refused request."""

    fields: list[Field]
    """The two header fields."""
    violated: tuple[str, ...]
    """The names of the policies with nothing left; of all, if each has something now."""
    seconds: int
    """Until these have something; 1 if that is unknown."""


class _Written(NamedTuple):
    """What does not change from one answer to the next."""

    policy: Field
    """The field RateLimit-Policy."""
    names: tuple[str, ...]
    """One for each quota, and one for the places at the end, if there are any."""
    starts: list[str]
    """The beginning of what RateLimit says of each."""
    windows: list[int]
    """The seconds of each quota."""


class Policies:
    """The policies of one limiter: its own, those of limits that it shares, and its places. They do not keep the limiter alive."""

    __slots__ = (
        "_meter",
        "_name",
        "_names",
        "_node",
        "_only",
        "_places",
        "_policy",
        "_rate",
        "_rates",
        "_size",
        "_start",
        "_starts",
        "_windows",
        "grab",
    )

    def __init__(self, limiter: Limiter, name: str) -> None:
        self._node: Node = limiter._node
        self._meter: Meter = limiter._node.meter
        self._places: Node | None = limiter._places
        self._size: int | None = None if self._places is None else self._places.scheduler.size  # type: ignore[attr-defined]  # Places
        self.grab: Callable[[], bool] | None = self._meter.grab if not limiter._all_places else None
        """Takes a permit that lies ready, or does nothing; None: a request that is let through must hold a place."""
        self._name = name
        self._describe()

    def _describe(self) -> None:
        """Write the policies for the rates in force."""
        quotas: list[tuple[str, int, Rate]] = []
        for level in self._levels():
            name = self._name if level is self._node else level.name or "shared"
            quotas += [(name, most, rate) for most, rate in level.scheduler._quotas()]
        written = _write(tuple(quotas), self._size)
        self._policy, self._names, self._starts, self._windows = written
        self._rates: tuple[Rate, ...] = self._rates_now()
        # The usual limiter has one quota, and what its answers need is at hand.
        self._only: Scheduler | None = _leaves(self._node.scheduler)[0] if len(quotas) == 1 and self._places is None else None
        self._rate: Rate = self._rates[0]
        self._start: str = self._starts[0]

    def _levels(self) -> list[Node]:
        """The limiter's own node, and those of the limits that it shares. Not kept: there may be very many keys."""
        levels = [self._node]
        while levels[-1].above is not None:
            levels.append(levels[-1].above)
        return levels

    def _rates_now(self) -> tuple[Rate, ...]:
        return tuple([leaf.rate for level in self._levels() for leaf in _leaves(level.scheduler)])

    def add(self, headers: Iterable[Field], limiter: Limiter) -> list[Field]:
        """The headers, and after them the two fields as things stand now."""
        only, meter = self._only, self._meter
        # An open meter says that nothing holds requests up, and that no other limit is to be asked. The usual answer, in half the time.
        if meter.until and only is not None and only.rate is self._rate:
            now = meter.read() - meter.offset
            ((left, at),) = only._standings(now)
            wait = at - now
            if 0 < wait <= NS_PER_SECOND and left <= MOST:
                return [*headers, self._policy, (_LIMIT, f"{self._start}{left};t=1".encode("ascii"))]
            if wait < _UNKNOWN and left <= MOST:
                seconds = self._windows[0] if wait <= 0 else seconds_of(wait)
                return [*headers, self._policy, (_LIMIT, f"{self._start}{left};t={seconds}".encode("ascii"))]
        told = self._told(self._left(limiter))  # first: a rate may have changed
        return [*headers, self._policy, (_LIMIT, told)]

    def refusal(self, limiter: Limiter) -> Refusal:
        """The two fields, and what a refused client is told besides."""
        only, meter = self._only, self._meter
        if meter.until and only is not None and only.rate is self._rate:  # as in `add`
            now = meter.read() - meter.offset
            ((count, at),) = only._standings(now)
            if not count and now < at < now + _UNKNOWN:
                seconds = seconds_of(at - now)
                return Refusal([self._policy, (_LIMIT, f"{self._start}0;t={seconds}".encode("ascii"))], self._names, seconds)
        left, names = self._left(limiter), self._names
        violated = [index for index, (count, _) in enumerate(left) if not count]
        seconds = max([left[index][1] for index in violated], default=1) or 1
        names = names if len(violated) == len(names) else tuple([names[index] for index in violated]) or names
        return Refusal([self._policy, (_LIMIT, self._told(left))], names, seconds)

    def _told(self, left: list[tuple[int, int]]) -> bytes:
        told = [
            f"{start}{min(count, MOST)};t={seconds}" if seconds else f"{start}{min(count, MOST)}"
            for start, (count, seconds) in zip(self._starts, left, strict=True)
        ]
        return ", ".join(told).encode("ascii")

    def _left(self, limiter: Limiter) -> list[tuple[int, int]]:
        """What each policy has left, and the seconds until it has more; 0: that is unknown."""
        if not all(map(is_, self._rates_now(), self._rates)):
            self._describe()
        found = self._node.tree.run(self._read)
        left: list[tuple[int, int]] = []
        for window, (count, wait) in zip(self._windows, found, strict=False):
            if wait is None:  # a line, or a pause
                delay = limiter.delay()
                left.append((0, min(ceil(delay), MOST) or 1 if isfinite(delay) else 0))
            elif wait >= _UNKNOWN:
                left.append((count, 0))
            else:
                left.append((count, window if wait <= 0 else seconds_of(wait)))
        return left + [(count, 0) for count, _ in found[len(left) :]]

    def _read(self) -> list[tuple[int, int | None]]:
        """What each policy has left, and the nanoseconds until it has more; None: it is held up, and the limiter says how long."""
        found: list[tuple[int, int | None]] = []
        for level in self._levels():
            now = level.now()  # which ends a pause that is over
            if level.is_held:
                found += [(0, None)] * len(level.scheduler._quotas())
            else:
                found += [(left, at - now) for left, at in level.permitted._standings(now)]
        if self._places is not None:
            found.append((0 if self._places.line.is_waited_in or self._places.closed else self._places.scheduler.available(0), 0))
        return found


def _leaves(scheduler: Scheduler) -> list[Scheduler]:
    return [leaf for member in scheduler.members for leaf in _leaves(member)] or [scheduler]


@lru_cache(_REMEMBERED)
def _write(quotas: tuple[tuple[str, int, Rate], ...], places: int | None) -> _Written:
    titles = [title for title, _, _ in quotas] + ([] if places is None else [f"{quotas[0][0]}-concurrent"])
    names = names_of(titles)
    shown = [quoted(name) for name in names]
    windows = [seconds_of(ceil_div(most * rate.period_ns, rate.permits)) for _, most, rate in quotas]
    policies = [f"{name};q={min(most, MOST)};w={window}" for name, (_, most, _), window in zip(shown, quotas, windows, strict=False)]
    if places is not None:
        policies.append(f'{shown[-1]};q={min(places, MOST)};qu="{_CONCURRENT}"')
    return _Written((_POLICY, ", ".join(policies).encode("ascii")), tuple(names), [f"{name};r=" for name in shown], windows)
