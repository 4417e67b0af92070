"""What an installation brings: the library and its demo, the compiled extension where there can be one, and no tests or benchmarks."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from helpers.driving import LONG

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BROUGHT_BY_USERS = {"httpx", "hypothesis", "pytest", "pytest_asyncio", "trio", "valkey"}
"""What an adapter or ``aiorate.testing`` serves and never installs."""
CAN_BE_COMPILED: bool = runpy.run_path(str(ROOT / "hatch_build.py"))["SUPPORTED"]
"""Whether this Python and platform can have the extension, with a compiler."""


def build(folder: Path, target: str = "wheel", **variables: str) -> tuple[Path, list[str]]:
    """What hatchling builds, and the lines that it writes to stderr besides the result's name. AIORATE_PURE is unset by default."""
    environment = {name: value for name, value in os.environ.items() if name != "AIORATE_PURE"} | variables
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=LONG)
    (path,) = folder.iterdir()
    return path, [line for line in done.stderr.splitlines() if not line.endswith(path.name)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    path, lines = build(tmp_path_factory.mktemp("wheel"), AIORATE_PURE="1")
    assert path.name.endswith("-py3-none-any.whl")
    assert lines == []
    return ZipFile(path)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: ZipFile) -> None:
    """Tests and benchmarks stay in the sources."""
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "aiorate").rglob("*") if path.suffix in (".py", ".typed")}

    names = {name for name in wheel.namelist() if not name.startswith(f"aiorate_limiter-{PROJECT['version']}.dist-info/")}

    assert names == sources


def test_the_wheel_imports_only_what_users_can_install(wheel: ZipFile) -> None:
    """Every package that it imports is a dependency, part of an extra, or one that a user brings."""
    extras = {name: needed for name, needed in PROJECT["optional-dependencies"].items() if name != "test"}
    needed = [*PROJECT["dependencies"], *(each for several in extras.values() for each in several)]
    known = {re.split(r"[\[>;]", each)[0].replace("-", "_").removesuffix("_api") for each in needed}  # opentelemetry-api

    imported = {
        name.partition(".")[0]
        for path in wheel.namelist()
        if path.endswith(".py")
        for node in ast.walk(ast.parse(wheel.read(path)))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }

    assert imported - sys.stdlib_module_names - known - {"aiorate"} <= BROUGHT_BY_USERS


def extensions(wheel: Path) -> list[str]:
    return [name for name in ZipFile(wheel).namelist() if name.endswith((".so", ".pyd"))]


@pytest.mark.slow
def test_only_a_wheel_with_an_extension_is_for_one_platform(tmp_path: Path) -> None:
    """Whether this machine can compile it or not: an installer goes by the tag. Without a compiler, a build warns in one line."""
    for name, variables in (("any", {}), ("none", {"CC": str(tmp_path / "no-compiler")})):
        path, lines = build(tmp_path / name, **variables)

        compiled = extensions(path)
        warnings = [line for line in lines if "without its C extension" in line]
        assert path.name.endswith("-py3-none-any.whl") == (compiled == []), name
        assert len(compiled) + len(warnings) == CAN_BE_COMPILED, name
        assert compiled == [] or name == "any"
        assert not [each for each in compiled if os.fsencode(ROOT) in ZipFile(path).read(each)]  # nobody sees the folder of the build


@pytest.mark.slow
def test_the_source_archive_can_be_compiled_and_is_not(tmp_path: Path) -> None:
    """It holds the hook and the C source; an extension that was compiled beside the source stays behind."""
    path, _ = build(tmp_path, "sdist")

    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"hatch_build.py", "aiorate/_cmeter.c", "tests/benchmarks/__main__.py", "docs/benchmarks.md"} <= names
    assert [name for name in names if name.endswith((".so", ".pyd"))] == []
