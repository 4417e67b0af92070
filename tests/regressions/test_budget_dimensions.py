"""Budgets: amounts of 0, and dimensions whose name is nearly the server's."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from helpers.calls import Calls
from helpers.driving import SECOND, SteppedClock, one_loop

from aiorate import Budget, Limiter, SlidingWindow, TokenBucket, WaitTooLong
from aiorate.http import Feedback, Quota
from aiorate.testing import ManualClock

pytestmark = one_loop


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


def left(budget: Budget) -> dict[str, int]:
    """Return how many permits each dimension has available."""
    return {name: budget.available(name) for name in budget.dimensions}


# Amounts of 0.


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


async def test_reservation_of_nothing_may_be_settled_as_more(clock: SteppedClock) -> None:
    """The rest is a debt, as for any estimate that was too small; and nothing is given back."""
    calls = Calls(github(clock), clock)
    await calls.queue(["a", "b", "c"], points=1, content=0)

    await calls.end("a", points=1, content=2)
    calls.leases["b"].refund()
    await calls.end("b")
    calls.tasks["c"].cancel()

    assert {"points": 13, "content": 1, "requests": 98} == left(calls.budget)


async def test_a_cancelled_reservation_of_nothing_leaves_no_trace(clock: SteppedClock) -> None:
    """Also when cancelled between its grant and its first step."""
    calls = Calls(github(clock), clock)
    await calls.queue(range(3), points=5, content=0)
    await calls.queue(["late", "next"], points=1, content=0)
    clock.advance(1 / 15)
    calls.tasks["late"].cancel()
    await clock.run(0)
    await calls.queue([])

    assert "next" in calls.granted
    assert {"points": 0, "content": 3, "requests": 96} == left(calls.budget)


@pytest.mark.parametrize("burst", [1, 100])
async def test_zero_of_a_shared_dimension_does_not_ask_it(clock: SteppedClock, burst: int) -> None:
    """It waits for neither the line nor the pause nor the permits of that dimension."""
    shared = Limiter(TokenBucket("1/s", burst=burst), clock=clock)
    calls = Calls(Budget(requests=TokenBucket("1/s", burst=2), tokens=shared, clock=clock), clock)
    shared.pause(100)

    await calls.queue(["a", "b", "c"], tokens=0)
    assert calls.budget.delay(tokens=0) == 2.0
    await clock.run(1)
    calls.tasks["c"].cancel()
    await calls.end("a", "b")
    await clock.run(100)

    assert {"a": 0, "b": 0, "c": SECOND} == calls.granted
    assert (burst, 0) == (shared.statistics().available, shared.statistics().granted)
    assert not shared.scheduler.receipts


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


@pytest.mark.parametrize("amount", [-1, True, False, 0.0, None, "0"])
async def test_anything_else_is_still_refused(amount: Any) -> None:
    """0 is the only new amount."""
    budget = github(ManualClock())

    with pytest.raises((TypeError, ValueError), match=r"reserve\(content\) must be .*0 or more"):
        budget.reserve(content=amount)

    assert {"points": 15, "content": 3, "requests": 100} == left(budget)


# Names that differ slightly from the server's.


def told(*names: str) -> Feedback:
    """Feedback with a quota of tokens for each name."""
    return Feedback(200, quotas=tuple(Quota(name, 8000, 100, 59.0, full_at_reset=True, unit="tokens") for name in names))


async def test_dimension_with_nearly_the_servers_name_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Headers say ``output_tokens``, so the dimension ``output`` ignored them with no warning."""
    budget = Budget(requests="50/min", input="1000/s", output="1000/s", name="claude", clock=ManualClock())

    with caplog.at_level(logging.WARNING, "aiorate"):
        for _ in range(3):
            budget.observe(told("input_tokens", "output_tokens"))

    assert [record.name for record in caplog.records] == ["aiorate"] * 2
    assert "'claude'" in caplog.text
    assert "output_tokens" in caplog.text
    assert "'output'" in caplog.text


@pytest.mark.parametrize(
    ("dimensions", "names"),
    [
        (("requests", "input_tokens", "output_tokens"), ("tokens", "input_tokens", "output_tokens")),  # no dimension is the sum
        (("requests", "tokens"), ("tokens", "input_tokens", "output_tokens")),
        (("requests",), ("tokens",)),
        (("requests", "credits"), ("tokens",)),
    ],
)
async def test_dimensions_left_out_on_purpose_are_not_logged(
    dimensions: tuple[str, ...], names: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """A missing limit of tokens may be intended."""
    budget = Budget(**dict.fromkeys(dimensions, "1000/s"), clock=ManualClock())

    with caplog.at_level(logging.INFO, "aiorate"):
        budget.observe(told(*names))

    assert [] == caplog.records
    await asyncio.sleep(0)
