"""The batch: grants that an earlier reading of the clock already proves, handed out by counting down.

A permit that is available stays available until it is taken. So while calls come fast, the clock is read and the scheduler is asked
once for many of them: at a million permits a second a call takes 110 ns instead of 350 ns, and 100 workers need half a core.

Permits handed out are booked as taken at the next reading, at the end of the loop's iteration at the latest. A booking is never earlier
than the grant, so the scheduler never has more to give than it should, and its bound holds. It may have less, by the time that would
have flowed into a full pool since; so no batch is worth more than 200 us, unless the strategy makes up for everything.

Nothing else depends on the batch: it can be left out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate.schedulers.interface import Scheduler
from aiorate.waiting.loops import running_loop

if TYPE_CHECKING:
    from aiorate.waiting.dispatcher import Dispatcher

__all__ = ["PORTION", "PORTION_NS", "Batch", "settle_soon"]

_FAST_CALL_NS = 2_000  # calls no further apart are worth a batch
_WORTH_NS = 200_000
_MOST = 256
PORTION = 64  # permits handed out without reading the clock: as many slow bodies may run before the first slow call is seen
PORTION_NS = PORTION * _FAST_CALL_NS


class Batch:
    """A number of permits, doubled while calls come fast."""

    __slots__ = ("_most", "_opened_at", "_size", "dry", "good_until", "opened", "remaining", "rest", "settling", "worthwhile")

    def __init__(self, scheduler: Scheduler) -> None:
        self.remaining: int = 0
        """Permits that may be handed out by counting down, without reading the clock."""
        self.rest: int = 0
        """Those that may follow in portions of `PORTION`, while calls stay fast: each before `good_until`."""
        self.good_until: int = 0
        """The instant by which fast calls have used up a portion."""
        self.opened: int = 0
        """Permits it was opened with; 0: none is open."""
        self.dry: bool = False
        """Whether it took everything that was available."""
        self.worthwhile: bool = False
        """Whether permits ever come fast enough for one."""
        self.settling: bool = False
        """Whether the next iteration of the loop will settle it."""
        self._opened_at = 0
        self._size = 1
        self.measure(scheduler)

    def measure(self, scheduler: Scheduler) -> None:
        """Adapt to the rate."""
        if type(scheduler).stock is Scheduler.stock:
            self._most = 0
        else:
            self._most = _MOST if scheduler.makes_up else min(scheduler.rate.permits_in(_WORTH_NS), _MOST)
        self.worthwhile = self._most > 1

    def open(self, scheduler: Scheduler, now: int) -> bool:
        """Take stock, unless calls are slow. True if permits may be handed out until `settle`."""
        size = min(2 * self._size, self._most) if now - self._opened_at < _FAST_CALL_NS * self._size else 1
        self._size, self._opened_at = size, now
        self.dry = False
        if size > 1:
            ready = scheduler.stock(now)
            self.dry = ready < size
            opened = min(ready, size)
            self.remaining = min(opened, PORTION)
            self.rest = (opened - self.remaining) // PORTION * PORTION
            self.opened = self.remaining + self.rest
            self.good_until = now + PORTION_NS
        return self.opened > 0

    def outstayed(self, now: int) -> bool:
        """Whether callers this fast had everything there was just now.

        There is a rate, one permit for each call's worth of time, at which every call finds the next permit just fallen due. They
        would take them one by one, at all of a core; in line they are served by the hundred, and the loop sleeps in between.
        """
        return self.dry and now - self._opened_at < _WORTH_NS

    def settle(self, scheduler: Scheduler, now: int, since: int | None = None) -> int:
        """Close it: book what was handed out as taken now; returns how much that was."""
        used = self.opened - self.remaining - self.rest
        self.remaining = self.rest = self.opened = 0
        if used:
            # Not before it was opened: a clock that went back would have it refused, and the permits would be free.
            scheduler.take(used, max(now, self._opened_at), since)
        return used


def settle_soon(dispatcher: Dispatcher) -> None:
    """Have the next iteration of the loop settle the batch that was opened."""
    batch, loop = dispatcher.batch, dispatcher.loop
    if not batch.settling and loop is not None:
        batch.settling = True
        loop.call_soon(partial(_on_iteration, dispatcher))


def _on_iteration(dispatcher: Dispatcher) -> None:
    batch, loop = dispatcher.batch, dispatcher.loop
    batch.settling = False
    if batch.opened and loop is not None and running_loop() is loop.native:
        dispatcher.settle(dispatcher.timeline.now())
        dispatcher.update_fast_path()
