"""Which module may import which, and what a part may never know. Read from the sources."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import aiorate

ROOT = Path(aiorate.__file__).parent
SOURCES = {
    ".".join(("aiorate", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path for path in ROOT.rglob("*.py")
}
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in SOURCES.items()}

# A module imports from rows above its own and from nowhere else, imports inside functions included. Types for annotations alone may come
# from anywhere: the rule is about what runs.
ROWS = """
absent mistakes misnamed not_rates wrong_arguments
explained
errors rate events meter waited
spec feedback finder calendar_rate
schedulers.interface schedulers.peaks schedulers.calendar_edges
schedulers.undo schedulers.compound schedulers.window
schedulers.metered
schedulers.token_pool schedulers.ticks schedulers.smooth schedulers.token_bucket schedulers.all_of
schedulers.sliding_window schedulers.calendar_window
schedulers.server_bucket
schedulers.capped schedulers.places schedulers.next_free schedulers.slot_run schedulers.supplied schedulers.windows_ahead
schedulers.slots_in_hand schedulers.quota_scheduler
schedulers.slot_scheduler
schedulers.dimensions
schedulers.levels
schedulers.bookings
schedulers.booked_dimensions
schedulers
several

waiting waiting.asyncio waiting.trio waiting.process
waiting.fair_queue waiting.passes
waiting.line waiting.counters waiting.callback waiting.watcher waiting.clock waiting.view waiting.driver waiting.port waiting.lock
waiting.asyncio.port waiting.trio.here waiting.trio.port waiting.process.port
waiting.turnstile waiting.asyncio.timerfd waiting.trio.timer waiting.process.section
waiting.process.inbox waiting.process.timekeeper
waiting.timeline waiting.timer waiting.one_loop waiting.extras
waiting.asyncio.alarm waiting.asyncio.filler waiting.trio.driver
waiting.asyncio.view waiting.trio.view
waiting.loops
waiting.process.inboxes
waiting.process.driver waiting.process.family
waiting.process.view

waiting.refusals waiting.notices waiting.max_waiting waiting.deciding waiting.catch_up waiting.asking
waiting.fair_line
waiting.estimate waiting.receipts options
waiting.rehearsal waiting.waiters
waiting.moving totals
waiting.questions waiting.watch
waiting.deadlines waiting.gate waiting.changes waiting.granting
waiting.dispatcher waiting.process.blocking
waiting.process.scope
waiting.entrance

statistics slots decorator kept lease keyed_guard
limiter keyed_base
adaptive
keyed above budget_options budget_quotas budget_refusals
budget
keyed_budget
aiorate

otel http.vendors http.values
http.quotas
http.feedback
http.requests
http.hooks http.transport aiohttp
http

asgi.address asgi.fields
asgi.policies
asgi.middleware
asgi

redis.asking redis.failures redis.address redis.exchange
redis.scripting
redis.use redis.script redis.window_script redis.booking_script redis.limits
redis.connections redis.outage redis.immediate redis.pauses redis.switch redis.demand redis.ledger redis.spare
redis.options
redis.slots redis.windows redis.booking_ledger redis.booking_outage
redis.store
redis.client
redis.place redis.service
redis.process_place redis.session
redis.limiter redis.budget
redis

testing.clock testing.loop testing.histories testing.transcript testing.resetting
testing.receipts
testing.laws testing.simulation testing.fixtures
testing

