"""Loops and servers that the tests run on."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import hypothesis  # noqa: F401  # not by its plugin as a run ends: a collection in the middle of that fails the run (CPython 3.11)
import pytest
import pytest_asyncio
import uvloop
from helpers.loops import LeapingLoop
from helpers.server import Server

from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], Any]]:
    """asyncio and uvloop for every asynchronous test; a mark may ask for one of them, or for another loop.

    ``pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])``
    """
    factories: dict[str, Callable[[], Any]] = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
    mark = item.get_closest_marker("asyncio")
    if mark is not None and "loop_factories" in mark.kwargs:
        factories |= {"virtual": VirtualLoop, "leaping": LeapingLoop}
    return factories


def pytest_collection_finish() -> None:
    """What has been imported stays: tests that look for garbage need not look at all of it again and again."""
    gc.collect()
    gc.freeze()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    """A real one, on loopback."""
    async with Server() as server:
        yield server
