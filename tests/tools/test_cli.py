"""The command line: what it accepts, what it refuses and how, and its exit codes."""

from __future__ import annotations

import errno
import runpy
import subprocess
import sys
from importlib.metadata import version

import pytest
from helpers.driving import LONG

import aiorate
from aiorate import cli


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """``python -m aiorate`` is a user's first look."""
    assert cli.main([]) == 0

    shown = capsys.readouterr().out
    assert "demo" in shown
    assert "simulate" in shown


def test_help_names_every_option_and_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that the help leaves out is not found."""
    assert cli.main(["demo", "--help"]) == 0

    shown = capsys.readouterr().out
    options = ("--rate", "--strategy", "--seconds", "--clients", "--port", "--processes", "--server")
    for word in (*options, "by default 50/s, and 200/s for processes", "SmoothWarmingUp", "CalendarWindow"):
        assert word in " ".join(shown.split())


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    """One source of truth: the metadata."""
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out in (f"aiorate {version('aiorate')} ({meter} meter)\n" for meter in ("compiled", "pure Python"))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["bogus"], "invalid choice: 'bogus'"),
        (["demo", "--bogus"], "unrecognized arguments: --bogus"),
        (["demo", "--rate", "0/s"], "a rate must be greater than 0"),
        (["demo", "--rate", "-3"], "Write '100/s'"),
        (["demo", "--rate", "fast"], "Write '100/s'"),
        (["demo", "--rate", "5/m"], "write 'min'"),
        (["demo", "--rate", ""], "Write '100/s'"),
        (["demo", "--rate"], "expected one argument"),
        (["demo", "--strategy", "Leaky"], "there are TokenPool"),
        (["demo", "--seconds", "0"], "'0' is not a number from 0.2 to 3600"),
        (["demo", "--seconds", "nan"], "not a number from 0.2"),
        (["demo", "--seconds", "inf"], "not a number from 0.2"),
        (["demo", "--seconds", "long"], "not a number from 0.2"),
        (["demo", "--clients", "1"], "'1' is not a whole number from 2 to 1000"),
        (["demo", "--clients", "2.5"], "not a whole number from 2"),
        (["demo", "--processes", "1"], "'1' is not a whole number from 2 to 64"),
        (["demo", "--port", "65536"], "not a whole number from 0 to 65535"),
        (["simulate", "--requests", "0"], "not a whole number from 1"),
        (["simulate", "--requests", "1" * 5_000], "not a whole number from 1"),
        (["simulate", "--permits", "-1"], "not a whole number from 1"),
    ],
)
def test_wrong_arguments_name_the_valid_ones(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2: never a traceback, and never a run with other values than those given."""
    code = cli.main(arguments)

    shown = capsys.readouterr()
    assert code == 2
    assert hint in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--strategy", "CalendarWindow", "--rate", "3/7s"], "divide a day"),
        (["--strategy", "SlidingWindow", "--rate", "3/s", "--permits", "4"], "4"),
    ],
)
def test_simulate_shows_the_error_of_a_strategy(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The parser cannot know what each strategy allows."""
    code = cli.main(["simulate", *arguments])

    shown = capsys.readouterr()
    assert code == 2
    assert shown.err.startswith("aiorate simulate: ")
    assert hint in shown.err
    assert shown.out == ""


def test_simulate_prints_the_instants_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    """A full bucket of one (a tenth of a second at 10/s), then the rate. Nothing waits."""
    assert cli.main(["simulate", "--rate", "10/s", "--strategy", "tokenbucket", "--requests", "3", "--permits", "1"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("TokenBucket('10/s'")
    assert [line.split() for line in lines[3:]] == [
        ["1", "0.000000", "0.000000"],
        ["2", "0.100000", "0.100000"],
        ["3", "0.200000", "0.100000"],
    ]


def test_simulate_takes_several_permits_a_request(capsys: pytest.CaptureFixture[str]) -> None:
    """At 10/s, five permits come every half second."""
    assert cli.main(["simulate", "--strategy", "BurstCompensation", "--requests", "3", "--permits", "5"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[3:]] == ["0.000000", "0.500000", "1.000000"]


def test_demo_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code of the command is that of the run."""
    from aiorate._demo import run as _demo

    calls: list[dict[str, object]] = []

    def run(**options: object) -> int:
        calls.append(options)
        return 1

    monkeypatch.setattr(_demo, "run", run)

    code = cli.main(["demo", "--rate", "3/250ms", "--strategy", "burstratio", "--seconds", "2", "--clients", "8", "--port", "8080"])

    assert code == 1
    assert calls == [{"rate": aiorate.Rate.parse("3/250ms"), "strategy": "BurstRatio", "seconds": 2.0, "clients": 8, "port": 8080}]


@pytest.mark.parametrize("missing", ["aiohttp", "httpx2", "plotext", "rich"])
def test_a_missing_extra_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``pip install aiorate`` alone has no demo."""
    _forget_the_demo(monkeypatch)
    monkeypatch.setitem(sys.modules, missing, None)

    code = cli.main(["demo"])

    assert code == 2
    assert f'aiorate demo needs {missing}, which is not installed: pip install "aiorate[demo]"' in capsys.readouterr().err


def test_a_missing_module_of_aiorate_is_not_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing extras would not help, so the error comes through."""
    _forget_the_demo(monkeypatch)
    monkeypatch.setitem(sys.modules, "aiorate._demo.verdict", None)

    with pytest.raises(ModuleNotFoundError, match="verdict"):
        cli.main(["demo"])


@pytest.mark.parametrize(("error", "expected"), [(KeyboardInterrupt, 130), (BrokenPipeError, 141)])
def test_an_interrupted_command_ends_as_the_shell_expects(
    error: type[BaseException], expected: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """130 for Ctrl-C, 141 for a closed pipe: neither says whether the guarantee was kept."""

    def handler(**options: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_simulate", handler)

    assert cli.main(["simulate"]) == expected
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(("system", "expected"), [("nt", 141), ("posix", None)])
def test_a_closed_pipe_of_windows_is_an_invalid_argument(system: str, expected: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """bpo-35754: there a write to it raises OSError with EINVAL, which is an error of another kind elsewhere."""

    def handler(**options: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(cli, "_simulate", handler)
    monkeypatch.setattr(cli, "_SYSTEM", system)

    if expected is None:
        with pytest.raises(OSError, match="Invalid argument"):
            cli.main(["simulate"])
    else:
        assert cli.main(["simulate"]) == expected


def test_the_module_runs_as_a_program() -> None:
    """``python -m aiorate`` hands its exit code to the shell."""
    command = [sys.executable, "-m", "aiorate"]

    good = subprocess.run([*command, "simulate", "--requests", "2"], capture_output=True, text=True, timeout=LONG)
    bad = subprocess.run([*command, "simulate", "--requests", "none"], capture_output=True, text=True, timeout=LONG)

    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.splitlines()[-1].split() == ["2", "0.100000", "0.100000"]
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "not a whole number" in bad.stderr


def test_the_module_ends_with_the_exit_code_of_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The same in this process."""
    monkeypatch.setattr(sys, "argv", ["aiorate", "simulate", "--requests", "0"])
    monkeypatch.delitem(sys.modules, "aiorate.__main__", raising=False)

    with pytest.raises(SystemExit) as stop:
        runpy.run_module("aiorate", run_name="__main__")

    assert stop.value.code == 2
    assert "not a whole number" in capsys.readouterr().err


def _forget_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the module, so that the next import runs it again."""
    for name in [name for name in sys.modules if name.startswith("aiorate._demo") and name != "aiorate._demo.strategies"]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(aiorate, name.removeprefix("aiorate."), raising=False)
    for name in ("aiorate.http", "aiorate.aiohttp"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delattr(aiorate, name.removeprefix("aiorate."), raising=False)


def test_simulate_counts_by_months(capsys: pytest.CaptureFixture[str]) -> None:
    """From the first of January 1970."""
    assert cli.main(["simulate", "--strategy", "CalendarWindow", "--rate", "2/month", "--requests", "5"]) == 0

    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[3:]] == ["0.000000"] * 2 + ["2678400.000000"] * 2 + [
        "5097600.000000"
    ]


def test_simulate_of_a_month_names_the_calendar_window(capsys: pytest.CaptureFixture[str]) -> None:
    """No other strategy has months."""
    assert cli.main(["simulate", "--rate", "2/month"]) == 2

    assert "CalendarWindow('2/month', 'UTC')" in capsys.readouterr().err
