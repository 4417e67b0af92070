"""What came of a run, in figures: waits, refusals, the fullest windows. Pure arithmetic on whole nanoseconds."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING

from aiorate._demo.verdict import percentile_of_sorted, worst_window
from aiorate._simulate.play import REFUSED

if TYPE_CHECKING:
    from aiorate._simulate.arrivals import Arrivals

__all__ = ["Summary", "grants", "summarise"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of requests, and waits in ns of those that were granted."""

    requests: int
    granted: int
    at_once: int
    """Granted without a wait."""
    refused: int
    p50: int
    p90: int
    p99: int
    longest: int
    mean: float
    window: int
    """The length of the windows, in ns: the period of the rate."""
    arrived_in_window: int
    """The most requests that arrived in any such window."""
    granted_in_window: int
    """The most that were granted in any such window."""
    clients: int | None
    """With keys: how many there are."""
    clients_delayed: int | None
    """How many of them had a request that waited or was refused."""
    clients_refused: int | None
    """How many of them had a request that was refused."""


def summarise(arrivals: Arrivals, waits: array[int], window: int) -> Summary:
    """The figures of a run. With keys, a window counts the requests of one key."""
    instants = arrivals.instants
    ordered = sorted(waits)
    refused = bisect_left(ordered, 0)
    at_once = bisect_left(ordered, 1) - refused
    granted = len(ordered) - refused
    arrived_in_window = granted_in_window = 0
    clients = delayed = lost = None if arrivals.ends is None else 0
    for begin, end in arrivals.lines():
        made, waited = instants[begin:end], waits[begin:end]
        arrived_in_window = max(arrived_in_window, worst_window(made, window))
        granted_in_window = max(granted_in_window, worst_window(grants(made, waited), window))
        if clients is not None and delayed is not None and lost is not None:
            clients, delayed, lost = clients + 1, delayed + any(waited), lost + (REFUSED in waited)
    p50, p90, p99, longest = (percentile_of_sorted(ordered, percent, refused) for percent in (50, 90, 99, 100))
    mean = (sum(ordered) + refused) / granted if granted else 0.0  # each refused one counted as -1
    return Summary(
        len(ordered),
        granted,
        at_once,
        refused,
        p50,
        p90,
        p99,
        longest,
        mean,
        window,
        arrived_in_window,
        granted_in_window,
        clients,
        delayed,
        lost,
    )


def grants(instants: array[int], waits: array[int]) -> array[int]:
    """The instants of the grants, in the same order."""
    if min(waits) >= 0:
        return array("q", map(add, instants, waits))
    return array("q", [made + wait for made, wait in zip(instants, waits, strict=True) if wait >= 0])
