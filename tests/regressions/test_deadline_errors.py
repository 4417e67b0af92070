"""Deadlines of requests whose remaining wait cannot be estimated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.stores import RealServer, TimedClient, now
from redis.exceptions import ConnectionError as NoConnection

from aiorate import EngineUnavailable, WaitTooLong
from aiorate.redis import RedisBudget

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


@pytest.fixture(scope="module")
def store() -> Any:
    with RealServer() as server:
        yield server


async def test_a_deadline_ends_a_wait_while_the_store_is_down(store: RealServer) -> None:
    """The shared budget refuses to say when it would grant, and no request is forgotten."""
    client = TimedClient(store)
    team = RedisBudget(client, "team", tokens="100/s", grace=0.1)
    budget = RedisBudget(client, "user", shared=team, tokens="100/s", grace=10)

    async def reserve(max_wait: float | None) -> float:
        began = now()
        with pytest.raises(WaitTooLong):
            async with budget.reserve(max_wait=max_wait, tokens=1):
                pass
        return now() - began

    client.error = NoConnection("down")
    patient = asyncio.create_task(reserve(None))
    tasks = [asyncio.create_task(reserve(0.5)) for _ in range(3)]
    with pytest.raises(EngineUnavailable):
        async with team.reserve(tokens=1):
            pass
    await asyncio.wait(tasks, timeout=5.0)

    assert [0.5] * 3 == [pytest.approx(task.result(), abs=0.01) for task in tasks if task.done()]
    assert 1 == budget.waiting
    patient.cancel()
    await budget.aclose()
    await team.aclose()
