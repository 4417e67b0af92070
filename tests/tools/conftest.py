"""A real server for the tests of a file, and child processes that heed Ctrl-C."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from helpers.local_store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as made:
        yield made


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Without it, child processes ignore Ctrl-C if a script started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
