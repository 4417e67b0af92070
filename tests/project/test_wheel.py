"""What an installation brings: the library and its demo, and nothing that only tests or benchmarks need."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from helpers.driving import LONG

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BROUGHT_BY_USERS = {"httpx", "hypothesis", "trio", "valkey"}
"""What an adapter or ``aiorate.testing`` serves and never installs."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=LONG)
    (path,) = folder.iterdir()
    return ZipFile(path)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: ZipFile) -> None:
    """Tests and benchmarks stay in the sources."""
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "aiorate").rglob("*") if path.suffix in (".py", ".typed")}

    names = {name for name in wheel.namelist() if not name.startswith(f"aiorate-{PROJECT['version']}.dist-info/")}

    assert names == sources
    assert {part for name in names for part in name.split("/") if re.match(r"_(?!_)", part)} == {"_demo"}


def test_the_wheel_imports_only_what_users_can_install(wheel: ZipFile) -> None:
    """Every package that it imports is a dependency, part of an extra, or one that a user brings."""
    extras = {name: needed for name, needed in PROJECT["optional-dependencies"].items() if name != "test"}
    needed = [*PROJECT["dependencies"], *(each for several in extras.values() for each in several)]
    known = {re.split(r"[\[>;]", each)[0].replace("-", "_") for each in needed}

    imported = {
        name.partition(".")[0]
        for path in wheel.namelist()
        if path.endswith(".py")
        for node in ast.walk(ast.parse(wheel.read(path)))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }

    assert imported - sys.stdlib_module_names - known <= BROUGHT_BY_USERS
    assert sorted(extras) == ["aiohttp", "demo", "http", "httpx", "redis", "uvloop"]
