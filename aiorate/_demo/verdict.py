"""Whether the guarantee was kept: arithmetic on two lists of instants, the limiter's grants and the server's arrivals.

The guarantee is about grants: no window of length w holds more than ``bound(w)`` of them, to the nanosecond. The server sees each
request one transit later, and transits differ. If the k-th arrival comes between d and d + j after the k-th grant, the arrivals
in a window of w belong to grants in a window of w + j. So the server may see ``bound(w + j)`` arrivals in it, and never more
arrivals than grants in all. j, the jitter, is measured over the whole run. Knows nothing of HTTP, asyncio or terminals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Literal

__all__ = ["Verdict", "WindowCount", "jitter", "judge", "percentile", "percentile_of_sorted", "worst_window"]

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class WindowCount:
    """The fullest window of one length, in grants and in arrivals, with the most that is allowed there (None: no bound)."""

    window: int
    """Nanoseconds."""
    granted: int
    granted_at_most: int | None
    arrived: int
    arrived_at_most: int | None

    @property
    def kept(self) -> bool:
        """Whether neither grants nor arrivals exceed the most allowed."""
        return _within(self.granted, self.granted_at_most) and _within(self.arrived, self.arrived_at_most)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The results for all windows."""

    windows: tuple[WindowCount, ...]
    jitter: int
    """Nanoseconds between the shortest and the longest transit."""
    unpaid: int
    """Arrivals in excess of the grants: requests that went around the limiter."""

    @property
    def kept(self) -> bool:
        """Whether the guarantee was kept in every window, and every arrival had a grant."""
        return not self.unpaid and all(count.kept for count in self.windows)

    @property
    def bounded(self) -> bool:
        """Whether there was a guarantee to keep."""
        return any(count.granted_at_most is not None for count in self.windows)


def judge(bound: Callable[[int], int | None], grants: Iterable[int], arrivals: Iterable[int], windows: Iterable[int]) -> Verdict:
    """Compare all windows of each length (ns) with the guarantee. ``bound(window)`` is the most that a window (ns) may hold."""
    granted, arrived = sorted(grants), sorted(arrivals)
    spread = jitter(granted, arrived)
    counts = (WindowCount(w, worst_window(granted, w), bound(w), worst_window(arrived, w), bound(w + spread)) for w in sorted(set(windows)))
    return Verdict(tuple(counts), spread, max(0, len(arrived) - len(granted)))


def worst_window(instants: Sequence[int], window: int) -> int:
    """The most instants, of a sorted sequence, in any half-open window of that length. One pass.

    Only windows that end with an instant count, because any other window loses nothing if its end moves down to its last instant.
    """
    most = 0
    # The window with the most instants moves along, and grows where another instant fits in.
    for end, instant in enumerate(instants):
        if instant - instants[end - most] < window:
            most += 1
    return most


def jitter(grants: Sequence[int], arrivals: Sequence[int]) -> int:
    """Nanoseconds between the shortest and the longest transit. Both sequences are sorted; arrival k is paired with grant k.

    No other pairing has a smaller spread, so requests that overtake each other never widen it.
    """
    transits = [arrival - grant for grant, arrival in zip(grants, arrivals, strict=False)]
    return max(transits) - min(transits) if transits else 0


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` % of the values do not exceed (nearest rank); 0.0 without values."""
    return percentile_of_sorted(sorted(values), percent)


def percentile_of_sorted(ordered: Sequence[N], percent: float, begin: int = 0) -> N | Literal[0]:
    """As `percentile`, of values that are sorted, from the one at ``begin`` on."""
    count = len(ordered) - begin
    if not count:
        return 0
    return ordered[begin + max(0, -int(-count * percent // 100) - 1)]


def _within(count: int, most: int | None) -> bool:
    return most is None or count <= most
