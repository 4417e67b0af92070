"""The command line: what it accepts, what it refuses and how, and its exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from helpers.driving import LONG
from helpers.platforms import needs_signals

import aiorate
from aiorate._tools import cli

COMMAND = [sys.executable, "-m", "aiorate"]
PLAIN = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "PYTHONIOENCODING")}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error of wrong arguments, whether argparse finds it or the command. Nothing is printed to standard output."""
    try:
        code = cli.main(arguments)
    except SystemExit as stop:
        code = stop.code
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, ""), arguments
    return shown.err


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Without it, child processes ignore Ctrl-C if a script started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_help_names_every_command_option_and_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    listed = capsys.readouterr().out
    options = {"demo": ("--rate", "--strategy", "--seconds"), "simulate": ("FILE", "--rate", "--strategy", "--burst", "--max-wait")}
    for command, names in options.items():
        with pytest.raises(SystemExit) as stop:
            cli.main([command, "--help"])

        shown = capsys.readouterr().out
        assert stop.value.code == 0
        assert command in listed
        assert [] == [name for name in (*names, *cli.STRATEGIES) if name not in shown]


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A source tree that was not installed has none."""
    for found, expected in (([SimpleNamespace(version="1.2")], "1.2"), ([], "unknown")):
        monkeypatch.setattr(cli, "distributions", lambda name, found=found: found)
        with pytest.raises(SystemExit) as stop:
            cli.main(["--version"])
        assert stop.value.code == 0
        assert capsys.readouterr().out in [f"aiorate {expected} ({meter} meter)\n" for meter in ("compiled", "pure Python")]


def test_wrong_arguments_name_the_valid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """Never a traceback, and never a run with other values than those given."""
    for arguments, hint in (
        ("demo --rate fast", "Write '100/s'"),
        ("demo --strategy Leaky", "TokenPool"),
        ("simulate --burst 0", "must be 1 or more permits"),
        ("simulate --strategy CalendarWindow --rate 3/7s", "divide a day"),
        ("simulate --rate 2/month", "CalendarWindow('1000/month', 'UTC')"),
        ("simulate nowhere", "'nowhere'"),
    ):
        assert hint in refused(capsys, *arguments.split()), arguments


def test_every_strategy_can_be_made_for_any_rate() -> None:
    """Parameters are derived from the rate: a slow one must not give a burst of 0."""
    for name, make in cli.STRATEGIES.items():
        for rate in ("100000/s", "500/s", "1/min", "10000/day"):
            scheduler = make(rate)

            assert (type(scheduler).__name__, scheduler.rate) == (name, aiorate.Rate.parse(rate)), (name, rate)
            assert scheduler.take(1, 1_000) <= 1_000, (name, rate)


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "aiorate._tools.demo", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)

    assert 'The demo needs: pip install "aiorate-limiter[demo]"' in refused(capsys, "demo")


def test_the_module_runs_as_a_program() -> None:
    """``python -m aiorate`` hands its exit code to the shell, and reads a pipe."""
    good = subprocess.run([*COMMAND, "simulate"], input="0\n0\n", capture_output=True, text=True, timeout=LONG)
    bad = subprocess.run([*COMMAND, "simulate"], input="0\n\nsoon\n", capture_output=True, text=True, timeout=LONG)

    assert (good.returncode, good.stderr) == (0, "")
    assert "2   in 0.000 s" in good.stdout
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "line 3: 'soon'" in bad.stderr


UNDER_WAY = """
import sys
from aiorate._tools import cli, demo

class Watched(demo.Limiter):
    async def acquire(self, *arguments, **options):
        if self.statistics().granted == 5:
            print("under way", flush=True)
        return await super().acquire(*arguments, **options)

demo.Limiter = Watched
sys.exit(cli.main(["demo", "--rate", "20/s", "--seconds", "60"]))
"""


@needs_signals
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_demo_without_a_traceback() -> None:
    """Also with requests in line and under way."""
    with subprocess.Popen([sys.executable, "-c", UNDER_WAY], stdout=-1, stderr=-1, text=True, env=PLAIN) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert any("under way" in line for line in process.stdout)

        process.send_signal(signal.SIGINT)

        assert process.stderr.read() == "interrupted\n"
        assert process.wait(LONG) == 130
