"""The time and the modules of an import, in a new interpreter that has imported asyncio, with cached bytecode.

* *import*: the time of ``import x``.
* *modules*: the number of modules that the import adds.

aiorate imports its strategies at their first use, so it has two rows: the package, and all the names that it exports.
The floor is an empty module.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import Failed, Measured, Plan, alternate, part, python

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "imports"
TITLE = "Import: time and modules"

EMPTY = "a_benchmark_of_nothing"
WHAT = {
    "floor: an empty module": ("", f"import {EMPTY}"),
    "aiorate": ("aiorate", "import aiorate"),
    "aiorate, all it exports": ("aiorate", "from aiorate import *"),
    "aiolimiter": ("aiolimiter", "import aiolimiter"),
    "asynciolimiter": ("asynciolimiter", "import asynciolimiter"),
    "pyrate-limiter": ("pyrate-limiter", "import pyrate_limiter"),
    "limits": ("limits", "import limits.aio.storage, limits.aio.strategies"),
    "throttled-py": ("throttled-py", "import throttled.asyncio"),
    "asyncio-throttle": ("asyncio-throttle", "import asyncio_throttle"),
}

# The path is the parent's, so that the child imports the same checkout.
CODE = """
import asyncio, sys, time
sys.path[:] = sys.argv[2:]
code = compile(sys.argv[1], "", "exec")
before = len(sys.modules)
begin = time.perf_counter()
exec(code)
print(time.perf_counter() - begin, len(sys.modules) - before)
"""


def timed(statement: str, path: tuple[str, ...]) -> tuple[float, int]:
    """Milliseconds and modules of one import."""
    seconds, modules = python(CODE, statement, *path).split()
    return 1_000 * float(seconds), int(modules)


def run(plan: Plan) -> Iterator[Measured]:
    """Every package of the subjects, and the floor."""
    wanted = {subject.distribution for subject in plan.subjects} | {""}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{EMPTY}.py").write_text("", encoding="utf-8")
        path = (folder, *sys.path)
        statements = {name: statement for name, (distribution, statement) in WHAT.items() if distribution in wanted}
        plan.say("once each, so that bytecode is cached")
        for statement in statements.values():
            try:
                timed(statement, path)  # writes the bytecode
            except Failed:
                continue  # the round fails too, and says why
        for name, results in alternate(plan, {name: partial(timed, statement, path) for name, statement in statements.items()}).items():
            for place, (case, unit) in enumerate((("import", "ms"), ("modules", "modules"))):
                yield Measured.of(NAME, "", name, case, unit, part(results, place))
