"""The commands of docs/simulate.md run, and print what the page says."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path

import pytest

from aiorate import cli

PAGE = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", PAGE, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [(command, printed) for commands, printed in BLOCKS for command in commands.splitlines()]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the page names."""
    monkeypatch.chdir(tmp_path)
    line = '10.0.0.{} - - [10/Oct/2000:13:55:{:02} -0700] "GET / HTTP/1.0" 200 2326 "-" "-"\n'
    log = "".join(line.format(number % 3, number // 80) for number in range(800))
    Path("access.log").write_text(log)
    Path("access.log.1.gz").write_bytes(gzip.compress(log.encode()))
    Path("times.csv").write_text("user,sent_at\n" + "".join(f"{number % 3},{1_714_564_800_000 + 40 * number}\n" for number in range(100)))


def test_the_page_has_commands() -> None:
    """Otherwise the tests below would run none."""
    assert len(COMMANDS) >= 8
    assert sum(bool(printed) for _, printed in COMMANDS) == 1


@pytest.mark.parametrize(("command", "printed"), COMMANDS)
def test_each_command_of_the_page_runs(command: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is printed there, up to the plot."""
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "aiorate", "simulate"]

    assert cli.main(words[3:]) == 0

    out, err = capsys.readouterr()
    assert out.startswith(printed)
    assert err == ""


def test_the_page_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """And no other."""
    assert cli.main(["simulate", "--help"]) == 0
    options = set(re.findall(r"(--[a-z][a-z-]*)", capsys.readouterr().out)) - {"--help"}

    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", PAGE)) == options
