"""Amounts of a RedisBudget that no store can count."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.stores import RealServer, TimedClient

from aiorate import WaitTooLong
from aiorate.redis import RedisBudget

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


@pytest.fixture(scope="module")
def store() -> Any:
    with RealServer() as server:
        yield server


@pytest.mark.parametrize("amount", [2**63, 10**30, 10**400])
async def test_an_amount_larger_than_any_float_is_booked(store: RealServer, amount: int) -> None:
    """Of a rate any amount is granted, and later ones wait for as long as the store can count."""
    budget = RedisBudget(TimedClient(store), f"x{amount}", tokens="1000/s")
    async with budget.reserve(tokens=amount):
        pass

    with pytest.raises(WaitTooLong):
        await budget.reserve(tokens=1, max_wait=1e6).__aenter__()
    await budget.aclose()
