"""The workflows of .github: they call `.ci/run`, name actions by their commits, and have the permissions that they need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
SCRIPT = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
STEPS = set(re.findall(r"^step_([\w-]+)\(\)", SCRIPT, flags=re.MULTILINE))
SUPPORTED = {"3.11", "3.12", "3.13", "3.14", "3.14t"}


def test_there_are_checks_and_releases() -> None:
    """Two files, or the tests below say nothing."""
    assert set(WORKFLOWS) == {"checks.yml", "release.yml"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_command_is_a_step_of_the_checks(name: str) -> None:
    """So that nothing is said twice, and anybody can run what a workflow runs. The command of GitHub itself is the exception."""
    commands = [line.strip() for line in re.findall(r"^ +(?:- )?run: (.*)$", WORKFLOWS[name], flags=re.MULTILINE)]

    steps = [command.removeprefix(".ci/run").split() for command in commands if command.startswith(".ci/run")]

    assert steps
    assert {step for each in steps for step in each} <= STEPS
    assert all(command.startswith((".ci/run", "gh release create ")) for command in commands)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned(name: str) -> None:
    """A tag can be moved to other code, and a commit cannot."""
    pinned = re.compile(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+|\./\.github/workflows/checks\.yml")
    uses = re.findall(r"uses: (.*)$", WORKFLOWS[name], flags=re.MULTILINE)

    assert uses
    assert [each for each in uses if not pinned.fullmatch(each)] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_may_read_only(name: str) -> None:
    """Each job that needs more says so by itself, and says why."""
    top, _, jobs = WORKFLOWS[name].partition("\njobs:\n")

    assert "\npermissions:\n  contents: read\n" in top
    assert all("#" in line for line in re.findall(r"^.*: write.*$", jobs, flags=re.MULTILINE))
    assert jobs.count("persist-credentials: false") == jobs.count("uses: actions/checkout@")


def test_every_python_is_tested() -> None:
    """Those of the classifiers, and a free-threaded one."""
    named = set(re.findall(r"\b3\.\d\dt?\b", WORKFLOWS["checks.yml"]))
    plain = {each for each in SUPPORTED if not each.endswith("t")}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

    assert named == SUPPORTED
    assert set(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)) == plain


def test_all_steps_exist_and_are_listed() -> None:
    """A step that no list names is never run."""
    listed = {step for line in re.findall(r'^(?:ALL|MORE)="(.*?)"', SCRIPT, flags=re.MULTILINE) for step in line.split()}

    assert listed == STEPS - {"tests-again"}
