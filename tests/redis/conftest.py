"""One real server for all tests here, emptied before each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.stores import RealServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def running() -> Iterator[RealServer]:
    with RealServer() as server:
        yield server


@pytest.fixture
def store(running: RealServer) -> RealServer:
    """Empty, scripts included."""
    running.send("FLUSHALL")
    running.send("SCRIPT", "FLUSH")
    running.send("CONFIG", "RESETSTAT")
    return running
