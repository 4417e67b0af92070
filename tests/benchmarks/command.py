"""The command: measures aiorate next to its peers, and writes docs/benchmarks.json and the table of docs/benchmarks.md.

Every figure is a ratio to a floor that was measured in the same round, and the table has the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any

from helpers.local_store import NoStore, Store

from benchmarks.rows import ROWS, URL, NoCall, figure
from benchmarks.subjects import SUBJECTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.rows import Row

TESTS = Path(__file__).resolve().parents[1]
__all__ = ["main"]

BEGIN, END = "<!-- table -->\n", "<!-- end -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks", description="Measure aiorate next to other libraries.")
    parser.add_argument("--out", type=Path, default=TESTS.parent / "docs", help="the folder of benchmarks.md and benchmarks.json (docs)")
    parser.add_argument("--seconds", type=float, default=200, help="about how long it may take (default: 200)")
    parser.add_argument("--only", default="", metavar="WORDS", help="only the rows that have these words in their names")
    parser.add_argument("--rounds", type=int, default=5, help="how often each figure is measured, if there is time (default: 5)")
    options = parser.parse_args(arguments)
    found = {"machine": machine(), "versions": {subject.distribution: version_of(subject.distribution) for subject in SUBJECTS}, "rows": []}
    rows: list[dict[str, Any]] = found["rows"]  # type: ignore[assignment]
    with store() as url:
        chosen = [row for row in ROWS if options.only in row.name and (url or not row.store)]
        if url:
            os.environ[URL] = url
        began = monotonic()
        for number, row in enumerate(chosen, start=1):
            print(f"{number} of {len(chosen)}: {row.name}", file=sys.stderr, flush=True)
            until = began + options.seconds * number / len(chosen)
            rows.append(measured(row, options.rounds, until, began + 1.1 * options.seconds))
    page = options.out / "benchmarks.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(before + BEGIN + table(found) + END + rest.partition(END)[2], encoding="utf-8")
    (options.out / "benchmarks.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def measured(row: Row, rounds: int, until: float, end: float) -> dict[str, Any]:
    """Some rounds, until their time is over: in each the floor and then every library. What failed once is not tried again.

    After the end of the whole run, nothing is measured, however slow the machine is.
    """
    ratios: dict[str, list[float]] = {subject.distribution: [] for subject in SUBJECTS if getattr(subject, row.needs) is not None}
    remarks: dict[str, str] = {}
    for number in range(rounds):
        if number and monotonic() > until:
            break
        floor = figure(row, None)
        for subject in SUBJECTS[number % len(SUBJECTS) :] + SUBJECTS[: number % len(SUBJECTS)]:
            name = subject.distribution
            if name in ratios and name not in remarks:
                if monotonic() > end:
                    remarks[name] = "not measured"
                    continue
                try:
                    ratios[name].append(figure(row, subject) / floor)
                except NoCall:
                    del ratios[name]
                except TimeoutError:
                    remarks[name] = "too long"
                except Exception as error:  # a peer may raise any error, and the others go on
                    remarks[name] = f"{type(error).__name__}: {error}"[:80]
    figures = {
        name: {"ratio": median(each), "least": min(each), "most": max(each), "rounds": len(each)}
        for name, each in ratios.items()
        if each and name not in remarks
    }
    return {"row": row.name, "floor": row.floor, "ratios": figures, "remarks": remarks}


def table(found: dict[str, Any]) -> str:
    """In Markdown."""
    names = [subject.distribution for subject in SUBJECTS]
    lines = [f"| | compared with | {' | '.join(names)} |", f"|---|---|{'---:|' * len(names)}"]
    for row in found["rows"]:
        cells = [rounded(row["ratios"][name]["ratio"]) if name in row["ratios"] else row["remarks"].get(name, "-") for name in names]
        lines.append(f"| {row['row']} | {row['floor']} | {' | '.join(cells)} |")
    about = found["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    compiled = "with" if about["compiled"] else "without"
    return "\n".join(
        [*lines, "", f"{about['python']} on {about['system']}, {about['cores']} cores, {compiled} the C part; {versions}.", ""]
    )


def rounded(ratio: float) -> str:
    """Two digits that count."""
    return (
        f"{ratio:.2f}"
        if ratio < 1
        else f"{ratio:.1f}"
        if ratio < 10
        else f"{round(ratio, 2 - len(str(int(ratio)))):,.0f}".replace(",", " ")
    )


def machine() -> dict[str, Any]:
    """What figures depend on, though ratios do little."""
    compiled = import_module("aiorate._meter").COMPILED
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {"python": python, "system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count(), "compiled": compiled}


def version_of(distribution: str) -> str:
    return version("aiorate-limiter" if distribution == "aiorate" else distribution)


@contextmanager
def store() -> Iterator[str | None]:
    """The URL of a new server for the rows about Redis; None where there is none."""
    try:
        server = Store()
    except NoStore as error:
        print(f"without Redis: {error}", file=sys.stderr)
        yield None
        return
    with server:
        yield server.url
