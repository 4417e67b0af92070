"""Watch: the callbacks that are told of requests that waited, and the counts that a reset or an eviction takes off a limiter.

A limiter has one only once it is watched. Imported when used. Knows nothing of rates or of loops.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate._rate import ns_to_seconds
from aiorate._totals import Totals, totals_of
from aiorate._waited import Waited

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.limit import Limit
    from aiorate._tree.refusals import Refusals

    OnWait = Callable[[Waited], object]

__all__ = ["Watch", "join", "watch_of"]


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

    def counted(self, node: Limit) -> Totals:
        """What it has counted until now, before its counters are cleared."""
        return totals_of(node).past

    def tell(self, node: Limit, waited: int, permits: Permits, refusals: Refusals, limited_by: str | None) -> None:
        """Call the callbacks, unless the request waited for 0 ns. Their exceptions are logged and go no further."""
        callbacks, name = list(self.callbacks.values()), node.name
        if self.group is not None:
            callbacks += list(self.group.callbacks.values())
            name = self.group.name or name
        if not waited or not callbacks:
            return
        told = Waited(ns_to_seconds(waited), refusals.amounts(permits), name, self.key, limited_by)
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


def watch_of(*nodes: Limit) -> Watch:
    """The watch of a limiter, made if there is none; of its places too, for those that wait there."""
    watch = nodes[0].watch or Watch()
    for node in nodes:
        node.watch = node.watch or watch
    return watch


def join(group: Watch, key: object, *nodes: Limit | None) -> None:
    """Have the callbacks of the group told of the member with that key, too."""
    watch = watch_of(*[node for node in nodes if node is not None])
    watch.group, watch.key = group, key
