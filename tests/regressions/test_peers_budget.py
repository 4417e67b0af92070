"""Defects that other libraries had with reserved estimates and returned permits. Each is named by its report."""

from __future__ import annotations

import asyncio

import pytest
from helpers.calls import Calls
from helpers.driving import SECOND, SteppedClock, one_loop, turns
from helpers.server import most_in_any_window
from helpers.strategies import EACH

from aiorate import Budget, Limiter, SlidingWindow, TokenBucket, WaitTooLong

pytestmark = one_loop


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.mark.parametrize("settled", [True, False])
async def test_a_hundred_concurrent_calls_never_exceed_the_budget(settled: bool, clock: SteppedClock) -> None:
    """BerriAI/litellm#18730: calls were counted at their end, so all that began together passed."""
    budget = Budget(requests=SlidingWindow("60/min"), tokens=SlidingWindow("1000/min"), clock=clock)
    calls = Calls(budget, clock)

    await calls.queue(range(100), tokens=90)

    assert len(calls.granted) == 11
    while not all(task.done() for task in calls.tasks.values()):
        await clock.run(20)
        for name in [name for name in calls.granted if not calls.tasks[name].done()]:
            await calls.end(name, **({"tokens": 45} if settled else {}))
        counted = [(at, 45 if settled and calls.tasks[name].done() else 90) for name, at in calls.granted.items()]
        assert most_in_any_window([at for at, _ in counted], 60 * SECOND) <= 60
        assert most_in_any_window([at for at, amount in counted for _ in range(amount)], 60 * SECOND) <= 1000


async def test_failed_calls_do_not_count(clock: SteppedClock) -> None:
    """milvus-io/milvus#25597: permits taken for a request that was then refused were not given back."""
    budget = Budget(requests=TokenBucket("1/s", burst=10), tokens=TokenBucket("10/s", burst=100), clock=clock, on_error="refund")

    for _ in range(50):
        with pytest.raises(ConnectionError):
            async with budget.reserve(tokens=100):
                raise ConnectionError

    assert (budget.available("requests"), budget.available("tokens")) == (10, 100)


@pytest.mark.parametrize("name", [name for name in EACH if EACH[name]().max_permits])
async def test_returned_permit_lets_one_waiter_through(name: str, clock: SteppedClock) -> None:
    """temporalio/temporal#7590: one recycled token let two waiters through."""
    budget = Budget(work=EACH[name](), clock=clock)
    calls = Calls(budget, clock)
    await calls.queue(range(60))
    inside = len(calls.granted)

    await calls.end(0, work=0)
    one = len(calls.granted) - inside
    await calls.end(1 % inside, work=0)

    assert one == 1
    assert len(calls.granted) - inside == (2 if inside > 1 else 1)


async def test_permit_returned_to_a_shared_limit_serves_one_waiter(clock: SteppedClock) -> None:
    """temporalio/temporal#7590, with two budgets and a direct caller waiting for the same permit."""
    shared = Limiter(TokenBucket("1/h", burst=3), clock=clock)
    one, two = (Calls(Budget(requests="1000/s", tokens=shared, clock=clock), clock) for _ in range(2))
    await one.queue("a", tokens=3)
    clock.advance(1)
    await one.queue("b")
    await two.queue("c")
    direct = asyncio.ensure_future(shared.acquire())
    await turns(3)

    await one.end("a", tokens=2)

    assert (list(one.granted), list(two.granted), direct.done()) == (["a", "b"], [], False)
    direct.cancel()
    for calls in (one, two):
        for task in calls.tasks.values():
            task.cancel()
    await turns(3)


async def test_budget_never_grants_more_than_it_received(clock: SteppedClock) -> None:
    """temporalio/temporal#7590 as a law: 100 at first, 10 a second, and unused permits returned; nothing else."""
    tokens = TokenBucket("10/s", burst=100)
    calls = Calls(Budget(tokens=tokens, clock=clock), clock)
    await calls.queue(range(80), tokens=30)
    came_back = 0

    for number in range(80):
        await clock.run(0.7)
        if number in calls.granted:
            came_back += number % 31
            await calls.end(number, tokens=30 - number % 31)
        reserved = 30 * len(calls.granted)
        assert reserved <= 100 + 10 * clock.now() // SECOND + came_back
        assert reserved + 30 > 100 + 10 * clock.now() // SECOND + came_back - 1  # and none is lost


@pytest.mark.parametrize("tokens", ["TokenPool", "TokenBucket", "SlidingWindow", "CalendarWindow", "AllOf"])
async def test_waiting_reservation_is_charged_once_to_each_dimension(tokens: str, clock: SteppedClock) -> None:
    """dotnet/runtime#113314: chained limiters counted twice when the inner one queued. Two budgets share the third dimension."""
    requests, twin, shared = TokenBucket("100/s", burst=60), EACH[tokens](), Limiter(TokenBucket("50/s", burst=200), clock=clock)
    twin.peek(1, 0)
    budget = Budget(requests=requests, tokens=(scheduler := EACH[tokens]()), units=shared, clock=clock)
    other = Budget(units=shared, work="1000/s", clock=clock)
    assert budget.delay() == 0.0
    amount = min(2, scheduler.max_permits or 2)
    calls = Calls(budget, clock)

    await calls.queue(range(20), tokens=amount, units=3)
    await clock.run(20)

    assert len(calls.granted) == 20
    for at in calls.granted.values():
        assert twin.take(amount, at) <= at
    assert all(twin.peek(1, at) == scheduler.peek(1, at) for at in (clock.now(), clock.now() + SECOND))
    assert shared.statistics().granted == 60
    assert (60, 200) == (budget.available("requests"), other.available("units"))


@pytest.mark.parametrize("short", ["requests", "tokens", "units"])
async def test_refusal_of_one_dimension_takes_from_none(short: str, clock: SteppedClock) -> None:
    """milvus-io/milvus#25597, grafana/dskit#1007: the first limit was consumed although the second refused."""
    shared = Limiter(SlidingWindow("10/s"), clock=clock)
    budget = Budget(requests=TokenBucket("1/s", burst=10), tokens=SlidingWindow("10/s"), units=shared, clock=clock)
    await budget.reserve(**{"requests": 1, "tokens": 1, "units": 1, short: 8}).__aenter__()
    before = {name: budget.available(name) for name in ("requests", "tokens", "units")}
    asked = {"requests": 1, "tokens": 1, "units": 1, short: 3}

    for _ in range(20):
        assert budget.delay(**asked) > 0
        with pytest.raises(WaitTooLong):
            await budget.reserve(**asked, max_wait=0.01).__aenter__()
        task = asyncio.ensure_future(budget.reserve(**asked).__aenter__())
        await turns(2)
        task.cancel()
        await turns(2)

    assert before == {name: budget.available(name) for name in before}
    assert {**dict.fromkeys(before, 9), short: 2} == before
