"""``simulate``: what it reads, computes and prints."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest
from helpers.driving import LONG

from aiorate._tools import cli
from aiorate._tools.simulate import SECOND, busiest, read

ROOT = Path(__file__).parents[2]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["simulate", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "\x1b" not in out
    return out


def written(folder: Path, text: str) -> str:
    path = folder / "arrivals"
    path.write_text(text, encoding="utf-8")
    return str(path)


# Reading.


def test_arrivals_are_sorted_and_begin_at_0() -> None:
    """A server writes a request to its log when it has ended."""
    assert read(["3\n", "\n", " 1e0 \n", "  \n", "2.000000001"]) == [0, SECOND + 1, 2 * SECOND]
    assert read(["-0.5"]) == [0]


def test_a_broken_line_is_named() -> None:
    for line in ("soon", "nan", "Infinity", "1e400", "1 2", "2026-01-31", "\udc80"):
        with pytest.raises(ValueError, match=r"line 3: '.{1,90}' is no arrival: write one number") as caught:
            read(["1\n", "\n", line])
        assert str(caught.value).isascii(), line


def test_files_and_empty_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file may begin with the mark that Windows puts there."""
    assert "requests             2   in 1.000 s, 2/s" in shown(capsys, written(tmp_path, "\ufeff5\n6\n"))

    with pytest.raises(SystemExit):
        cli.main(["simulate", written(tmp_path, "\n")])
    assert "there are no arrivals" in capsys.readouterr().err


# Figures.


def test_the_busiest_window_holds_the_most() -> None:
    """Half-open: an instant a whole window later is outside. An error by one would hide a broken guarantee."""
    for instants, window, expected in (
        ([], 10, 0),
        ([5], 1, 1),
        ([0, 10], 10, 1),
        ([0, 10], 11, 2),
        ([0, 0, 0, 1], 1, 3),
        ([0, 4, 8, 9, 10, 30], 5, 3),
        ([0, 100, 101, 102, 200, 201], 1_000, 6),
    ):
        assert busiest(instants, window) == expected, instants
    chance = random.Random(1)
    for _ in range(200):
        points = sorted(chance.randrange(60) for _ in range(chance.randrange(25)))
        window = chance.randrange(1, 40)
        tried = max(sum(start <= instant < start + window for instant in points) for start in range(-window, 61))
        assert busiest(points, window) == tried, (points, window)


# The output.


def test_the_summary_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At 2/s with a burst of 4: four and the last at once, four after 0.5 to 2 s; two more would wait for 2.5 s and 3 s."""
    file = written(tmp_path, "100\n" * 10 + "120\n")

    text = shown(capsys, file, "--rate", "2/s", "--burst", "4", "--max-wait", "2")

    assert text.startswith("TokenBucket('2/s', burst=4")
    assert [" ".join(line.split()) for line in text.splitlines()[2:10]] == [
        "requests 11 in 20.000 s, 0.55/s",
        "at once 5 45.5%",
        "waited 4 36.4%",
        "refused 2 18.2%",
        "median wait 0.000 s",
        "95 % wait 2.000 s",
        "longest wait 2.000 s",
        "most requests in any 1 s: 10 arrived, 5 granted",
    ]


@pytest.mark.skipif(which("awk") is None, reason="the commands of the page need awk")
def test_the_commands_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    """On a log as servers write it, with two requests in each second."""
    line = '192.0.2.7 - - [{}/Oct/2026:13:55:{:02} -0700] "GET / HTTP/1.0" 200 2326 "-" "-"\n'
    log = "".join(line.format(day, second) for day in ("09", "31") for second in range(60))
    (tmp_path / "access.log").write_text(log, encoding="utf-8")
    page = (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?simulate.*?)\n```", page, flags=re.DOTALL)
    (promised,) = re.findall(r"```text\n(requests .*?)```", page, flags=re.DOTALL)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def printed(command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            encoding="utf-8",
            timeout=LONG,
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        return done.stdout

    example, spread = map(printed, commands)

    assert promised in example
    assert re.search(r"requests +120   in (58|59|60)\.\d{3} s, 2(\.0\d*)?/s", spread)
