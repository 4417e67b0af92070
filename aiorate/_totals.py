"""Totals: what a limiter has granted and refused since it was made, for meters that are read from any thread.

Reads plain numbers and decides nothing, so it neither waits nor moves a limiter to another event loop, as `statistics()` may. A number
that changes meanwhile may be read before or after the change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorate._schedulers.amounts import Amounts, count_of

if TYPE_CHECKING:
    from aiorate._tree.limit import Limit

__all__ = ["Totals", "totals_of"]


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


def totals_of(node: Limit, dimensions: tuple[str, ...] = (), places: Limit | None = None) -> Totals:
    """The totals of one limiter, or of a budget of these dimensions. ``places`` is the line of requests that wait for a place."""
    watch, counters = node.watch, node.counters
    past = None if watch is None else watch.past  # first: what is added to it was taken off the counters before
    kept = node.granted - counters.given_back
    granted: dict[str | None, int] = {None: count_of(kept)}
    if dimensions:
        amounts = kept.of if isinstance(kept, Amounts) else (0,) * len(dimensions)
        granted = dict(zip(dimensions, amounts, strict=False))
    waiting = max(len(node.queue.line), 0) + (0 if places is None else max(len(places.queue.line), 0))
    now = Totals(granted, counters.refused, waiting)
    return now if past is None else past + now
