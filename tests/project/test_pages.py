"""README.md and the documents: their commands, pictures, names and links. The root's conftest.py runs their Python blocks."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import aiorate

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_commands_of_the_readme_need_python_and_pip_only() -> None:
    """In a fresh clone, each is one line that makes a venv, installs an extra that exists, and calls nothing else; .ci/run begins so."""
    commands = re.findall(r"^python3 -m venv .*$", README, flags=re.MULTILINE)

    parts = [command.split(" && ") for command in commands]

    assert [part[0] for part in parts] == ["python3 -m venv .venv"] * 2
    assert [part[2] for part in parts] == [".venv/bin/python -m aiorate demo", ".venv/bin/python -m pytest"]
    for _, install, _ in parts:
        match = re.fullmatch(r'\.venv/bin/pip install (?:-e )?"\.\[(\w+)\]"', install)
        assert match is not None, install
        assert match[1] in PROJECT["optional-dependencies"]
    assert commands[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_link_within_the_documents_works() -> None:
    """To a file that is there, and to a heading of it: of the sources as of the site."""
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)", page.read_text(encoding="utf-8")):
            if not link.startswith(("https:", "http:")):
                path, _, section = link.partition("#")
                target = page.parent / path if path else page
                assert target.exists(), f"{page.name}: {link}"
                assert not section or section in sections(target), f"{page.name}: {link}"


def sections(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_public_name_is_in_the_reference() -> None:
    """A public name without documentation is public by accident."""
    described = re.findall(r"aiorate\.(\w+)", (DOCS / "reference.md").read_text(encoding="utf-8"))

    assert [name for name in aiorate.__all__ if name not in described or not getattr(aiorate, name).__doc__] == []


def drawing() -> ModuleType:
    """docs/make_figures.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("make_figures", DOCS / "make_figures.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_pictures_show_what_limiters_really_do() -> None:
    """If a strategy changes, so must its picture: python docs/make_figures.py."""
    assert drawing().first_picture() == (DOCS / "figures" / "first.svg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_picture_is_on_a_page_and_drawn_from_runs() -> None:
    shown = {DOCS / link for page in DOCS.glob("*.md") for link in re.findall(r"!\[.*\]\((.*?)\)", page.read_text(encoding="utf-8"))}

    files = drawing().files()

    assert [path.name for path, text in files.items() if path.read_text(encoding="utf-8") != text] == []
    assert set(files) == shown == set((DOCS / "figures").iterdir())


@pytest.mark.slow
def test_the_table_of_the_adaptive_page_is_measured() -> None:
    """One of its rows; python docs/make_figures.py adaptive prints all."""
    page, made = (DOCS / "adaptive.md").read_text(encoding="utf-8"), drawing()

    assert made.adaptive_row("retry30") in page
