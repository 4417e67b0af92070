"""Natural mistakes of new users: each is answered by what to write, or a type checker finds it. None is silent.

The programs lie in ``programs``: source lines, then the answers, each after "? ". An answer is the type of an exception and a part of its
text; "RuntimeWarning", "log" or "exit 2" and a part of that text; or "mypy" or "pyright", which finds the mistake.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import isawaitable
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
from helpers.mistakes import Program, checked_file, programs, run

import aiorate
from aiorate.misnamed import HOMES

PROGRAMS = programs()
TOLD = [program for program in PROGRAMS if any(answer not in ("mypy", "pyright") for answer in program.answers)]


@pytest.mark.parametrize("program", TOLD, ids=lambda program: program.name)
@pytest.mark.filterwarnings("ignore")  # coroutines that are never awaited, and clients that are never closed, are part of some mistakes
def test_mistake_is_answered_by_what_to_write(program: Program) -> None:
    """By an exception, a warning, the log or the command line."""
    told = run(program)

    for answer in program.answers:
        kind, _, text = answer.partition(": ")
        if text:
            assert any(one.startswith(f"{kind}: ") and text in " ".join(one.split()) for one in told), (program.source, answer, told)


def test_each_mistake_has_an_answer() -> None:
    """None is silent, and there are many."""
    assert [] == [program.source for program in PROGRAMS if not program.answers]
    assert 700 < len(PROGRAMS)
    assert len(PROGRAMS) == len({program.source for program in PROGRAMS})


def missed(checker: str, places: dict[str, range], found: Iterator[int]) -> list[str]:
    """The programs that the checker should find, and has not found in any of those lines."""
    lines = set(found)
    due = [program for program in PROGRAMS if checker in program.answers]
    return [program.source for program in due if not lines.intersection(places[program.name])]


@pytest.mark.slow
def test_mypy_finds_what_cannot_be_told(tmp_path: Path) -> None:
    """One run over all programs, with the settings of a user who has none."""
    pytest.importorskip("mypy", reason="mypy is for those who work on aiorate, not for those who run its tests")
    text, places = checked_file(program for program in PROGRAMS if program.checked)
    file = tmp_path / "programs.py"
    file.write_text(text, encoding="utf-8")
    options = ["--config-file=", "--check-untyped-defs", "--no-error-summary", f"--cache-dir={tmp_path}"]

    answer = subprocess.run(
        [sys.executable, "-m", "mypy", *options, file], capture_output=True, text=True, cwd=Path(aiorate.__file__).parents[1]
    )

    found = map(int, re.findall(r"^.*programs\.py:(\d+): error: ", answer.stdout, re.MULTILINE))
    assert [] == missed("mypy", places, found), answer.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pyright", path=Path(sys.executable).parent) is None, reason="pyright is not installed")
def test_pyright_finds_what_cannot_be_told(tmp_path: Path) -> None:
    """The same by the other checker."""
    text, places = checked_file(program for program in PROGRAMS if program.checked)
    file = tmp_path / "programs.py"
    file.write_text(text, encoding="utf-8")
    command = [str(Path(sys.executable).parent / "pyright"), "--outputjson", "--pythonpath", sys.executable, str(file)]

    answer = subprocess.run(command, capture_output=True, text=True, cwd=Path(aiorate.__file__).parents[1])

    errors = (each for each in json.loads(answer.stdout)["generalDiagnostics"] if each["severity"] == "error")
    assert [] == missed("pyright", places, (each["range"]["start"]["line"] + 1 for each in errors))


@pytest.mark.parametrize("module", sorted(HOMES))
def test_homes_of_public_names_are_complete(module: str) -> None:
    """A name that is looked up in the wrong module is answered by the right one."""
    assert set(HOMES[module]) == set(import_module(module).__all__)


@pytest.mark.parametrize("submodule", sorted(set(HOMES) - {"aiorate"}))
def test_a_module_that_was_not_imported_says_so(submodule: str) -> None:
    """``import aiorate`` does not import the adapters."""
    program = f"import aiorate\ntry:\n    {submodule}.anything\nexcept AttributeError as error:\n    print(error)"

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert f"import {submodule}" in answer.stdout


@pytest.mark.parametrize("module", [aiorate, *(import_module(name) for name in HOMES)], ids=lambda module: module.__name__)
def test_hasattr_is_false_for_a_name_of_others(module: ModuleType) -> None:
    """Only a statement `from module import name` gets an ImportError."""
    assert not hasattr(module, "RateLimiter")
    assert not hasattr(module, "nonsense")
    with pytest.raises(AttributeError, match="has no 'nonsense'"):
        module.nonsense  # noqa: B018


def test_names_of_others_do_not_exist() -> None:
    """Neither hasattr() nor dir() finds them, and a subclass may have them."""

    class Mine(aiorate.Limiter):
        def wait(self) -> int:
            return 5

    limiter = aiorate.Limiter("10/s")
    for thing in (limiter, aiorate.Rate(10), aiorate.Budget(tokens="1/s")):
        assert all(hasattr(thing, name) for name in dir(thing))
    assert not hasattr(limiter, "wait")
    assert not hasattr(aiorate.Limiter, "wait")
    assert 5 == Mine("10/s").wait()
    with pytest.raises(AttributeError):
        Mock(spec=limiter).wait()


@pytest.mark.parametrize("make", [lambda: aiorate.Limiter("10/s"), lambda: aiorate.KeyedLimiter[str](lambda key: "10/s")])
def test_a_limiter_is_not_awaitable(make: Callable[[], object]) -> None:
    """Frameworks await what a provider returns if it is awaitable, so `await limiter` gets Python's own words."""
    assert not isawaitable(make())