_tools _tools.strategies _tools.figures
_tools.demo _tools.simulate
_tools.cli
__main__
"""
# Rows that may surprise:
# * the estimate stands above the timeline, because it takes pauses into account;
# * loops.py stands above the views of asyncio and trio, which its table names;
# * slots and statistics stand below the limiter, which makes them, and beside the dispatcher, which they read.
ROW = {
    "aiorate" if name == "aiorate" else f"aiorate.{name}": number
    for number, names in enumerate(ROWS.strip().splitlines())
    for name in names.split()
}
CORE = sorted(module for module in SOURCES if ROW.get(module, 99) <= ROW["aiorate"])
SCHEDULERS = sorted(module for module in SOURCES if module.startswith("aiorate.schedulers"))
TOOLS = ("aiorate.testing", "aiorate.__main__", "aiorate._tools")


def imports(module: str, *, lazy: bool = True, types: bool = True) -> set[str]:
    """Everything that it imports: a module by its name, a name of a module as ``module.name``.

    ``lazy``: inside functions too. ``types``: for annotations too.
    """
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module if node.level == 0 else f"{module.rpartition('.')[0]}.{node.module or ''}".rstrip(".")
            found.update(f"{source}.{alias.name}" for alias in node.names)
        elif (lazy or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))) and ((lazy and types) or not is_for_types(node)):
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(TREES[module])
    return found


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def ours(module: str) -> set[str]:
    """The modules of aiorate that it imports when it runs."""
    names = [name for name in imports(module, types=False) if name.partition(".")[0] == "aiorate"]
    return {name if name in SOURCES else name.rpartition(".")[0] for name in names}


def others(module: str, *, lazy: bool = True) -> set[str]:
    """The packages of third parties that it imports."""
    names = {name.partition(".")[0] for name in imports(module, lazy=lazy)}
    return names - sys.stdlib_module_names - {"aiorate"}


def where(module: str, node: ast.AST) -> str:
    return f"{module}, line {node.lineno}: {ast.unparse(node)}"  # type: ignore[attr-defined]


def test_every_module_has_its_place() -> None:
    """A file without a row could import anything."""
    assert sorted(ROW) == sorted(SOURCES)


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_imports_point_one_way(module: str) -> None:
    """Each part can be read and tested with the rows above it alone."""
    for other in ours(module) - {"aiorate._meter"}:  # which is compiled, and imports nothing
        assert ROW[other] < ROW[module], f"{module} imports {other}"


def test_there_is_no_cycle_of_imports() -> None:
    """Two modules that need each other when they run are one module that was cut in two."""
    try:
        TopologicalSorter({module: ours(module) - {module} for module in SOURCES}).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("module", CORE)
def test_every_module_of_the_core_can_be_imported(module: str) -> None:
    """Also a module of protocols only, which no program imports."""
    assert import_module(module).__doc__


@pytest.mark.parametrize("module", [module for module in sorted(SOURCES) if not module.startswith(TOOLS)])
def test_nothing_imports_testing_or_the_command(module: str) -> None:
    """Code for tests and demonstrations is never part of a program."""
    assert not [other for other in ours(module) if other.startswith(TOOLS)]


# Of classes that derive from another of ours: what they use of it.
OF_BASES = {
    "aiorate.keyed": {"_call", "_check_scope_of", "_check_scope_of_shared", "_closed", "_guard", "_on_event", "_shared"},
    "aiorate.keyed_budget": {"_check_scope_of", "_check_scope_of_shared", "_closed", "_guard"},
    "aiorate.redis.booking_outage": {"_bursts", "_rates"},
    "aiorate.redis.budget": {"_dispatcher"},
    "aiorate.redis.limiter": {"_dispatcher", "_max_waiting"},
}


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_nothing_touches_the_private_names_of_another(module: str) -> None:
    """An attribute with an underscore is used in the file that defines it and nowhere else."""
    tree = TREES[module]
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    own |= {node.target.id for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    own |= {name.id for node in ast.walk(tree) if isinstance(node, ast.Assign) for name in node.targets if isinstance(name, ast.Name)}
    own |= {"_replace"}  # the public method of a named tuple
    # asyncio's, and documented
    own |= {"_get_running_loop"} if module in ("aiorate.waiting.loops", "aiorate.waiting.asyncio.port") else set()
    own |= OF_BASES.get(module, set())

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            assert node.attr in own, where(module, node)
    for name in imports(module):
        if name.startswith("aiorate.") and name not in SOURCES:
            assert not name.rpartition(".")[2].startswith("_"), f"{module} imports {name}"


# What these look up by name is not part of a protocol: public names that are imported when they are first used, and the name of the
# function that a user decorates.
LOOKS_UP = {"aiorate", "aiorate.schedulers", "aiorate.decorator"}


@pytest.mark.parametrize("module", sorted(set(SOURCES) - LOOKS_UP))
def test_nothing_is_looked_up_by_name(module: str) -> None:
    """A part declares in a protocol with defaults what it needs of another; it does not test for attributes."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("getattr", "hasattr", "setattr", "delattr"), where(module, node)


