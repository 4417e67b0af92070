"""The report of a run: tables in Markdown, and JSON from which tables and plots can be made again.

Knows the figures only, not how they were measured.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from benchmarks.measure import NO_CALL, Measured

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["NEAREST", "as_json", "from_json", "number", "page", "section", "tables"]

# The least figure is the best. With one of these units, it is the figure nearest to the number given here.
NEAREST = {
    **dict.fromkeys(("delivered/asked", "wall/ideal", "served/allowed", "granted/limit", "slowest/fastest"), 1.0),
    **dict.fromkeys(("served/allowed, mean", "served/allowed, worst", "Jain, mean"), 1.0),
    "ppm": 0.0,
    "% drift": 0.0,
}
_FLOOR = "floor:"
_WIDEST = 64  # characters beside the names of the subjects, for which a page of documents has room
_GAP = 2  # characters between two columns
_COMMAND_WIDTH = 88
# A figure is one word: neither its thousands nor its range may break over two lines.
_SPACE, _HYPHEN = "\u00a0", "\u2011"


def page(heads: Iterable[Mapping[str, Any]], sections: Iterable[str]) -> str:
    """The whole report."""
    lines = ["# Benchmarks", ""]
    for machine, runs in groupby(heads, _machine):
        lines += [*machine, "", "```sh"]
        for run in runs:
            command = textwrap.wrap(run["command"], _COMMAND_WIDTH, subsequent_indent="    ", break_on_hyphens=False)
            lines += [f"# {run['date']}; load before: {run['load']}", " \\\n".join(command)]
        lines += ["```", ""]
    lines += [
        "How to read the tables:",
        "",
        "* A figure is the median of the rounds. The least and the most of the rounds are in brackets. Subjects take turns in each round.",
        "* The ratio beside it is to the floor of the same column: the first row whose name begins with *floor*.",
        "* The best of a column is bold. Floors and figures with a remark do not count for that. A hyphen: there is no such call.",
        "* A wide table is cut into several, which have the same words in their first corner.",
        "",
    ]
    return "\n".join(lines) + "\n" + "\n".join(sections)


def _machine(head: Mapping[str, Any]) -> tuple[str, ...]:
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    return f"* Machine: {head['machine']}, {head['system']}.", f"* Python: {head['python']}.", f"* Versions: {versions}."


def section(title: str, text: str | None, measured: Iterable[Measured], picture: str | bool = False) -> str:
    """One scenario: what it measures, its plot, and its tables."""
    about = inspect.cleandoc(text or "").replace("``", "`")
    plot = f"![{title}]({picture}.svg)\n\n" if picture else ""
    return f"## {title}\n\n{about}\n\n{plot}{tables(measured)}"


def tables(measured: Iterable[Measured]) -> str:
    """Tables for each loop and unit, in the order in which they come."""
    groups: dict[tuple[str, str], list[Measured]] = {}
    for each in measured:
        groups.setdefault((each.loop, each.unit), []).append(each)
    return "\n".join(_table(", ".join(filter(None, key)), columns) for key, group in groups.items() for columns in _narrow(group))


def _narrow(group: list[Measured]) -> Iterator[list[Measured]]:
    """Parts of a table that are narrow enough for a page. Columns such as "10/s p50" and "10/s p99" stay together if they can."""
    part: list[str] = []
    room = _WIDEST
    for _, cases in groupby(dict.fromkeys(each.case for each in group), lambda case: case.rpartition(" ")[0] or case):
        together = {case: _width(group, case) for case in cases}
        if part and sum(together.values()) > room:
            yield [each for each in group if each.case in part]
            part, room = [], _WIDEST
        for case, width in together.items():
            if part and width > room:
                yield [each for each in group if each.case in part]
                part, room = [], _WIDEST
            part.append(case)
            room -= width
    yield [each for each in group if each.case in part]


def _width(group: list[Measured], case: str) -> int:
    """The characters of a column and of its ratios to the floor, without remarks, which may break over two lines."""
    words = [*_thousands(case).split(" "), *(_figure(each) for each in group if each.case == case)]
    ratio = _GAP + len("/ floor") if _floor(group, case) else 0
    return _GAP + max(map(len, words)) + ratio


def _table(caption: str, group: list[Measured]) -> str:
    cases = list(dict.fromkeys(each.case for each in group))
    subjects = sorted(dict.fromkeys(each.subject for each in group), key=lambda name: not name.startswith(_FLOOR))
    cells = {(each.subject, each.case): each for each in group}
    floors = {case: _floor(group, case) for case in cases}
    best = {case: _best(group, case) for case in cases}
    heads, rules = [caption], ["---"]
    for case in cases:
        heads.append(_thousands(case))
        rules.append("---:")
        if floors[case]:
            heads.append(f"/{_SPACE}floor")
            rules.append("---:")
    lines = [_row(heads), f"|{'|'.join(rules)}|"]
    for subject in subjects:
        row = [subject]
        for case in cases:
            each = cells.get((subject, case))
            row.append(_cell(each, best[case]))
            if floor := floors[case]:
                row.append(f"{each.median / floor:.2f}" if each and each.samples else "")
        lines.append(_row(row))
    return "\n".join([*lines, ""])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _floor(group: list[Measured], case: str) -> float:
    """The median to which ratios of a column refer; 0 if it has no floor."""
    return next((each.median for each in group if each.case == case and each.subject.startswith(_FLOOR) and each.samples), 0.0)


def _best(group: list[Measured], case: str) -> float | None:
    """The rank of the best of a column; None if all are equal."""
    rivals = [each for each in group if each.case == case and each.samples and not each.remark and not each.subject.startswith(_FLOOR)]
    ranks = {_rank(each) for each in rivals}
    return min(ranks) if len(ranks) > 1 else None


def _rank(each: Measured) -> float:
    nearest = NEAREST.get(each.unit)
    return each.median if nearest is None else abs(each.median - nearest)


def _cell(each: Measured | None, best: float | None) -> str:
    if each is None:
        return ""
    if not each.samples:
        return "-" if each.remark == NO_CALL else each.remark
    bold = not each.remark and best is not None and not each.subject.startswith(_FLOOR) and _rank(each) <= best
    return f"{_figure(each, '**' if bold else '')} {each.remark}".rstrip(" ")


def _figure(each: Measured, mark: str = "") -> str:
    """Median, least and most as one word; empty without samples."""
    if not each.samples:
        return ""
    figure = f"{mark}{number(each.median, each.unit)}{mark}"
    if len(each.samples) > 1:
        figure += f"{_SPACE}({number(each.least, each.unit)}{_HYPHEN}{number(each.most, each.unit)})"
    return figure


def number(value: float, unit: str = "") -> str:
    """Three digits, or four decimal places where the unit is a ratio. Thousands stand apart."""
    if "/" in unit and abs(value) < 100:
        text = f"{value:.4f}"
    elif abs(value) >= 99.95:
        text = f"{value:,.0f}".replace(",", _SPACE)
    else:
        text = f"{value:.3g}"
    return text.replace("-", _HYPHEN)


def _thousands(text: str) -> str:
    """The text with its numbers in one piece."""
    return re.sub(r"(?<=\d) (?=\d)", _SPACE, text)


def as_json(heads: Iterable[Mapping[str, Any]], measured: Iterable[Measured]) -> str:
    """All runs and all figures, one line for each."""
    parts = [f'"{name}": [\n{_lines(each)}\n]' for name, each in (("runs", heads), ("measured", (asdict(each) for each in measured)))]
    return "{" + ",\n".join(parts) + "}\n"


def _lines(things: Iterable[Mapping[str, Any]]) -> str:
    return ",\n".join(json.dumps(each) for each in things)


def from_json(text: str) -> tuple[list[dict[str, Any]], list[Measured]]:
    """The heads of the runs, and the figures."""
    read = json.loads(text)
    return read["runs"], [Measured(**{**each, "samples": tuple(each["samples"])}) for each in read["measured"]]
