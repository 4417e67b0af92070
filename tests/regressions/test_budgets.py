"""Budgets: amounts of 0, names of the server's dimensions, and what other libraries did wrong with estimates."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.calls import Calls, left
from helpers.driving import SECOND, SteppedClock, one_loop

from aiorate import Budget, Limiter, SlidingWindow, TokenBucket, WaitTooLong

pytestmark = one_loop


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


def github(clock: Any = None) -> Budget:
    """Points for all calls, and a separate limit for calls that create content."""
    return Budget(
        points=TokenBucket("900/min", burst=15), content=SlidingWindow("3/min"), requests=TokenBucket("5000/h", burst=100), clock=clock
    )


async def test_zero_takes_nothing_of_a_dimension(clock: SteppedClock) -> None:
    """0 was a ValueError, and an unnamed dimension takes 1, so GitHub's limits could not be one budget."""
    calls = Calls(github(clock), clock)

    await calls.queue(range(4), points=1, content=0)
    await calls.queue(["post"], points=5, content=1)

    assert {"points": 6, "content": 2, "requests": 95} == left(calls.budget)
    assert {"points": 5, "content": 1, "requests": 1} == calls.leases["post"].amounts


async def test_call_that_takes_none_of_a_dimension_skips_its_wait(clock: SteppedClock) -> None:
    """Reading goes on while nothing may be written for a minute."""
    calls = Calls(github(clock), clock)
    await calls.queue(range(3), points=5)
    assert (60.0, 0) == (calls.budget.delay(points=5), calls.budget.available("content"))

    assert calls.budget.delay(points=1, content=0) == 0.066666667
    await calls.queue(["read"], points=1, content=0)
    await clock.run(0.1)

    assert "read" in calls.granted
    assert calls.leases["read"].limited_by == "points"


async def test_reservation_of_nothing_still_stands_in_line(clock: SteppedClock) -> None:
    """Requests are served in order of arrival, whatever they ask for."""
    calls = Calls(github(clock), clock)
    await calls.queue(range(4), points=5)
    await calls.queue(["nothing"], points=0, content=0, requests=0)
    assert "nothing" not in calls.granted

    await clock.run(60)

    assert calls.granted["nothing"] == calls.granted[3] == 60 * SECOND


async def test_zero_and_more_of_a_shared_dimension_keep_their_order(clock: SteppedClock) -> None:
    """Estimates for a line of both are right too."""
    shared = Limiter(TokenBucket("1/s", burst=1), clock=clock)
    calls = Calls(Budget(requests=TokenBucket("10/s", burst=10), tokens=shared, clock=clock), clock)
    await calls.queue("ab", tokens=1)
    await calls.queue("c", tokens=0)
    await calls.queue("d", tokens=1)

    assert (2.0, 3.0) == (calls.budget.delay(tokens=0), calls.budget.delay(tokens=1))
    with pytest.raises(WaitTooLong):
        await calls.budget.reserve(tokens=0, max_wait=1.9).__aenter__()
    await clock.run(5)

    assert {"a": 0, "b": SECOND, "c": SECOND, "d": 2 * SECOND} == calls.granted
