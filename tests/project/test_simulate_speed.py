"""The speed of ``simulate --arrivals``, compared with reading the file."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from aiorate import cli

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("log", ["--rate", "105/s"]),
        ("log", ["--rate", "90/s"]),  # all of them wait
        ("log", ["--rate", "105/s", "--strategy", "SlidingWindow"]),
        ("csv", ["--rate", "105/s"]),
        ("csv", ["--rate", "105/s", "--burst", "50"]),
    ],
)
def test_a_million_arrivals_take_little_more_than_reading(
    kind: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 20 times the time that reading the lines and finding their times takes, the plot included."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"million.{kind}"
    with path.open("w") as file:
        for number in range(1_000_000):
            at = number / 100 + (number % 7) ** 2 / 10_000
            if kind == "log":
                second = int(at)
                stamp = f"10/Oct/2000:{second // 3_600:02}:{second // 60 % 60:02}:{second % 60:02} -0700"
                file.write(
                    f'10.0.0.{number % 250} - - [{stamp}] "GET /item?{number} HTTP/1.1" 200 2326 "http://localhost/" "Mozilla/4.08 (X11)"\n'
                )
            else:
                file.write(f"{1_700_000_000 + at:.6f}\n")

    ratios = []
    for _ in range(3):
        began = time.process_time()
        with path.open() as file:
            for line in file:
                if kind == "log":
                    at_bracket = line.find("[")
                    line[at_bracket : at_bracket + 28]
                else:
                    float(line)
        read = time.process_time()
        assert cli.main(["simulate", "--arrivals", path.name, *options]) == 0
        ratios.append((time.process_time() - read) / (read - began))
        assert "1 000 000 requests" in capsys.readouterr().out

    assert min(ratios) <= 20
