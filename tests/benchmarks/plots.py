"""Pictures of a run, as SVG, from its figures alone: the same figures give the same bytes.

They are readable on white and on black: the background is transparent, and no colour is very light or very dark.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks import keys, processes, scale
from benchmarks.drain import COST
from benchmarks.sustained import CORE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.measure import Measured

__all__ = ["plots"]

T = TypeVar("T")

INK, OURS, THEIRS = "#7d8590", "#2f81f7", "#d4760b"
COLOURS = ("#2f81f7", "#2da44e", "#a371f7", "#e5534b", "#d4760b", "#1b9aaa", "#db61a2", "#9a7b2f")
MARKERS = "osD^vP*X<>hd"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "aiorate",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
}


def plots(measured: Iterable[Measured]) -> dict[str, str]:
    """SVG by the name of the scenario, for each scenario that has figures. Needs matplotlib."""
    from matplotlib import rc_context

    by_scenario: dict[str, list[Measured]] = {}
    for each in measured:
        if each.samples:
            by_scenario.setdefault(each.scenario, []).append(each)
    pictures = {}
    with rc_context(STYLE):
        for name, (draw, units) in DRAWN.items():
            shown = [each for each in by_scenario.get(name, ()) if each.unit in units]
            if shown:
                pictures[name] = _svg(draw(shown))
    return pictures


def _uncontended(measured: list[Measured]) -> Any:
    """Bars, the fastest at the top, a panel for each call."""
    loop = measured[0].loop
    here = [each for each in measured if each.loop == loop]
    cases = _in_order(each.case for each in here)
    most = max(sum(each.case == case for each in here) for case in cases)
    figure, panels = _figure(-(-len(cases) // 2), min(2, len(cases)), 5.2, 0.5 + 0.19 * most)
    for panel, case in zip(panels, cases, strict=False):
        bars = sorted((each for each in here if each.case == case), key=lambda each: -each.median)
        names = [each.subject for each in bars]
        panel.barh(names, [each.median for each in bars], color=[_family(name) for name in names], height=0.7)
        panel.set(xscale="log", title=f"{case}, ns, {loop}")
        panel.set_xlim(left=10)
        panel.grid(axis="x")
        for place, each in enumerate(bars):
            panel.annotate(f" {each.median:,.0f}".replace(",", " "), (each.median, place), va="center", fontsize=7, annotation_clip=False)
    for panel in panels[len(cases) :]:
        panel.set_visible(False)
    return figure


def _processes(measured: list[Measured]) -> Any:
    """Bars, the best at the top, a panel for each figure."""
    cases = _in_order((each.unit, each.case) for each in measured)
    figure, panels = _figure(-(-len(cases) // 2), 2, 5.2, 2.2)
    for panel, (unit, case) in zip(panels, cases, strict=False):
        bars = sorted((each for each in measured if (each.unit, each.case) == (unit, case)), key=lambda each: -each.median)
        names = [each.subject for each in bars]
        panel.barh(names, [each.median for each in bars], color=[_family(name) for name in names], height=0.7)
        panel.set(xscale="log", title=f"{unit}, {case}")
        panel.grid(axis="x")
    for panel in panels[len(cases) :]:
        panel.set_visible(False)
    return figure


def _lines(x: str, y: str, top: float | None = None) -> Callable[[list[Measured]], Any]:
    """A line for each subject, a panel for each loop."""

    def draw(measured: list[Measured]) -> Any:
        loops = _in_order(each.loop for each in measured)
        figure, panels = _figure(1, len(loops), 4.6, 4.6)
        for panel, loop in zip(panels, loops, strict=True):
            _draw_lines(panel, [each for each in measured if each.loop == loop])
            panel.set(xscale="log", yscale="log" if top is None else "linear", xlabel=x, ylabel=y, title=loop)
            if top is not None:
                panel.set_ylim(0, top)
        _legend(figure, panels)
        return figure

    return draw


def _draw_lines(panel: Any, measured: list[Measured]) -> None:
    """Draw lines over the number at the beginning of each case."""
    for subject in _in_order(each.subject for each in measured):
        points = sorted((_leading(each.case), each.median, each.least, each.most) for each in measured if each.subject == subject)
        xs = [point[0] for point in points]
        dash = "--" if subject.startswith("floor") else ":" if not subject.startswith("aiorate") else "-." if ", " in subject else "-"
        colour, marker = _look(subject)
        panel.plot(xs, [point[1] for point in points], dash, color=colour, marker=marker, label=subject)
        panel.fill_between(xs, [point[2] for point in points], [point[3] for point in points], color=colour, alpha=0.12, linewidth=0)
    panel.grid()


def _precision(measured: list[Measured]) -> Any:
    """From p50 (dot) by p99 (ring) to the worst (bar), a row for each subject, a panel for each loop and rate."""
    loops = _in_order(each.loop for each in measured)
    rates = _in_order(each.case.rpartition(" ")[0] for each in measured)
    subjects = _in_order(each.subject for each in measured)[::-1]
    figure, panels = _figure(len(loops), len(rates), 2.6, 0.5 + 0.19 * len(subjects), sharey=True)
    late = {(each.loop, each.case, each.subject): max(1.0, each.median) for each in measured}
    for place, panel in enumerate(panels):
        loop, rate = loops[place // len(rates)], rates[place % len(rates)]
        for row, subject in enumerate(subjects):
            found = [late.get((loop, f"{rate} {what}", subject)) for what in ("p50", "p99", "max")]
            if None in found:
                continue
            colour = _family(subject)
            panel.plot([found[0], found[2]], [row, row], "-", color=colour, linewidth=0.8)
            panel.plot(found[0], row, "o", color=colour)
            panel.plot(found[1], row, "o", color=colour, fillstyle="none")
            panel.plot(found[2], row, "|", color=colour)
        panel.set(xscale="log", title=f"{rate}, {loop}", xlabel="us late: p50, p99, worst")
        panel.set_yticks(range(len(subjects)), subjects)
        panel.grid(axis="x")
    return figure


def _scale(measured: list[Measured]) -> Any:
    """A panel for each of the four ways to grow."""
    figure, panels = _figure(2, 2, 4.6, 3.0)
    ways = (scale.WAITING, scale.LIMITERS, scale.IN_HAND, scale.IN_LINE)
    for panel, unit in zip(panels, ways, strict=True):
        of_unit = [each for each in measured if each.unit == unit]
        here = [each for each in of_unit if each.loop == of_unit[0].loop]
        if unit in (scale.WAITING, scale.LIMITERS):
            _draw_lines(panel, here)
            panel.set(xscale="log")
        else:
            for subject in _in_order(each.subject for each in here):
                mine = [each for each in here if each.subject == subject]
                colour, marker = _look(subject)
                panel.plot([each.case for each in mine], [each.median for each in mine], "-", color=colour, marker=marker, label=subject)
            panel.tick_params(axis="x", rotation=45)
            panel.grid()
        panel.set(title=unit)
        panel.set_ylim(bottom=0)
    _legend(figure, panels)
    return figure


def _keys(measured: list[Measured]) -> Any:
    """Lines over the number of keys, a panel for each call: flat where the cost does not depend on it."""
    units = [unit for unit in (*keys.USES, keys.OWING, keys.EVICTING) if any(each.unit == unit for each in measured)]
    figure, panels = _figure(-(-len(units) // 2), min(2, len(units)), 4.6, 3.0)
    for panel, unit in zip(panels, units, strict=False):
        _draw_lines(panel, [each for each in measured if each.unit == unit])
        panel.set(xscale="log", title=unit)
        panel.set_ylim(bottom=0)
    for panel in panels[len(units) :]:
        panel.set_visible(False)
    _legend(figure, panels[: len(units)])
    return figure


# The pictures by scenario, each with the units of its figures.
DRAWN: dict[str, tuple[Callable[[list[Measured]], Any], tuple[str, ...]]] = {
    "uncontended": (_uncontended, ("ns",)),
    "drain": (_lines("tasks in line", "us of CPU a grant"), (COST,)),
    "sustained": (_lines("permits a second", "% of a core", top=105), (CORE,)),
    "precision": (_precision, ("us late",)),
    "scale": (_scale, (scale.WAITING, scale.LIMITERS, scale.IN_HAND, scale.IN_LINE)),
    "keys": (_keys, (*keys.USES, keys.OWING, keys.EVICTING)),
    "processes": (_processes, (processes.GRANTED, processes.CALLS, processes.US)),
}


def _figure(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Any, Sequence[Any]]:
    """The figure, and its panels row by row. Width and height are those of a panel in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def _legend(figure: Any, panels: Sequence[Any]) -> None:
    labels: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    figure.legend(labels.values(), labels.keys(), loc="outside right upper")


