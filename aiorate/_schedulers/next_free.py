"""The next free slot of each of several rates: GCRA, in whole ticks.

One integer for each rate. A nanosecond has ``rate.permits`` ticks and a permit lasts ``rate.period_ns`` of them, so nothing is
rounded. Knows nothing of clocks, stores or waiters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._rate import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Rate

__all__ = ["NextFree"]


class NextFree:
    """When a number of permits would be due, if nobody else took any.

    A slot lies idle for at most ``burst - 1`` intervals of its rate, and all rates have to allow a request. A request for more permits
    than the burst is due when the burst is there, and those after it wait for the rest.

    ``nexts`` are instants (ns) of the next free slots; None: nothing was ever taken.
    """

    __slots__ = ("_bursts", "_next", "_rates", "not_before")

    def __init__(self, rates: Sequence[Rate], bursts: Sequence[int], nexts: Sequence[int] | None = None) -> None:
        self._rates: list[Rate] = list(rates)
        self._bursts: list[int] = list(bursts)
        self._next: list[int | None] = [None] * len(self._rates)
        self.not_before: int | None = None
        """The instant (ns) before which nothing is due; None: no such instant."""
        if nexts is not None:
            self.follow(nexts)

    def follow(self, nexts: Sequence[int]) -> None:
        """Set the next free slots to these instants (ns)."""
        self._next = [instant * rate.permits for instant, rate in zip(nexts, self._rates, strict=True)]

    def at(self, permits: int, now: int) -> int:
        """When ``permits`` are due: ``now`` or earlier if at once."""
        at = now if self.not_before is None else max(now, self.not_before)
        for index, rate in enumerate(self._rates):
            slot = self._from(index, now) + (min(permits, self._bursts[index]) - 1) * rate.period_ns
            at = max(at, ceil_div(slot, rate.permits))
        return at

    def last_slot(self, permits: int, now: int) -> int:
        """When the last of ``permits`` slots is, if they are assigned now."""
        at = now
        for index, rate in enumerate(self._rates):
            slot = self._from(index, now) + (permits - 1) * rate.period_ns
            at = max(at, ceil_div(slot, rate.permits))
        return at

    def standing(self, index: int, now: int) -> tuple[int, int]:
        """How many slots of one rate are free at ``now``, and when there is one more; ``now`` if all are."""
        rate, burst, slot = self._rates[index], self._bursts[index], self._from(index, now)
        if self.not_before is not None and now < self.not_before:
            return 0, self.not_before
        free = max((now * rate.permits - slot) // rate.period_ns + 1, 0)
        return (burst, now) if free >= burst else (free, ceil_div(slot + free * rate.period_ns, rate.permits))

    def spend(self, permits: int, now: int) -> None:
        """Take them, due or not."""
        for index, rate in enumerate(self._rates):
            self._next[index] = self._from(index, now) + permits * rate.period_ns

    def set_rate(self, index: int, rate: Rate) -> None:
        """Change one of the rates; permits taken so far stay taken until the same instant."""
        old, slot = self._rates[index], self._next[index]
        self._rates[index] = rate
        if slot is not None and rate != old:
            self._next[index] = ceil_div(slot * rate.permits, old.permits)

    def shift(self, ns: int) -> None:
        """Move all instants ``ns`` earlier."""
        self._next = [None if slot is None else slot - ns * rate.permits for slot, rate in zip(self._next, self._rates, strict=True)]
        if self.not_before is not None:
            self.not_before -= ns

    def _idle(self, index: int, now: int) -> int:
        """The earliest slot that a new one has at ``now``, in ticks."""
        rate = self._rates[index]
        return now * rate.permits - (self._bursts[index] - 1) * rate.period_ns

    def _from(self, index: int, now: int) -> int:
        slot, idle = self._next[index], self._idle(index, now)
        # A slot that is due within a nanosecond is on time: rounded up at each grant, it would drift.
        return idle if slot is None or slot <= idle - self._rates[index].permits else slot
