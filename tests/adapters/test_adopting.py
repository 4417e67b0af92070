"""The patches of docs/adopting/: each applies to the package as it is installed, deletes more than it adds, and keeps its promises.

A patched copy of the package goes first on the path of another process, which runs a file of tests/adapters/adopting/ there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATCHES = ROOT / "docs" / "adopting"
PROGRAMS = Path(__file__).parent / "adopting"


@dataclass(frozen=True)
class Project:
    """A project with a patch, of the same name."""

    name: str
    version: str
    package: str
    folder: str
    """Where the package lies in the project's archive."""
    limiter: str
    """The file of the package that has the limiter."""
    program: str


PROJECTS = (
    Project("python-telegram-bot", "22.8", "telegram", "src/telegram", "ext/_aioratelimiter.py", "patched_telegram.py"),
    Project("langchain-core", "1.7.2", "langchain_core", "langchain_core", "rate_limiters.py", "patched_langchain.py"),
    Project("uiprotect", "25.0.0", "uiprotect", "src/uiprotect", "_rate_limit.py", "patched_uiprotect.py"),
)
each = pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)


def patched(project: Project, folder: Path) -> Path:
    """A copy of the installed package in ``folder``, with the patch applied; returns the package's folder."""
    assert version(project.name) == project.version, (
        f"docs/adopting/{project.name}.patch is for {project.name} {project.version}, and {version(project.name)} is installed."
        " Install that version, or adapt the patch, the page and the group `adapters` in pyproject.toml to the new one."
    )
    spec = find_spec(project.package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = folder / project.folder
    shutil.copytree(spec.submodule_search_locations[0], package, ignore=shutil.ignore_patterns("__pycache__"))
    apply = ["git", "apply", f"--include={project.folder}/*", str(PATCHES / f"{project.name}.patch")]
    outside = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}  # or git would skip files that no repository around it knows
    done = subprocess.run(apply, cwd=folder, env=outside, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return package


def count_lines(patch: Path) -> tuple[int, int]:
    """How many lines a patch adds and deletes."""
    changes = patch.read_text(encoding="utf-8").partition("\ndiff --git ")[2]
    return len(re.findall(r"^\+(?!\+\+ )", changes, re.MULTILINE)), len(re.findall(r"^-(?!-- )", changes, re.MULTILINE))


@each
def test_a_patched_package_keeps_its_promises(project: Project, tmp_path: Path) -> None:
    package = patched(project, tmp_path)

    path = os.pathsep.join(filter(None, [str(package.parent), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    program = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(PROGRAMS / project.program)]
    done = subprocess.run(program, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "from aiorate import" in (package / project.limiter).read_text(encoding="utf-8")


@pytest.mark.parametrize("patch", sorted(PATCHES.glob("*.patch")), ids=lambda patch: patch.stem)
def test_a_patch_deletes_more_than_it_adds(patch: Path) -> None:
    added, deleted = count_lines(patch)

    assert 0 < added < deleted
    assert f"{added} insertions(+), {deleted} deletions(-)" in patch.read_text(encoding="utf-8")
    assert f"| {deleted} | {added} |" in (PATCHES / "index.md").read_text(encoding="utf-8")


@each
def test_the_page_names_the_version(project: Project) -> None:
    assert f"{project.name} {project.version}" in (PATCHES / "index.md").read_text(encoding="utf-8")
