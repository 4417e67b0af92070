"""A dimension of a budget may be a Limiter that other budgets share, and that is awaited directly too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.calls import Calls, at_rest
from helpers.driving import SECOND, SteppedClock, one_loop, turns

import aiorate
from aiorate import Budget, Limiter, SlidingWindow, TokenBucket
from aiorate.http import Feedback, Quota
from aiorate.testing import ManualClock

pytestmark = one_loop


@pytest.fixture
def shared(clock: SteppedClock) -> Limiter:
    return Limiter(TokenBucket("10/s", burst=100), clock=clock)


def chat(shared: Limiter, clock: ManualClock, **options: Any) -> Calls:
    """Calls under a budget with its own requests and shared tokens."""
    return Calls(Budget(requests=TokenBucket("1/s", burst=5), tokens=shared, clock=clock, **options), clock)


async def test_two_budgets_share_the_tokens_of_one_account(shared: Limiter, clock: SteppedClock) -> None:
    """Chat and embeddings have their own requests and the same tokens."""
    one, two = chat(shared, clock), chat(shared, clock)
    one.ask("a", tokens=60)
    two.ask("b", tokens=60)
    direct = asyncio.ensure_future(shared.acquire(30))

    await clock.run(60)

    assert (one.granted, two.granted) == ({"a": 0}, {"b": 2 * SECOND})
    assert direct.result() == 5.0
    await one.end("a")
    await two.end("b")
    assert at_rest(shared, one, two)


async def test_a_busy_budget_has_one_request_in_the_shared_line(shared: Limiter, clock: SteppedClock) -> None:
    """Only its first is there: any number of requests of one budget delay another budget by one."""
    busy, quiet = chat(shared, clock), chat(shared, clock)
    assert shared.try_acquire(100)
    await busy.queue(range(5), tokens=10)
    await quiet.queue("q", tokens=10)

    await clock.run(60)

    assert {name: at // SECOND for name, at in busy.granted.items()} == {0: 1, 1: 3, 2: 4, 3: 5, 4: 6}
    assert quiet.granted == {"q": 2 * SECOND}


async def test_a_waiting_reservation_takes_from_neither_limit(shared: Limiter, clock: SteppedClock) -> None:
    """No shared tokens while it waits for its own requests, and no requests while it waits for tokens."""
    calls = chat(shared, clock)
    await calls.queue("a", requests=5)
    await calls.queue("b", requests=2, tokens=50)

    await clock.run(1.5)

    assert shared.statistics().available == 100
    shared.charge(100)
    await clock.run(10)
    assert calls.granted == {"a": 0, "b": 6.5 * SECOND}
    assert calls.leases["b"].limited_by == "tokens"


async def test_limited_by_may_name_the_shared_dimension(shared: Limiter, clock: SteppedClock) -> None:
    """The first waits in the shared line, the second behind it for the same tokens, and the third for its own requests."""
    calls = chat(shared, clock)
    shared.charge(100)
    await calls.queue("ab", tokens=10)
    await calls.queue("c", requests=5, tokens=1)

    await clock.run(60)

    assert [calls.leases[name].limited_by for name in "abc"] == ["tokens", "tokens", "requests"]


async def test_a_shared_limit_is_settled_too(shared: Limiter, clock: SteppedClock) -> None:
    """What was not used comes back at once, by receipt; what was used on top is a debt that all who share it pay."""
    one, two = chat(shared, clock), chat(shared, clock)
    await one.queue("ab", tokens=50)
    await two.queue("c", tokens=20)

    await one.end("a", tokens=20)

    assert two.granted == {"c": 0}
    assert shared.statistics().available == 10
    await one.end("b", tokens=80)
    assert shared.delay(1) == 2.1
    assert shared.statistics().granted == 20 + 50 + 20
    await two.end("c", tokens=0)
    assert at_rest(shared, one, two)
    assert shared.statistics().available == 0


async def test_a_reservation_made_before_a_reset_gives_nothing_back(clock: SteppedClock) -> None:
    """After reset() the limit has a new schedule, to which permits of the old one do not belong."""
    shared = Limiter(aiorate.TokenPool("1/s", pool=10 * SECOND), clock=clock)
    assert shared.try_acquire()
    clock.advance(20)
    calls = Calls(Budget(requests="1/s", tokens=shared, clock=clock), clock)
    await calls.queue("a", tokens=10)
    clock.advance(1)

    shared.reset()
    await calls.end("a", tokens=0)

    assert shared.statistics().available == 1


async def test_a_lower_rate_fails_requests_that_became_too_large(clock: SteppedClock) -> None:
    """Requests behind them are served."""
    shared = Limiter(SlidingWindow("10/s"), clock=clock)
    calls = Calls(Budget(requests=TokenBucket("1/s", burst=1), tokens=shared, clock=clock), clock)
    await calls.queue("a", tokens=1)
    await calls.queue("b", tokens=8)
    await calls.queue("c", tokens=2)

    shared.set_rate("5/s")
    await clock.run(10)

    assert calls.granted == {"a": 0, "c": SECOND}
    assert isinstance(calls.tasks["b"].exception(), ValueError)


async def test_closing_the_shared_limit_fails_all_reservations(shared: Limiter, clock: SteppedClock) -> None:
    """Those in its line fail, those behind them, and later ones."""
    calls = chat(shared, clock)
    shared.charge(100)
    await calls.queue("ab", tokens=10)

    await shared.aclose()
    await calls.queue("c", tokens=10)
    await calls.queue("d", tokens=10, max_wait=1)  # not WaitTooLong: it would wait for ever
    await clock.run(1)

    assert all(isinstance(task.exception(), aiorate.LimiterClosed) for task in calls.tasks.values())
    assert calls.budget.delay() == float("inf")
    assert at_rest(shared, calls)


async def test_closing_a_budget_leaves_the_shared_limit_open(shared: Limiter, clock: SteppedClock) -> None:
    """Its requests leave the shared line, and its leases can still be settled."""
    calls, other = chat(shared, clock), chat(shared, clock)
    await calls.queue("a", tokens=100)
    await calls.queue("bc", tokens=10)
    await other.queue("d", tokens=10)

    await calls.budget.aclose()
    await turns(3)

    for name in "bc":
        assert isinstance(calls.tasks[name].exception(), aiorate.LimiterClosed)
    assert calls.budget.delay() == float("inf")
    assert calls.budget.available("tokens") == 0
    with pytest.raises(aiorate.LimiterClosed):
        await calls.budget.reserve().__aenter__()
    await calls.end("a", tokens=50)
    assert other.granted == {"d": 0}
    assert shared.statistics().available == 40
    await other.end("d")
    assert at_rest(shared, calls, other)


async def test_a_pause_of_one_budget_delays_no_other(shared: Limiter, clock: SteppedClock) -> None:
    """Its request lets others pass in the shared line until the pause is over."""
    one, two = chat(shared, clock), chat(shared, clock)
    shared.charge(100)
    await one.queue("a", tokens=10)
    await two.queue("b", tokens=10)

    one.budget.observe(Feedback(429, pause=5.0))
    await clock.run(10)

    assert (one.granted, two.granted) == ({"a": 5 * SECOND}, {"b": SECOND})


async def test_a_quota_of_the_shared_dimension_lowers_it_for_all(shared: Limiter, clock: SteppedClock) -> None:
    """The server counts the tokens of all budgets together."""
    one, two = chat(shared, clock), chat(shared, clock)

    one.budget.observe(Feedback(200, quotas=(Quota("tokens", remaining=15, reset=3.0, unit="tokens"),)))
    await two.queue("ab", tokens=10)
    await clock.run(10)

    assert two.granted == {"a": 0, "b": 3 * SECOND}


async def test_several_shared_limits_in_one_budget_are_refused(shared: Limiter, clock: SteppedClock) -> None:
    """Two lines that wait for each other could deadlock; where all limits are shared, share one Budget."""
    another = Limiter("5/s", clock=clock)

    with pytest.raises(ValueError, match=r"requests and tokens are.*share one Budget"):
        Budget(requests=another, tokens=shared, words="1/s")
    with pytest.raises(ValueError, match="adds nothing"):
        Budget(tokens=shared)
    with pytest.raises(ValueError, match="requests and tokens are"):
        Budget(requests=shared, tokens=shared)
