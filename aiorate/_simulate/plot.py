"""A plot of arrivals and grants over time, as text."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from math import floor, log10
from typing import TYPE_CHECKING

import plotext  # type: ignore[import-untyped]

from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["draw", "per_bin"]

_HEIGHT = 15
_BINS = 60
_STEPS = 4
_UNITS = (("day", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def draw(arrived: Sequence[int], granted: Sequence[int], limit: float | None, width: int, *, colours: bool) -> str:
    """Arrivals per second as dots, grants as bars, and the ``limit`` per second as a line. Instants are ns since the first arrival."""
    span = max(arrived[-1], granted[-1] if granted else 0, 1) + 1
    seconds = span / NS_PER_SECOND
    came, went = (per_bin(instants, span) for instants in (arrived, granted))
    top = max(*came, *went)
    if limit is not None and limit > 2 * top:
        limit = None  # too far above
    top = max(top, limit or 0)
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    bin_seconds = seconds / _BINS
    # Steps, each of several points, so that no column of the terminal falls between two points.
    places = [number + part / _STEPS for number in range(_BINS) for part in range(_STEPS)]
    bars = figure.signal(
        [place * bin_seconds for place in places], [went[int(place)] for place in places], marker=plotext.marker("hd", "green")
    )
    figure.draw(bars.fillx())
    figure.draw(figure.signal([(number + 0.5) * bin_seconds for number in range(_BINS)], list(came), marker=plotext.marker("o", "yellow")))
    ticks = {0.0, top}
    if limit is not None:
        figure.line(limit, style="dotted")
        if limit < 0.9 * top:
            ticks.add(limit)
    figure.ruler("y").lim(0, top).ticks(sorted(ticks), [f"{tick:.4g}" for tick in sorted(ticks)])
    name, unit = next(((name, unit) for name, unit in _UNITS if seconds >= 3 * unit), ("s", 1))
    marks = _marks(seconds / unit)
    figure.ruler("x").lim(0, seconds).ticks([mark * unit for mark in marks], [f"{mark:g} {name}" for mark in marks])
    figure.title("arrivals (o) and grants (bars) per second" + ("" if limit is None else ", and the rate"))
    figure.plot_size(width, _HEIGHT)
    drawing: str = figure.build().string(colorless=not colours)
    return "\n".join(line.rstrip() for line in drawing.splitlines())


def per_bin(instants: Sequence[int], span: int, bins: int = _BINS) -> list[float]:
    """Instants per second in each of equal parts of ``span`` ns. The instants are sorted, and below ``span``."""
    edges = [bisect_left(instants, -(-number * span // bins)) for number in range(bins + 1)]
    return [(after - before) * bins * NS_PER_SECOND / span for before, after in itertools.pairwise(edges)]


def _marks(most: float) -> list[float]:
    """Round numbers from 0 to ``most``, at most seven."""
    size = 10.0 ** floor(log10(most))
    step = next(step for step in (size / 5, size / 2, size, 2 * size, 5 * size) if most / step <= 7)
    return [number * step for number in range(int(most / step) + 1)]
