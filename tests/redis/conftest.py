"""What every test of a store leaves behind: nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio
from helpers.stores import Process, stop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest_asyncio.fixture
async def stopped() -> AsyncIterator[None]:
    """The processes that a test starts are stopped at its end."""
    Process.started.clear()
    yield
    if Process.started:
        await stop(*Process.started)
