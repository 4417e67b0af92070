"""Watch: the callbacks that are told of requests that waited. A limiter has one only once it is watched."""

from __future__ import annotations

from dataclasses import replace
from logging import getLogger
from typing import TYPE_CHECKING

from aiorate._events import Waited
from aiorate._rate import ns_to_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._schedulers.amounts import Permits

    OnWait = Callable[[Waited], object]


class Watch:
    """Of one limiter, or of all keys: then it is told by a callback of each key's own."""

    __slots__ = ("callbacks", "pause_ended")

    def __init__(self) -> None:
        self.callbacks: dict[object, OnWait] = {}
        self.pause_ended: int | None = None  # the instant at which time stood still in the last pause or stop

    def add(self, callback: OnWait) -> Callable[[], None]:
        """Call it for each request that waited, until the function that this returns is called."""
        mine = object()
        self.callbacks[mine] = callback

        def end() -> None:
            self.callbacks.pop(mine, None)

        return end

    def tell(self, name: str | None, waited: int, permits: Permits, limited_by: str | None) -> None:
        """Call the callbacks, unless the request waited for 0 ns."""
        if waited and self.callbacks:
            amounts, place = (permits, None) if isinstance(permits, int) else (permits.by_name(), permits.waited_for)
            self._call(Waited(ns_to_seconds(waited), amounts, name, None, place or limited_by))

    def tell_of(self, key: object, name: str | None, told: Waited) -> None:
        """A request for that key of a KeyedLimiter of that name waited."""
        self._call(replace(told, name=name or told.name, key=key))

    def _call(self, told: Waited) -> None:
        for callback in list(self.callbacks.values()):
            try:
                callback(told)
            except Exception:
                getLogger("aiorate").exception("on_wait failed for %s", told)

    def paused(self, at: int, since: int) -> str | None:
        """``"pause"`` for a request in line since that instant, if it was due when time stood still in the pause that ended last."""
        ended = self.pause_ended
        return "pause" if ended is not None and at <= ended and since <= ended else None
