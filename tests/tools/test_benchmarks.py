"""The benchmarks: that they measure what they say, stop what hangs, and show it. No test asks how fast anything is."""

from __future__ import annotations

import ast
import asyncio
import io
import platform
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import head, main, measure, progress, report, subjects
from helpers.driving import LONG
from helpers.platforms import needs_fine_clock, needs_uvloop

Measured, Failed = measure.Measured, measure.Failed

FEW = ("floor", "aiorate TokenPool", "asynciolimiter-leaky")


def plan(*names: str, rounds: int = 1, said: list[str] | None = None) -> Any:
    """The smallest run, of subjects whose names begin with one of these, in one loop."""
    chosen = tuple(subject for subject in main.SUBJECTS if subject.name.startswith(names))
    return measure.Plan("smoke", rounds, ("asyncio",), chosen, (said if said is not None else []).append)


def subject(name: str, acquire: Callable[[], Awaitable[object]]) -> Any:
    """A peer with this coroutine function as its only call."""
    return subjects.Subject(name, "peer", "", lambda rate, burst: subjects.Calls(acquire))


async def never() -> None:
    await asyncio.get_running_loop().create_future()


QUICK = ("drain", "herd", "precision")


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in main.SCENARIOS])
def test_every_scenario_yields_rows_for_its_subjects(name: str) -> None:
    """A run takes hours: a broken scenario should fail here, not in one."""
    said: list[str] = []

    rows = list(main.measure([name], plan(*FEW, said=said)))

    assert any(row.subject.startswith("aiorate") for row in rows)
    assert {name} == {row.scenario for row in rows}
    assert {row.loop for row in rows} <= {"asyncio", ""}
    assert all(row.samples or row.remark for row in rows)
    assert len({(row.loop, row.unit, row.case, row.subject) for row in rows}) == len(rows)
    assert said
    assert all(line.startswith(f"{name}: ") for line in said)
    assert "|" in report.section(main.scenario(name).TITLE, main.scenario(name).__doc__, rows)


# asynciolimiter never ends where a timer fires a tick of a coarse clock early.
PEERS = [
    pytest.param(each, marks=needs_fine_clock if each.name.startswith("asynciolimiter") else ())
    for each in main.SUBJECTS
    if each.family != "floor"
]


@pytest.mark.parametrize("peer", PEERS, ids=lambda each: each.name)
def test_every_subject_grants_what_it_is_asked_for(peer: Any) -> None:
    """An adapter that is wrong would make a library look slow, or broken."""

    async def some() -> object:
        calls = peer.make(1000.0, 10)
        for _ in range(12):
            await calls.acquire()
        if calls.context is not None:
            async with calls.context:
                pass
        if calls.attempt is not None:
            calls.attempt()
        if calls.attempt_async is not None:
            await calls.attempt_async()
        await peer.close(calls)
        return "granted"

    assert measure.run_in("asyncio", some, 5.0) == "granted"


@pytest.mark.parametrize("loop", ["asyncio", pytest.param("uvloop", marks=needs_uvloop)])
def test_a_call_that_hangs_is_stopped(loop: str) -> None:
    """Some peers never return; the run must go on."""
    with pytest.raises(Failed, match=r"stopped after 0\.05 s"):
        measure.run_in(loop, never, 0.05)


def test_a_subject_that_hangs_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a remark, and not seven rounds of 20 s."""
    drain = main.scenario("drain")
    monkeypatch.setattr(drain, "TIMEOUT", 0.05)
    said: list[str] = []
    hanging = measure.Plan("smoke", 3, ("asyncio",), (subject("hanging", never),), said.append)

    rows = [row for row in drain.run(hanging) if row.subject == "hanging"]

    assert {((), "stopped after 0.05 s")} == {(row.samples, row.remark) for row in rows}
    assert len([line for line in said if "hanging" in line]) == 1


def test_a_failing_cancellation_is_reported_as_a_hang() -> None:
    """Once: the error that a stopped peer raises does not appear on the screen."""

    async def failing() -> None:
        try:
            await never()
        except asyncio.CancelledError:
            raise ZeroDivisionError from None

    async def both() -> None:
        await asyncio.wait([asyncio.ensure_future(failing()), asyncio.ensure_future(never())])

    with pytest.raises(Failed, match=r"stopped after 0\.05 s"):
        measure.run_in("asyncio", both, 0.05)


@pytest.mark.parametrize(
    ("code", "hint"),
    [("raise ValueError('no rate')", "ValueError: no rate"), ("raise SystemExit(3)", "exit code 3"), ("while True: pass", "stopped after")],
)
def test_a_failed_interpreter_is_reported(code: str, hint: str) -> None:
    """By the last line of its errors, or by its exit code."""
    with pytest.raises(Failed, match=hint):
        measure.python(code, timeout=0.5 if "stopped" in hint else LONG)


def test_the_head_of_a_run_names_installed_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing library has no version; a machine without /proc/cpuinfo still has a name."""
    monkeypatch.setattr(head, "Path", lambda path: Path("/nowhere/cpuinfo"))
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "toaster")

    facts = head.head("drain", ["pytest", "no-such-library"])

    assert facts["versions"] == {"pytest": pytest.__version__}
    assert str(facts["machine"]).startswith("toaster, ")


