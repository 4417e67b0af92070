"""The workflows of .github: they call `.ci/run`, name actions by their commits, and have the permissions that they need."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
SCRIPT = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
STEPS = set(re.findall(r"^step_([\w-]+)\(\)", SCRIPT, flags=re.MULTILINE))


def test_every_command_of_a_workflow_is_a_step_of_the_checks() -> None:
    """So that anybody can run what a workflow runs. The command of GitHub itself is the exception."""
    assert set(WORKFLOWS) == {"checks.yml", "release.yml"}
    for name, text in WORKFLOWS.items():
        commands = [line.strip() for line in re.findall(r"^ +(?:- )?run: (.*)$", text, flags=re.MULTILINE)]
        steps = [step for command in commands if command.startswith(".ci/run") for step in command.split()[1:]]
        assert steps, name
        assert set(steps) <= STEPS, name
        assert all(command.startswith((".ci/run", "gh release create ")) for command in commands), name


def test_actions_are_pinned_and_may_read_only() -> None:
    """A tag can be moved to other code, and a commit cannot. Each job that needs more says so by itself, and says why."""
    pinned = re.compile(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+|\./\.github/workflows/checks\.yml")
    for name, text in WORKFLOWS.items():
        uses = re.findall(r"uses: (.*)$", text, flags=re.MULTILINE)
        top, _, jobs = text.partition("\njobs:\n")
        assert uses, name
        assert [each for each in uses if not pinned.fullmatch(each)] == [], name
        assert "\npermissions:\n  contents: read\n" in top, name
        assert all("#" in line for line in re.findall(r"^.*: write.*$", jobs, flags=re.MULTILINE)), name
        assert jobs.count("persist-credentials: false") == jobs.count("uses: actions/checkout@"), name
