"""Loops and servers that the tests run on."""

from __future__ import annotations

import asyncio
import gc
import os
from functools import partial
from typing import TYPE_CHECKING, Any

# Imported here, not by its plugin as a run ends: a garbage collection during that import fails the run (CPython 3.11).
import hypothesis
import pytest
import pytest_asyncio
from helpers.compiled import check_of, compiled_meter
from helpers.loops import FACTORIES, LeapingLoop, eager_loop
from helpers.meters import PLAIN, Machine, steady
from helpers.server import Server
from helpers.stores import RealServer

from aiorate._meter import PureMeter
from aiorate._tree.tree import Tree
from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping


# The same examples in each run, and no verdict on how long they take.
hypothesis.settings.register_profile(
    "any machine", deadline=None, database=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.load_profile("any machine")


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], Any]]:
    """The loop of asyncio, or of ``AIORATE_TEST_LOOP=uvloop``; a mark may ask for others, as a test does whose subject is the loop.

    ``pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])``, or ``["virtual"]``
    """
    mark = item.get_closest_marker("asyncio")
    if mark is not None and "loop_factories" in mark.kwargs:
        return {**FACTORIES, "virtual": VirtualLoop, "leaping": LeapingLoop}
    name = os.environ.get("AIORATE_TEST_LOOP", "asyncio")
    return {name: FACTORIES[name]}


def pytest_configure() -> None:
    """``AIORATE_EAGER=1``: every loop of the run starts its tasks eagerly, at once and inside the task that makes them (Python 3.12)."""
    if os.environ.get("AIORATE_EAGER"):
        plain = asyncio.Runner.__init__

        def eager(self: asyncio.Runner, *, debug: bool | None = None, loop_factory: Callable[[], Any] | None = None) -> None:
            plain(self, debug=debug, loop_factory=lambda: eager_loop(loop_factory or asyncio.new_event_loop))

        asyncio.Runner.__init__ = eager  # type: ignore[method-assign]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """``AIORATE_TEST_METER=open``: permits come from the meter under every clock, manual and virtual ones too.

    A test with the mark ``shut_meter`` has the meter as it is without that, and its reason says why.
    """
    if os.environ.get("AIORATE_TEST_METER") == "open":
        Tree._use = PLAIN if item.get_closest_marker("shut_meter") else steady()  # type: ignore[method-assign]


def pytest_collection_finish() -> None:
    """Exempt imported modules from garbage collection, so that tests that collect garbage are fast."""
    gc.collect()
    if hasattr(gc, "freeze"):  # PyPy has none
        gc.freeze()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The clock of all limiters that are made without one. Under it, the meter is open."""
    machine = Machine()
    for module in ("_loops.loop", "_loops.asyncio", "_tree.tree"):
        monkeypatch.setattr(f"aiorate.{module}.monotonic_ns", machine)
    return machine


@pytest.fixture(params=["pure", "compiled"])
def each_meter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scheduler that is made has the meter in Python, and once more the compiled one."""
    kind = PureMeter if request.param == "pure" else compiled_meter()
    for module in ("ticks", "token_bucket"):
        monkeypatch.setattr(f"aiorate._schedulers.{module}.Meter", kind)
    monkeypatch.setattr("aiorate._loops.loop.LoopCheck", partial(check_of, kind))


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    """A real HTTP server on loopback."""
    async with Server() as server:
        yield server


@pytest.fixture(scope="session")
def running() -> Iterator[RealServer]:
    """A real Redis or Valkey for all tests of the run."""
    with RealServer() as server:
        yield server


@pytest.fixture
def store(running: RealServer) -> RealServer:
    """That server, empty, scripts included."""
    running.send("FLUSHALL")
    running.send("SCRIPT", "FLUSH")
    running.send("CONFIG", "RESETSTAT")
    return running