@pytest.mark.parametrize(("modules", "words"), [({"aiorate._meter": head}, "1.0 compiled"), ({}, "1.0 pure")])
def test_the_head_says_whether_aiorate_is_compiled(modules: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two differ more than most releases do."""
    monkeypatch.setattr(head, "sys", SimpleNamespace(modules=modules))
    monkeypatch.setattr(head, "metadata", SimpleNamespace(version=lambda name: "1.0"))

    assert head.head("ready", ["aiorate", "uvloop"])["versions"] == {"aiorate": words, "uvloop": "1.0"}


def test_progress_on_a_terminal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes in place and disappears at the end, so only the tables stay on the screen."""
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=iter((10.0, 75.0, 76.0)).__next__))
    monkeypatch.setenv("TERM", "xterm")

    with progress.progress() as say:
        say("drain: round 1")
        assert "1:05 drain: round 1" in screen.getvalue()
        assert "\n" not in screen.getvalue()
        say("drain: round 2")

    assert "1:06 drain: round 2" in screen.getvalue()
    assert "\x1b[2K" in screen.getvalue().rpartition("round 2")[2]  # erased


def test_each_round_begins_with_the_next_job() -> None:
    """A job that is always first would always find the machine cold."""
    order: list[str] = []
    jobs = {name: (lambda name=name: order.append(name)) for name in "abc"}

    gathered = measure.alternate(plan(rounds=3), jobs)

    assert "".join(order) == "abcbcacab"
    assert gathered == {name: [None] * 3 for name in "abc"}


def test_a_job_that_raises_leaves_the_others_alone() -> None:
    """A peer may raise anything."""

    def broken() -> float:
        raise ZeroDivisionError("no rate")

    gathered = measure.alternate(plan(rounds=2), {"broken": broken, "sound": lambda: 1.0})

    row = Measured.of("drain", "asyncio", "broken", "100", "ns", gathered["broken"])
    assert ((), "ZeroDivisionError: no rate") == (row.samples, row.remark)
    assert gathered["sound"] == [1.0, 1.0]


@pytest.mark.slow  # measures how long calls take
def test_a_call_that_waits_has_no_figure() -> None:
    """The figure would be the timer's, not the call's."""
    uncontended = main.scenario("uncontended")
    sleepy = measure.Plan("smoke", 1, ("asyncio",), (subject("sleepy", lambda: asyncio.sleep(0.001)),), str)
    through = measure.Plan("smoke", 1, ("asyncio",), (subject("through", lambda: asyncio.sleep(0)),), str)

    rows = [row for each in (sleepy, through) for row in uncontended.run(each) if row.case.startswith("acquire()")]

    remarks = {row.subject: (row.remark, bool(row.samples)) for row in rows}
    assert remarks == {"sleepy": ("waits", False), "through": ("through the loop", True)}


def test_the_benchmarks_use_public_names() -> None:
    """They measure what users call. The server that several processes share is the demo's."""
    files = Path(main.__file__).parent.glob("*.py")
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]

    modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}

    assert {name for name in modules if name.startswith("aiorate")} == {
        "aiorate",
        "aiorate.redis",
        "aiorate.testing",
        "aiorate._demo.store",
    }


SPACE, HYPHEN = "\N{NO-BREAK SPACE}", "\N{NON-BREAKING HYPHEN}"
TABLE = f"""\
| asyncio, ns | acquire() | /{SPACE}floor | try |
|---|---:|---:|---:|
| floor: empty | 50{SPACE}(40{HYPHEN}60) | 1.00 |  |
| quick | **75** | 1.50 | - |
| late | 60 through the loop | 1.20 | 1{SPACE}234 |
| slow | 100{SPACE}(90{HYPHEN}120) | 2.00 | **12.3** |

| uvloop, delivered/asked | 10/s |
|---|---:|
| quick | **0.9990** |
| slow | 1.2000 |
| never | stopped after 20 s |
"""


def test_tables_of_made_up_figures() -> None:
    """Median and spread, the ratio to the floor, the best in bold, and why a figure is missing."""

    def row(subject: str, case: str, *samples: float, loop: str = "asyncio", unit: str = "ns", remark: str = "") -> Any:
        return Measured("made up", loop, subject, case, unit, samples, remark)

    rows = [
        row("quick", "acquire()", 75.0),
        row("late", "acquire()", 60.0, remark="through the loop"),
        row("slow", "acquire()", 90.0, 100.0, 120.0),
        row("floor: empty", "acquire()", 40.0, 50.0, 60.0),
        row("quick", "try", remark="no such call"),
        row("late", "try", 1234.4),
        row("slow", "try", 12.34),
        row("quick", "10/s", 0.999, loop="uvloop", unit="delivered/asked"),
        row("slow", "10/s", 1.2, loop="uvloop", unit="delivered/asked"),
        row("never", "10/s", loop="uvloop", unit="delivered/asked", remark="stopped after 20 s"),
    ]

    assert report.tables(rows) == TABLE