_SHORTER = (
    (r"<!--.*?-->|<!DOCTYPE.*?>|<metadata>.*?</metadata>", ""),
    (r'<g id="[^"]*">', "<g>"),
    (r' transform="rotate\(-0 [^"]*"', ""),
    (r"font-family: [^;]+;", "font-family: system-ui, sans-serif;"),
    (r"(\.\d\d)\d+", r"\1"),  # a hundredth of a point is enough
)


def _svg(figure: Any) -> str:
    """SVG in the page's own font, and without unneeded elements: half the size."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    short = text.getvalue()
    for pattern, instead in _SHORTER:
        short = re.sub(pattern, instead, short, flags=re.DOTALL)
    return "\n".join(line.strip() for line in short.splitlines() if line.strip()) + "\n"


def _look(subject: str) -> tuple[str, str]:
    """Colour and marker of a subject, the same in every picture."""
    from benchmarks.peers import PEERS
    from benchmarks.subjects import AIORATE

    names = [each.name for each in (*AIORATE, *PEERS)]
    name = subject.removesuffix(keys.SHARED)
    if name not in names:
        return INK, "."
    place = names.index(name)
    return COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]


def _family(subject: str) -> str:
    return INK if subject.startswith("floor") else OURS if subject.startswith("aiorate") else THEIRS


def _in_order(names: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(names))


def _leading(case: str) -> float:
    """The number at the beginning of a case: 10000 of "10 000 waiters"."""
    found = re.match(r"[\d ]+", case)
    return float(found[0].replace(" ", "")) if found else 0.0