THIRD = {
    **{module: {"anyio", "trio"} for module in SOURCES if module.startswith("aiorate.waiting.trio.")},
    "aiorate.aiohttp": {"aiohttp"},
    "aiorate.http.transport": {"httpx", "httpx2"},  # httpx2 is a fork of httpx
    "aiorate.http.quotas": {"http_sf"},
    "aiorate.otel": {"opentelemetry"},
    "aiorate.redis.store": {"redis", "valkey"},
}


@pytest.mark.parametrize("module", sorted(module for module in SOURCES if not module.startswith(TOOLS)))
def test_third_parties_stay_outside(module: str) -> None:
    """Only the folder for trio imports anyio and trio. An adapter knows one library, and can be imported without it."""
    assert others(module) <= THIRD.get(module, set())
    assert not others(module, lazy=False) or "trio" in module


@pytest.mark.parametrize("module", ["aiorate.rate", "aiorate.spec", *SCHEDULERS])
def test_schedulers_know_no_loop_and_no_clock(module: str) -> None:
    """They are given the instant. CalendarWindow alone reads the wall clock, once, where it is made."""
    tops = {name.partition(".")[0] for name in imports(module)}

    assert not {"asyncio", "threading", "contextvars", "anyio", "selectors"} & tops
    assert "time" not in tops or module == "aiorate.schedulers.calendar_window"
    assert not [where(module, node) for node in ast.walk(TREES[module]) if isinstance(node, (ast.Await, ast.AsyncFunctionDef))]


@pytest.mark.parametrize("module", SCHEDULERS)
def test_no_float_accumulates_in_a_scheduler(module: str) -> None:
    """A sum of floats drifts. Floats are made for display only, by as_float and in the pool's sizes, and are never added to."""
    for node in ast.walk(TREES[module]):
        assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)), where(module, node)
        if isinstance(node, ast.AugAssign):
            named = {leaf.id for leaf in ast.walk(node.value) if isinstance(leaf, ast.Name)}
            numbers = [leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant) and isinstance(leaf.value, float)]
            assert not numbers, where(module, node)
            assert not {"as_float", "float", "ns_to_seconds"} & named, where(module, node)


def test_the_line_knows_nothing_of_loops_rates_or_time() -> None:
    """It does order and cancellation only. Of asyncio it knows the two exceptions that a future raises."""
    outside = {name for name in imports("aiorate.waiting.line") if not name.startswith(("__future__", "collections", "typing"))}

    assert outside == {"asyncio.CancelledError", "asyncio.InvalidStateError"}


@pytest.mark.parametrize("part", ["catch_up", "counters", "estimate"])
def test_counting_parts_know_no_loop(part: str) -> None:
    """They are given the instant, as schedulers are."""
    assert not {"asyncio", "time", "threading"} & {name.partition(".")[0] for name in imports(f"aiorate.waiting.{part}")}


ARITHMETIC = (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)


@pytest.mark.parametrize(
    "part",
    [
        "waiting.dispatcher",
        "waiting.asyncio.filler",
        "waiting.asyncio.alarm",
        "waiting.trio.driver",
        "waiting.process.driver",
        "waiting.driver",
        "limiter",
    ],
)
def test_drivers_dispatcher_and_limiter_compute_no_rate(part: str) -> None:
    """The rate and the schedulers turn permits into time: all others add, subtract and compare."""
    module = f"aiorate.{part}"
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("period_ns", "interval_ns", "permits_in"), where(module, node)
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ARITHMETIC):
            assert ast.unparse(node) == "waited / NS_PER_SECOND", where(module, node)  # users are told seconds


def test_importing_aiorate_imports_little() -> None:
    """A limiter at the top of a program must not slow its start."""
    heavy = "anyio trio aiohttp httpx httpx2 dataclasses decimal fractions zoneinfo hypothesis uvloop statistics"
    code = f"import asyncio, sys; before = set(sys.modules); import aiorate; print(*set({heavy.split()!r}) & (set(sys.modules) - before))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []
