"""README.md and the documents are true: commands, pictures, names, links.

The root's conftest.py runs their Python blocks.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from helpers.scripts import script

import aiorate

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts)]


def _commands() -> list[str]:
    return re.findall(r"^```sh\n(.*?)\n```$", README, flags=re.MULTILINE | re.DOTALL)


def test_checks_begin_with_the_command_of_the_readme() -> None:
    """`.ci/run` runs what readers are told to run, to the letter."""
    command = next(command for command in _commands() if command.endswith("-m pytest"))
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    first = next(line.strip() for line in script.splitlines() if "-m venv" in line)

    assert first == command


def test_commands_of_the_readme_need_python_and_pip_only() -> None:
    """In a fresh clone, each is one line that makes a venv, installs an extra that exists, and calls nothing else."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    commands = [command for command in _commands() if "venv" in command]

    parts = [command.split(" && ") for command in commands]

    assert [part[0] for part in parts] == ["python3 -m venv .venv"] * 2
    assert [part[2] for part in parts] == [".venv/bin/python -m aiorate demo", ".venv/bin/python -m pytest"]
    for _, install, _ in parts:
        match = re.fullmatch(r'\.venv/bin/pip install (?:-e )?"\.\[(\w+)\]"', install)
        assert match is not None
        assert match[1] in extras


@pytest.mark.parametrize("name", ["make_adaptive", "make_figures", "make_tables"])
def test_pictures_and_tables_show_the_real_strategies(name: str) -> None:
    """If a strategy changes, so must its picture: python docs/make_figures.py. A figure comes from the benchmarks' file."""
    made = script(name)

    stale = [path.name for path, text in made.files().items() if path.read_text(encoding="utf-8") != text]

    assert stale == []


def test_the_script_that_compares_the_drivers_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The design quotes its table. Here it measures a few waiters only, so the figures mean nothing."""
    measured = script("measure_drivers")
    measured.ROUNDS, measured.MANY = 1, 100

    measured.main()

    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == len(measured.CASES)


@pytest.mark.parametrize("name", aiorate.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    """A public name without documentation is public by accident."""
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")

    described = re.findall(r"^\.\. auto(?:class|exception|function):: aiorate\.(\w+)(?:\(\))?$", reference, flags=re.MULTILINE)

    assert name in described
    assert getattr(aiorate, name).__doc__


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_documents_works(page: Path) -> None:
    """A reader of the sources follows the same links as one of the site."""
    text = page.read_text(encoding="utf-8")

    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if not link.startswith("https:")]

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_can_be_reached_from_the_index() -> None:
    """A page that is in no table of contents is lost."""
    docs = ROOT / "docs"
    reached, to_read = set(), [docs / "index.md"]
    while to_read:
        page = to_read.pop()
        reached.add(page)
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            to_read += [
                page.parent / f"{line}.md" for line in block.split("\n") if line and not line.startswith(":") and "https:" not in line
            ]

    assert [page for page in PAGES if docs in page.parents and page not in reached] == []


def test_the_changelog_begins_with_this_version() -> None:
    """Users who upgrade look there first."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)

    assert newest is not None
    assert newest[1] == version
