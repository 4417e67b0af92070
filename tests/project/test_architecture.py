"""The house stays as it was cut: who may import whom, and what a part may never know. Read from the sources."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import aiorate

ROOT = Path(aiorate.__file__).parent
SOURCES = {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path for path in ROOT.rglob("*.py")}
FLOORS = [  # a file may import from its own floor and from those above it in this list, never from those below
    {"rate", "spec", "errors"},
    {
        f"schedulers.{name}"
        for name in ("interface", "peaks", "token_pool", "ticks", "smooth", "token_bucket", "window", "all_of", "__init__")
    },
    {f"waiting.{name}" for name in ("__init__", "line", "counters", "batch")},
    {"waiting.clock", "waiting.timerfd"},
    {"waiting.timeline"},
    {"waiting.estimate"},
    {"waiting.driver", "waiting.filler", "waiting.alarm", "waiting.trio_driver"},
    {"waiting.dispatcher"},
    {"statistics", "slots", "decorator", "limiter"},
    {"__init__"},
    {"gate", "http", "aiohttp"},
    {"_histories", "_laws", "testing", "cli", "__main__", "demo"},
]


def floor(module: str) -> int:
    name = "demo" if module.startswith("_demo") else module
    return next(number for number, names in enumerate(FLOORS) if name in names)


def tree(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


def imports(body: ast.AST, *, only_top: bool = False) -> set[str]:
    """What is imported, but for type checking."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif not (only_top and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))) and not (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            found |= imports(node, only_top=only_top)
    return found


def ours(names: set[str]) -> set[str]:
    """Modules of aiorate among them, without the package's name."""
    inside = {name.removeprefix("aiorate").removeprefix(".") or "__init__" for name in names if name.split(".")[0] == "aiorate"}
    return {f"{name}.__init__" if f"{name}.__init__" in SOURCES else name for name in inside}


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_imports_point_one_way(module: str) -> None:
    """rate <- schedulers <- line, till <- clock <- drivers <- desk <- steering <- limiter <- adapters <- testing and the command."""
    for other in ours(imports(tree(module), only_top=True)):
        assert floor(other) <= floor(module), f"{module} imports {other}"


@pytest.mark.parametrize("module", sorted(name for name in SOURCES if floor(name) < len(FLOORS) - 1))
def test_nothing_imports_testing_or_the_command(module: str) -> None:
    """What only tests and demonstrations need is never part of a program."""
    assert not [other for other in ours(imports(tree(module))) if floor(other) == len(FLOORS) - 1]


@pytest.mark.parametrize("module", sorted(name for name in SOURCES if name.startswith("schedulers.") or name == "rate"))
def test_schedulers_know_no_loop_and_no_clock(module: str) -> None:
    """They are given the instant. CalendarWindow alone reads the wall clock, once, where it is made."""
    names = imports(tree(module))

    assert not {"asyncio", "threading", "contextvars", "anyio"} & names
    assert "time" not in names or (module == "schedulers.window" and "time" not in imports(tree(module), only_top=True))
    assert not [node for node in ast.walk(tree(module)) if isinstance(node, (ast.Await, ast.AsyncFunctionDef))]


@pytest.mark.parametrize("module", sorted(name for name in SOURCES if name.startswith("schedulers.")))
def test_no_float_accumulates_in_a_scheduler(module: str) -> None:
    """A sum of floats drifts. Floats are made for display only, by as_float and in the pool's sizes, and are never added to."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            pytest.fail(f"{module}, line {node.lineno}: a true division makes a float")
        if isinstance(node, ast.AugAssign):
            named = {leaf.id for leaf in ast.walk(node.value) if isinstance(leaf, ast.Name)}
            numbers = {leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant)}
            assert not {"as_float", "float", "ns_to_seconds"} & named, f"{module}, line {node.lineno}"
            assert not [number for number in numbers if isinstance(number, float)], f"{module}, line {node.lineno}"


def test_the_line_knows_nothing_of_rates_or_time() -> None:
    """Order and cancellation are hard enough."""
    assert not ours(imports(tree("waiting.line")))
    assert not {"time", "asyncio", "datetime"} & imports(tree("waiting.line"))


@pytest.mark.parametrize("module", ["waiting.filler", "waiting.alarm", "waiting.dispatcher", "limiter"])
def test_drivers_and_limiter_compute_no_rate(module: str) -> None:
    """How permits become time is the business of the rate and the schedulers."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("period_ns", "interval_ns"), f"{module}, line {node.lineno}"


@pytest.mark.parametrize("module", sorted({"http", "aiohttp"} & set(SOURCES)))
def test_adapters_use_public_names_only(module: str) -> None:
    """They are what a user could have written."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aiorate"):
            assert not [alias.name for alias in node.names if alias.name.startswith("_")]
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            assert isinstance(node.value, ast.Name), f"{module}, line {node.lineno}: {ast.unparse(node)}"
            assert node.value.id == "self", f"{module}, line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_no_file_is_over_300_lines(module: str) -> None:
    """If it is longer, it is two ideas."""
    assert len(SOURCES[module].read_text(encoding="utf-8").splitlines()) <= 300


def test_importing_aiorate_imports_little() -> None:
    """A limiter at the top of a program must not slow its start."""
    heavy = "anyio aiohttp httpx httpx2 dataclasses decimal fractions zoneinfo hypothesis uvloop statistics"
    code = f"import asyncio, sys; before = set(sys.modules); import aiorate; print(*set({heavy.split()!r}) & (set(sys.modules) - before))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []
