"""What is shown of a run: tables in Markdown, and JSON from which tables and plots can be made again.

Knows the figures only, not how they were measured.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aiorate._bench.measure import NO_CALL, Measured

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["NEAREST", "as_json", "from_json", "number", "page", "section", "tables"]

# Least is best, unless the unit is one of these: then whoever comes nearest.
NEAREST = {"delivered/asked": 1.0, "wall/ideal": 1.0, "served/allowed": 1.0, "granted/limit": 1.0, "ppm": 0.0, "% drift": 0.0}
_FLOOR = "floor:"


def page(heads: Iterable[Mapping[str, Any]], sections: Iterable[str]) -> str:
    """All of it."""
    lines, before = ["# Benchmarks", ""], ""
    for head in heads:
        versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
        machine = f"{head['machine']}, {head['system']}, Python {head['python']}, {versions}"
        lines += [f"    {head['command']}", "", f"* {head['date']}; load before: {head['load']}."]
        lines += [f"* {machine}.", ""] if machine != before else [""]
        before = machine
    lines += [
        "How to read the tables:",
        "",
        "* Each figure is the median of the rounds, and in brackets the least and the most; all took turns in every round.",
        "* Beside it, its ratio to the floor of the same column: the first row whose name begins with *floor*.",
        "* Bold is the best of a column, floors and figures with a remark left out; - says that there is no such call.",
        "",
    ]
    return "\n".join(lines) + "\n" + "\n".join(sections)


def section(title: str, text: str | None, measured: Iterable[Measured], picture: str | bool = False) -> str:
    """One scenario: what is measured, its plot, and its tables."""
    about = inspect.cleandoc(text or "").replace("``", "`")
    plot = f"![{title}]({picture}.svg)\n\n" if picture else ""
    return f"## {title}\n\n{about}\n\n{plot}{tables(measured)}"


def tables(measured: Iterable[Measured]) -> str:
    """A table for each loop and unit, in the order in which they come."""
    groups: dict[tuple[str, str], list[Measured]] = {}
    for each in measured:
        groups.setdefault((each.loop, each.unit), []).append(each)
    return "\n".join(_table(", ".join(filter(None, key)), group) for key, group in groups.items())


def _table(caption: str, group: list[Measured]) -> str:
    cases = list(dict.fromkeys(each.case for each in group))
    subjects = sorted(dict.fromkeys(each.subject for each in group), key=lambda name: not name.startswith(_FLOOR))
    cells = {(each.subject, each.case): each for each in group}
    floors = {case: _floor(group, case) for case in cases}
    best = {case: _best(group, case) for case in cases}
    heads, rules = [caption], ["---"]
    for case in cases:
        heads.append(case)
        rules.append("---:")
        if floors[case]:
            heads.append("/ floor")
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
    """The median that ratios are to; 0 if there is none."""
    return next((each.median for each in group if each.case == case and each.subject.startswith(_FLOOR) and each.samples), 0.0)


def _best(group: list[Measured], case: str) -> float | None:
    """How far from best the best is; None where nobody is better than another."""
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
    figure = number(each.median, each.unit)
    if not each.remark and best is not None and not each.subject.startswith(_FLOOR) and _rank(each) <= best:
        figure = f"**{figure}**"
    if len(each.samples) > 1:
        figure += f" ({number(each.least, each.unit)}-{number(each.most, each.unit)})"
    return f"{figure} {each.remark}".rstrip()


def number(value: float, unit: str = "") -> str:
    """Three digits, or four places where the unit is a ratio; thousands apart."""
    if "/" in unit and abs(value) < 100:
        return f"{value:.4f}"
    if abs(value) >= 99.95:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def as_json(heads: Iterable[Mapping[str, Any]], measured: Iterable[Measured]) -> str:
    """All runs, and what was measured; one line for each."""
    parts = [f'"{name}": [\n{_lines(each)}\n]' for name, each in (("runs", heads), ("measured", (asdict(each) for each in measured)))]
    return "{" + ",\n".join(parts) + "}\n"


def _lines(things: Iterable[Mapping[str, Any]]) -> str:
    return ",\n".join(json.dumps(each) for each in things)


def from_json(text: str) -> tuple[list[dict[str, Any]], list[Measured]]:
    """The heads of the runs, and what was measured."""
    read = json.loads(text)
    return read["runs"], [Measured(**{**each, "samples": tuple(each["samples"])}) for each in read["measured"]]
