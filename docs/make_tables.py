"""Writes the table of figures in comparison.md from docs/benchmarks/benchmarks.json.

    python docs/make_tables.py

A test compares it with what is committed.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent


@cache
def benchmarks() -> list[dict[str, Any]]:
    """What was measured, from docs/benchmarks/benchmarks.json."""
    found: list[dict[str, Any]] = json.loads((HERE / "benchmarks" / "benchmarks.json").read_text(encoding="utf-8"))["measured"]
    return found


def measured(scenario: str, case: str, subject: str, unit: str | None = None) -> float:
    """The median of what the benchmarks measured on asyncio's own loop."""
    (samples,) = [
        each["samples"]
        for each in benchmarks()
        if (each["scenario"], each["case"], each["subject"]) == (scenario, case, subject)
        and each["loop"] in ("asyncio", "")
        and each["unit"] == (unit or each["unit"])
    ]
    return float(median(samples))


# What is compared, by the name of the library: the subject of the benchmarks, and what it is.
COMPARED = {
    "aiorate": ("aiorate TokenPool", "a plain rate, compiled"),
    "aiolimiter": ("aiolimiter", "leaky bucket"),
    "asynciolimiter": ("asynciolimiter-leaky", "leaky bucket"),
    "pyrate-limiter": ("pyrate-gcra", "GCRA"),
    "limits": ("limits-moving", "moving window"),
    "throttled-py": ("throttled-py+sleep", "GCRA"),
    "asyncio-throttle": ("asyncio-throttle", "moving window"),
}
MEASURED = {
    "a call that need not wait, ns": ("uncontended", "acquire(), 1000/s", "{:.0f}"),
    "processor time of a grant, 10 000 in line, µs": ("drain", "10 000 waiters", "{:.0f}"),
    "of a core, 100 tasks at 10 000/s, %": ("sustained", "10 000/s", "{:.0f}"),
    "permits lost by a cancellation just after the grant": ("cancelling", "when granted: lost", "{:.2f}"),
    "most grants in a second, after an idle time, of those allowed": ("conformance", "after idle", "{:.2f}"),
    "import, ms": ("imports", "import", "{:.1f}"),
}
UNITS = {"drain": "CPU us a grant, paced", "sustained": "% of a core"}


def comparison_table() -> str:
    """What the benchmarks measured of each library, in Markdown."""
    rows = [["", *COMPARED], ["---", *["---:"] * len(COMPARED)], ["measured", *(what for _, what in COMPARED.values())]]
    for name, (scenario, case, form) in MEASURED.items():
        row = [name]
        for library, (subject, _) in COMPARED.items():
            value = measured(scenario, case, library if scenario == "imports" else subject, unit=UNITS.get(scenario))
            text = form.format(value).replace("-0.00", "0.00")
            row.append(text if value < 10_000 else f"{value:,.0f}".replace(",", "\u00a0"))
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def files() -> dict[Path, str]:
    """The page with the table, by its path."""
    page = HERE / "comparison.md"
    figures = f"<!-- figures -->\n{comparison_table()}\n<!-- end -->"
    return {page: re.sub(r"<!-- figures -->\n.*?<!-- end -->", lambda _: figures, page.read_text(encoding="utf-8"), flags=re.DOTALL)}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(HERE.parent))
