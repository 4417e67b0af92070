"""One real server for the tests of a file that need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiorate._demo.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store() as made:
        yield made
