"""Defects of limits that share others, found by random histories."""

from __future__ import annotations

import asyncio

import pytest
from helpers.strategies import EACH

from aiorate import Budget, KeyedLimiter, Limiter
from aiorate.testing import VirtualLoop


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("look", ["statistics", "available"])
def test_first_look_at_a_shared_limit_is_by_the_loops_clock(name: str, look: str) -> None:
    """It was by the monotonic clock, and in a loop of virtual time the shared limit granted nothing for hours."""

    async def main(looks: bool) -> float:
        shared = Limiter(EACH[name]())
        if look == "statistics":
            key = KeyedLimiter[str](lambda key: "1000/s", shared=shared)["a"]
            if looks:
                key.statistics()
        else:
            budget = Budget(tokens="1000/s", calls=shared)
            if looks:
                budget.available("calls")
        return sum([await shared.acquire() for _ in range(20)])

    waited: list[float] = []
    for looks in (False, True):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            waited.append(runner.run(main(looks)))
    assert waited[1] == pytest.approx(waited[0], abs=0.2)  # which is how long it takes to earn a permit or two