def test_a_table_wider_than_a_page_is_cut() -> None:
    """A page would hide its last columns. Percentiles of one rate stay side by side."""
    cases = [f"{rate}/s {what}" for rate in (10, 100, 1_000) for what in ("p50", "p99")]
    rows = [Measured("made up", "asyncio", "quick", case, "us late", (12_345.0, 23_456.0, 34_567.0)) for case in cases]

    heads = [line for line in report.tables(rows).splitlines() if line.startswith("| asyncio, us late |")]

    assert [line.split(" | ")[1:] for line in heads] == [
        ["10/s p50", "10/s p99 |"],
        ["100/s p50", "100/s p99 |"],
        ["1000/s p50", "1000/s p99 |"],
    ]


def test_commands_of_all_runs_are_in_one_block() -> None:
    """Outside a block, Markdown turns the two hyphens of an option into a dash."""
    machine = {"machine": "m", "system": "s", "python": "3.11", "versions": {"aiorate": "1"}}
    runs = [{**machine, "date": f"day {day}", "load": "0", "command": f"python tests/benchmarks drain --rounds {day}"} for day in (1, 2)]

    shown = report.page([*runs, {**runs[0], "machine": "other"}], [])

    blocks = shown.split("```")[1::2]
    assert [block.count("python tests/benchmarks drain --rounds") for block in blocks] == [2, 1]
    assert shown.count("* Machine: ") == 2


@pytest.mark.slow  # draws pictures
def test_a_run_is_written_and_can_be_reported_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another look at the figures should not take hours of measuring."""
    first, second = tmp_path / "first", tmp_path / "second"

    assert main.main(["uncontended", "--size", "smoke", "--loop", "asyncio", "--only", "TokenBucket", "--out", str(first)]) == 0
    shown, progress = capsys.readouterr()
    assert main.main(["--from", str(first / "benchmarks.json"), "--out", str(second)]) == 0

    assert "uncontended: round 1 of 1: asyncio acquire(), 1000/s aiorate TokenBucket" in progress
    assert "python tests/benchmarks uncontended --size smoke --loop asyncio --only TokenBucket\n" in shown
    assert "| aiorate TokenBucket |" in shown
    assert shown == capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in first.iterdir()} == {path.name: path.read_bytes() for path in second.iterdir()}
    assert (first / "benchmarks.md").read_text(encoding="utf-8") == shown
    assert list(first.glob("*.svg"))


def test_the_list_names_scenarios_and_subjects(capsys: pytest.CaptureFixture[str]) -> None:
    """These are the valid arguments."""
    assert main.main(["--list"]) == 0

    shown = capsys.readouterr().out
    for name in (*main.SCENARIOS, *(each.name for each in main.SUBJECTS)):
        assert name in shown


def test_the_benchmarks_run_as_a_program(tmp_path: Path) -> None:
    """From any folder, with the aiorate beside them, whichever is installed."""
    folder = Path(main.__file__).parent

    done = subprocess.run([sys.executable, str(folder), "--list"], cwd=tmp_path, capture_output=True, text=True, timeout=LONG)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("uncontended ")


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """The usage shows the command of contributing.md."""
    assert main.main(["--help"]) == 0

    shown = capsys.readouterr().out
    for word in ("python tests/benchmarks", "--size", "--rounds", "--loop", "--only", "--beside", "--traced", "--out", "--from", "--list"):
        assert word in shown


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["speed"], "'speed' is not a scenario; there are uncontended, drain"),
        (["--rounds", "0"], "'0' is not a whole number from 1 to 1000"),
        (["--size", "huge"], "smoke"),
        (["--only", "nobody"], "no subject is called nobody"),
        (["--from", "nowhere.json"], "nowhere.json is not a benchmarks.json"),
    ],
)
def test_wrong_arguments_name_the_valid_ones(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, before anything is measured."""
    assert main.main([*arguments]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["limits", "rich"])
def test_a_missing_library_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is measured, not hours later."""
    monkeypatch.setitem(sys.modules, missing, None)

    assert main.main(["drain", "--size", "smoke"]) == 2
    assert f'the benchmarks need {missing}, which is not installed: pip install -e ".[test]"' in capsys.readouterr().err


@pytest.mark.slow  # draws pictures
def test_kept_results_match_the_kept_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No table is edited by hand: tables come from the figures, and the figures from a run."""
    kept = Path(__file__).parents[2] / "docs" / "benchmarks"

    assert main.main(["--from", str(kept / "benchmarks.json"), "--out", str(tmp_path)]) == 0

    page = (kept / "benchmarks.md").read_text(encoding="utf-8")
    assert (tmp_path / "benchmarks.md").read_text(encoding="utf-8") == page
    assert capsys.readouterr().out == page
    assert {path.name for path in kept.iterdir()} == {path.name for path in tmp_path.iterdir()}
    for name in main.SCENARIOS:
        assert f"## {main.scenario(name).TITLE}" in page
