"""Figures of requests over time: the fullest window, percentiles, and a plot as text. Instants are ns, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


SECOND = 1_000_000_000
_PARTS, _WIDTH = 20, 60


def busiest(instants: Sequence[int], window: int) -> int:
    """The most instants in any half-open window of that length (ns)."""
    most = first = 0
    for last, instant in enumerate(instants):
        while instants[first] <= instant - window:
            first += 1
        most = max(most, last - first + 1)
    return most


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that at least so many per cent do not exceed. The values are sorted; 0 without values."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0


def plot(title: str, bars: Sequence[int], dots: Sequence[int], rate: float) -> str:
    """Draw how many there are per second (bars of #, and o), from 0 on, and the rate (|) unless it is far above: a line for each part."""
    part = max(*bars, *dots) // _PARTS + 1
    counts = [
        [sum(instant // part == number for instant in instants) * SECOND / part for instants in (bars, dots)] for number in range(_PARTS)
    ]
    most = max(map(max, counts))
    top = rate if most < rate <= 2 * most else most
    lines = []
    for number, (high, low) in enumerate(counts):
        line = [*("#" * round(high / top * _WIDTH)).ljust(_WIDTH + 1)]
        if rate <= top:
            line[round(rate / top * _WIDTH)] = "|"
        if low:
            line[round(low / top * _WIDTH)] = "o"
        lines.append(f"{number * part / SECOND:8.2f} s {''.join(line).rstrip()}")
    return "\n".join([f"{title}: up to {top:.4g}/s", *lines])
