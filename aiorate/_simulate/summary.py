"""What came of a run, in figures: waits, refusals, the fullest windows. Pure arithmetic on whole nanoseconds."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING

from aiorate._simulate.play import REFUSED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._simulate.arrivals import Arrivals

__all__ = ["Summary", "fullest_window", "grants", "percentile_of_sorted", "summarise"]


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


def summarise(arrivals: Arrivals, waits: array[int], granted_at: array[int], window: int) -> Summary:
    """The figures of a run. With keys, a window counts the requests of one key."""
    instants, keys = arrivals.instants, arrivals.keys
    ordered = sorted(waits)
    refused = bisect_left(ordered, 0)
    at_once = bisect_left(ordered, 1) - refused
    granted = len(ordered) - refused
    if keys is None:
        windows = fullest_window(instants, window), fullest_window(granted_at, window)
        clients = delayed = lost = None
    else:
        arrived, passed = _by_key(keys, instants, instants, waits=None), _by_key(keys, instants, waits, waits=waits)
        windows = _fullest_of(arrived, window), _fullest_of(passed, window)
        clients = len(arrived)
        delayed = len({key for key, wait in zip(keys, waits, strict=True) if wait})
        lost = len({key for key, wait in zip(keys, waits, strict=True) if wait == REFUSED}) if refused else 0
    p50, p90, p99, longest = (percentile_of_sorted(ordered, percent, refused) for percent in (50, 90, 99, 100))
    mean = (sum(ordered) + refused) / granted if granted else 0.0  # each refused one counted as -1
    return Summary(len(ordered), granted, at_once, refused, p50, p90, p99, longest, mean, window, *windows, clients, delayed, lost)


def percentile_of_sorted(ordered: Sequence[int], percent: float, begin: int = 0) -> int:
    """The least value that at least ``percent`` % of the values from ``begin`` on do not exceed (nearest rank); 0 without values."""
    count = len(ordered) - begin
    if not count:
        return 0
    return ordered[begin + max(0, -int(-count * percent // 100) - 1)]


def grants(instants: array[int], waits: array[int]) -> array[int]:
    """The instants of the grants, in order of arrival."""
    if min(waits) >= 0:
        return array("q", map(add, instants, waits))
    return array("q", [made + wait for made, wait in zip(instants, waits, strict=True) if wait >= 0])


def fullest_window(instants: Sequence[int], window: int) -> int:
    """The most instants, of a sorted sequence, in any half-open window of that length (ns)."""
    most = 0
    # The window with the most instants moves along, and grows where another instant fits in.
    for end, instant in enumerate(instants):
        if instant - instants[end - most] < window:
            most += 1
    return most


def _by_key(keys: array[int], instants: array[int], like: array[int], waits: array[int] | None) -> dict[int, array[int]]:
    """The instants of each key: arrivals or, with ``waits``, grants."""
    found: dict[int, array[int]] = {}
    for key, made, wait in zip(keys, instants, like, strict=True):
        if waits is None or wait >= 0:
            mine = found.get(key)
            if mine is None:
                mine = found[key] = array("q")
            mine.append(made if waits is None else made + wait)
    return found


def _fullest_of(found: dict[int, array[int]], window: int) -> int:
    return max((fullest_window(instants, window) for instants in found.values()), default=0)
