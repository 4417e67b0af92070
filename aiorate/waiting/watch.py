"""Watch: the callbacks that are told of requests that waited, and the counts that a reset or an eviction takes off a limiter.

A limiter has one only once it is watched. Imported when used. Knows nothing of rates or of loops.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate.rate import ns_to_seconds
from aiorate.totals import Totals, totals_of
from aiorate.waited import Waited
from aiorate.waiting.extras import Extras
from aiorate.waiting.line import outcome_of
from aiorate.waiting.receipts import Receipt

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.line import Ticket
    from aiorate.waiting.refusals import Refusals
    from aiorate.waiting.waiters import Waiters

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
        self.pause_ended: tuple[int, int] | None = None
        """The instant at which time stood still in the last pause or stop, and the reading at its end."""

    def add(self, callback: OnWait) -> Callable[[], None]:
        """Call it for each request that waited. Returns a function that ends that; called again, it does nothing."""
        mine = object()
        self.callbacks[mine] = callback
        return partial(self._remove, mine)

    def _remove(self, mine: object) -> None:
        self.callbacks.pop(mine, None)

    def counted(self, dispatcher: Dispatcher) -> Totals:
        """What it has counted until now, before its counters are cleared."""
        return totals_of(dispatcher).past

    def resume(
        self, dispatcher: Dispatcher, waiters: Waiters, ticket: Ticket, asked: int, permits: int, refusals: Refusals
    ) -> tuple[int, int, int]:
        """As `Dispatcher.resume`, and tell the callbacks, outside of the critical section and in the task or thread that waited."""
        limited_by = refusals.dimension(permits) or self._limited_by(dispatcher, ticket, asked)  # before the receipt forgets
        section, resume = waiters.loop.section, dispatcher.resume
        if section is None:
            answer = resume(waiters, ticket, asked, permits, refusals, True)
        else:
            answer = section.run(resume, waiters, ticket, asked, permits, refusals, True)
        self.tell(dispatcher, answer[0], permits, refusals, limited_by)
        return answer

    def tell(self, dispatcher: Dispatcher, waited: int, permits: int, refusals: Refusals, limited_by: str | None) -> None:
        """Call the callbacks, unless the request waited for 0 ns. Their exceptions are logged and go no further."""
        callbacks, name = list(self.callbacks.values()), dispatcher.notices.name
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

    def _limited_by(self, dispatcher: Dispatcher, ticket: Ticket, asked: int) -> str | None:
        """The last limit, of those that are shared, in whose line the request stood; otherwise the pause that ended last."""
        outcome = outcome_of(ticket)
        if outcome is None or isinstance(outcome, BaseException):
            return None
        at, receipt, _ = outcome
        name: str | None = None
        while isinstance(receipt, Receipt) and dispatcher.gate is not None:
            dispatcher = dispatcher.gate.shared
            if receipt.waiters is not None:
                name = dispatcher.notices.name or "shared"
            receipt = receipt.shared
        if name is None and self.pause_ended is not None and at <= self.pause_ended[0] and asked < self.pause_ended[1]:
            return "pause"  # it was due when time stood still
        return name


def watch_of(dispatcher: Dispatcher) -> Watch:
    """The watch of a limiter, made if there is none."""
    extras = dispatcher.extras
    if extras.watch is None:
        extras = dispatcher.extras = Extras(extras.clock, extras.precise, Watch())
    assert extras.watch is not None
    return extras.watch


def join(dispatcher: Dispatcher, group: Watch, key: object) -> None:
    """Have the callbacks of the group told of the member with that key, too."""
    watch = watch_of(dispatcher)
    watch.group, watch.key = group, key
