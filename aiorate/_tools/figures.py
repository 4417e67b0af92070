"""Figures of requests over time: the fullest window, percentiles, and a plot as text. Knows nothing of limits.

A point is an instant in ns and a number of permits. Sequences of points are in order of time.
"""

from __future__ import annotations

import os
import shutil
import sys
from bisect import bisect_left
from itertools import pairwise
from math import floor, log10
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    Points = Sequence[tuple[int, int]]


SECOND = 1_000_000_000
_HEIGHT, _BINS = 15, 40
_STEPS = 4  # points of a bar, so that no column of the terminal falls between two


def busiest(points: Points, window: int) -> int:
    """The most permits in any half-open window of that length (ns)."""
    most = total = first = 0
    for instant, permits in points:
        total += permits
        while points[first][0] <= instant - window:
            total -= points[first][1]
            first += 1
        most = max(most, total)
    return most


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The smallest value that at least so many per cent do not exceed. The values are sorted; 0 without values."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0


def plot(title: str, bars: Points, dots: Points, rate: float) -> str:
    """Draw permits per second over time, and the rate as a line. Says why, if that cannot be done here."""
    try:
        import plotext  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return 'For a plot: pip install "aiorate-limiter[demo]"'
    span = max([points[-1][0] for points in (bars, dots) if points], default=0) + 1
    seconds, width = span / SECOND, span / SECOND / _BINS
    high, low = _per_second(bars, span), _per_second(dots, span)
    top = max(*high, *low)
    rate_shown = rate <= 2 * top  # otherwise too far above
    top = max(top, rate) if rate_shown else top
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    steps = [number / _STEPS for number in range(_BINS * _STEPS)]
    filled = figure.signal([step * width for step in steps], [high[int(step)] for step in steps], marker=plotext.marker("hd", "green"))
    figure.draw(filled.fillx())
    seen = [(number + 0.5) * width for number in range(_BINS) if low[number]], [height for height in low if height]
    figure.draw(figure.signal(*seen, marker=plotext.marker("o", "yellow")))
    if rate_shown:
        figure.line(rate, style="dotted")
    heights = sorted({0.0, top, rate} if rate_shown else {0.0, top})
    figure.ruler("y").lim(0, top).ticks(heights, [f"{height:.4g}" for height in heights])
    size = 10.0 ** floor(log10(seconds))
    step = next(step for step in (size / 5, size / 2, size, 2 * size) if seconds / step < 7)
    marks = [number * step for number in range(int(seconds / step) + 1)]
    figure.ruler("x").lim(0, seconds).ticks(marks, [f"{mark:g} s" for mark in marks])
    figure.title(title)
    terminal = sys.stdout.isatty()
    figure.plot_size(min(shutil.get_terminal_size().columns, 100) if terminal else 80, _HEIGHT)
    drawing: str = figure.build().string(colorless=not terminal or "NO_COLOR" in os.environ)
    try:
        drawing.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return "For a plot: PYTHONIOENCODING=utf-8"  # question marks would show nothing
    return "\n".join(line.rstrip() for line in drawing.splitlines())


def _per_second(points: Points, span: int) -> list[float]:
    """Permits per second in each of equal parts of ``span`` ns."""
    edges = [bisect_left(points, (-(-number * span // _BINS), 0)) for number in range(_BINS + 1)]
    return [sum(permits for _, permits in points[begin:end]) * _BINS * SECOND / span for begin, end in pairwise(edges)]
