"""``python tests/benchmarks`` measures, and writes what it should. No test asks how fast anything is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.command import table
from helpers.driving import LONG

ROOT = Path(__file__).parents[2]


def measured(folder: Path, *options: str) -> tuple[dict[str, Any], list[str]]:
    """What it writes after a hundredth of the work: the JSON, and the lines of the table."""
    (folder / "benchmarks.md").write_text("Before.\n<!-- table -->\nof an earlier run\n<!-- end -->\nAfter.\n", encoding="utf-8")
    command = [sys.executable, str(ROOT / "tests" / "benchmarks"), "--part", "100", "--rounds", "2", "--seconds", "600"]
    command += ["--out", str(folder), *options]
    subprocess.run(command, check=True, capture_output=True, timeout=LONG, cwd=folder)
    before, _, rest = (folder / "benchmarks.md").read_text(encoding="utf-8").partition("<!-- table -->\n")
    table, _, after = rest.partition("<!-- end -->")
    assert ("Before.\n", "\nAfter.\n") == (before, after)
    return json.loads((folder / "benchmarks.json").read_text(encoding="utf-8")), table.splitlines()


@pytest.mark.slow
def test_the_table_shows_the_ratios_of_one_run(tmp_path: Path) -> None:
    found, lines = measured(tmp_path, "--only", "acquire()")

    plain, waiting = found["rows"]
    assert {"aiorate"} == set(plain["ratios"])
    assert set(found["versions"]) == set(waiting["ratios"]) | set(waiting["remarks"])
    assert {} == waiting["remarks"]
    assert "of an earlier run" not in lines
    for row in (plain, waiting):
        (line,) = (line for line in lines if line.startswith(f"| {row['row']} | {row['floor']} |"))
        for each in row["ratios"].values():
            assert 0 < each["least"] <= each["ratio"] <= each["most"]
        assert line.count(" - ") == len(found["versions"]) - len(row["ratios"])


def test_the_page_shows_what_its_json_has() -> None:
    found = json.loads((ROOT / "docs" / "benchmarks.json").read_text(encoding="utf-8"))

    assert table(found) in (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_row_can_be_measured(tmp_path: Path) -> None:
    found, _ = measured(tmp_path, "--rounds", "1")

    assert 14 == len(found["rows"])
    assert [row["row"] for row in found["rows"] if "aiorate" not in row["ratios"]] == []
