"""Seven rules of imports: which room may know which, and what a part may never know. Read from the sources."""

from __future__ import annotations

import ast
import subprocess
import sys
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import aiorate

ROOT = Path(aiorate.__file__).parent
SOURCES = {
    ".".join(("aiorate", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path for path in ROOT.rglob("*.py")
}
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in SOURCES.items()}

# The rooms by floor. A module imports from its own room and from rooms above, imports inside functions included. Types for annotations
# alone may come from anywhere: the rule is about what runs.
FLOORS = """
rate errors events meter spec feedback
schedulers
loops
tree
limiters
aiorate adaptive
http otel
aiohttp asgi store redis file
testing
tools main
"""
TOOLS = {"testing", "tools", "main"}
# Where each package of a third party may be imported: in modules and folders of that name.
THIRD = {"anyio": "trio", "trio": "trio", "aiohttp": "aiohttp", "httpx": "http", "httpx2": "http"}
THIRD |= {"opentelemetry": "otel", "redis": "store", "valkey": "store"}


def parts(module: str) -> list[str]:
    """The names on the way to a module, plainly: waiting and line for aiorate._tree.line."""
    return [part.strip("_") for part in module.split(".")[1:]] or ["aiorate"]


def floor(module: str) -> int:
    """The number of its line in FLOORS."""
    room = parts(module)[0]
    (number,) = (number for number, rooms in enumerate(FLOORS.split("\n")) if any(fnmatch(room, each) for each in rooms.split()))
    return number


def imports(module: str, *, lazy: bool = True, types: bool = True) -> set[str]:
    """Everything that it imports: a module by its name, a name of a module as ``module.name``.

    ``lazy``: inside functions too. ``types``: for annotations too.
    """
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not types:
            return
        elif lazy or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(TREES[module])
    return found


def ours(module: str) -> set[str]:
    """The modules of aiorate that it imports when it runs, but for the compiled one, which imports nothing."""
    names = [name for name in imports(module, types=False) if name.partition(".")[0] == "aiorate"]
    return {name if name in SOURCES else name.rpartition(".")[0] for name in names} - {"aiorate._cmeter", module}


def where(module: str, node: ast.AST) -> str:
    return f"{module}, line {node.lineno}: {ast.unparse(node)}"  # type: ignore[attr-defined]


def test_there_is_no_cycle_of_imports() -> None:
    """Two modules that need each other when they run are one module that was cut in two."""
    try:
        TopologicalSorter({module: ours(module) for module in SOURCES}).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_imports_point_one_way() -> None:
    """Each room can be read and tested with the rooms above it alone; the loops with one protocol, not even an annotation names more."""
    up = [f"{module} imports {other}" for module in SOURCES for other in ours(module) if floor(other) > floor(module)]
    loops = [name for module in SOURCES if parts(module)[0] == "loops" for name in imports(module) if name.startswith("aiorate")]

    assert up == []
    assert {parts(name)[0] for name in loops} == {"loops", "meter", "rate"}


def test_nothing_imports_testing_or_tools() -> None:
    """Code for tests and demonstrations is never part of a program."""
    programs = [module for module in SOURCES if parts(module)[0] not in TOOLS]

    assert [f"{module} imports {other}" for module in programs for other in ours(module) if parts(other)[0] in TOOLS] == []


def test_third_parties_stay_outside() -> None:
    """An adapter knows one library, and can be imported without it. Only what is for trio knows anyio and trio."""
    for module in SOURCES:
        if parts(module)[0] in TOOLS:
            continue
        at_once = {name.partition(".")[0] for name in imports(module, lazy=False, types=False)}
        for name in {name.partition(".")[0] for name in imports(module)} - sys.stdlib_module_names - {"aiorate"}:
            assert THIRD.get(name) in parts(module), f"{module} imports {name}"
            assert name in ("anyio", "trio") or name not in at_once, f"{module} imports {name} before it is used"


def test_schedulers_know_no_loop_no_clock_and_no_sum_of_floats() -> None:
    """They are given the instant, and count in whole numbers. CalendarWindow alone reads the wall clock, once, where it is made."""
    schedulers = [module for module in SOURCES if parts(module)[0] in ("rate", "spec", "schedulers")]
    assert len(schedulers) > 10
    for module in schedulers:
        tops = {name.partition(".")[0] for name in imports(module)}
        assert not {"asyncio", "threading", "contextvars", "anyio", "selectors"} & tops, module
        assert "time" not in tops or parts(module)[-1] == "calendar_window", module
        for node in ast.walk(TREES[module]):
            assert not isinstance(node, (ast.Await, ast.AsyncFunctionDef)), where(module, node)
            if parts(module)[0] == "schedulers":
                assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)), where(module, node)
            if isinstance(node, ast.AugAssign):
                for leaf in ast.walk(node.value):
                    is_float = isinstance(leaf, ast.Constant) and isinstance(leaf.value, float)
                    assert not is_float, where(module, node)
                    assert getattr(leaf, "id", "") not in ("float", "as_float", "ns_to_seconds"), where(module, node)


def test_nothing_imports_the_private_names_of_another_module() -> None:
    """A name with an underscore is used in the file that defines it and nowhere else."""
    imported = [(module, name) for module in SOURCES for name in imports(module) if name.startswith("aiorate.") and name not in SOURCES]

    assert [f"{module} imports {name}" for module, name in imported if name.rpartition(".")[2].startswith("_")] == []


def test_importing_aiorate_imports_little() -> None:
    """A limiter at the top of a program must not slow its start."""
    heavy = "anyio trio aiohttp httpx httpx2 dataclasses decimal fractions zoneinfo hypothesis uvloop statistics"
    code = f"import asyncio, sys; before = set(sys.modules); import aiorate; print(*set({heavy.split()!r}) & (set(sys.modules) - before))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []
