"""Watch: the callbacks that are told of requests that waited, and the counts that a reset or an eviction takes off a limiter.

A limiter has one only once it is watched. Imported when used. Knows nothing of rates or of loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from aiorate._events import Waited
from aiorate._rate import ns_to_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._schedulers.amounts import Permits

    OnWait = Callable[[Waited], object]


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since a limiter was made, whatever was reset or evicted while it was watched."""

    granted: dict[str | None, int]
    """Permits granted and kept; of a budget the amounts reserved, by dimension."""
    refused: int
    """Requests refused."""
    waiting: int
    """Requests in line now, for a place too."""

    @property
    def past(self) -> Totals:
        """What stays of it once nobody waits: the counts."""
        return Totals(self.granted, self.refused, 0)

    def __add__(self, other: Totals) -> Totals:
        granted = dict(self.granted)
        for dimension, permits in other.granted.items():
            granted[dimension] = granted.get(dimension, 0) + permits
        return Totals(granted, self.refused + other.refused, self.waiting + other.waiting)


_NOTHING = Totals({}, 0, 0)  # the same for all keys


class Watch:
    """Of one limiter, or of a whole group such as a `KeyedLimiter`: then each member has one too, with the ``group`` and its ``key``."""

    __slots__ = ("callbacks", "group", "key", "name", "past", "pause_ended")

    def __init__(self, name: str | None = None) -> None:
        self.name: str | None = name
        self.callbacks: dict[object, OnWait] = {}
        self.group: Watch | None = None
        self.key: object = None
        self.past: Totals = _NOTHING
        """What was counted before the counters were cleared, and by members that are gone."""
        self.pause_ended: int | None = None
        """The instant at which time stood still in the last pause or stop."""

    def add(self, callback: OnWait) -> Callable[[], None]:
        """Call it for each request that waited. Returns a function that ends that; called again, it does nothing."""
        mine = object()
        self.callbacks[mine] = callback
        return partial(self._remove, mine)

    def _remove(self, mine: object) -> None:
        self.callbacks.pop(mine, None)

    def cleared(self, granted: int, refused: int) -> None:
        """Counters that had these numbers begin again at 0."""
        self.past += Totals({None: granted}, refused, 0)

    def tell(self, name: str | None, waited: int, permits: Permits, limited_by: str | None) -> None:
        """Call the callbacks, unless the request waited for 0 ns. Their exceptions are logged and go no further."""
        callbacks = list(self.callbacks.values())
        if self.group is not None:
            callbacks += list(self.group.callbacks.values())
            name = self.group.name or name
        if not waited or not callbacks:
            return
        if isinstance(permits, int):
            told = Waited(ns_to_seconds(waited), permits, name, self.key, limited_by)
        else:
            told = Waited(ns_to_seconds(waited), permits.by_name(), name, self.key, permits.waited_for or limited_by)
        for callback in callbacks:
            try:
                callback(told)
            except Exception:
                import logging

                logging.getLogger("aiorate").exception("on_wait failed for %s", told)

    def paused(self, at: int, since: int) -> str | None:
        """``"pause"`` for a request in line since that instant, if it was due when time stood still in the pause that ended last."""
        ended = self.pause_ended
        return "pause" if ended is not None and at <= ended and since <= ended else None


class Watched(Protocol):
    """What can be watched."""

    watch: Watch | None


def watch_of(*nodes: Watched) -> Watch:
    """The watch of a limiter, made if there is none; of its places too, for those that wait there."""
    watch = nodes[0].watch or Watch()
    for node in nodes:
        node.watch = node.watch or watch
    return watch


def join(group: Watch, key: object, *nodes: Watched | None) -> None:
    """Have the callbacks of the group told of the member with that key, too."""
    watch = watch_of(*[node for node in nodes if node is not None])
    watch.group, watch.key = group, key
