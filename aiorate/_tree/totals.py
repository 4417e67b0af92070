"""Totals: what a limiter has granted and refused since it was made, for meters that are read from any thread.

Reads plain numbers and decides nothing, so it neither waits nor moves a limiter to another event loop, as `statistics()` may. A number
that changes meanwhile may be read before or after the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._schedulers.amounts import Amounts, count_of
from aiorate._tree.watch import Totals

if TYPE_CHECKING:
    from aiorate._tree.limit import Limit

__all__ = ["totals_of"]


def totals_of(node: Limit, dimensions: tuple[str, ...] = (), places: Limit | None = None) -> Totals:
    """The totals of one limiter, or of a budget of these dimensions. ``places`` is the line of requests that wait for a place."""
    watch, counters = node.watch, node.counters
    past = None if watch is None else watch.past  # first: what is added to it was taken off the counters before
    kept = node.granted - counters.given_back
    granted: dict[str | None, int] = {None: count_of(kept)}
    if dimensions:
        amounts = kept.of if isinstance(kept, Amounts) else (0,) * len(dimensions)
        granted = dict(zip(dimensions, amounts, strict=False))
    waiting = max(len(node.line), 0) + (0 if places is None else max(len(places.line), 0))
    now = Totals(granted, counters.refused, waiting)
    return now if past is None else past + now
