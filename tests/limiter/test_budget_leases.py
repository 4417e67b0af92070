"""Leases of a budget: an estimate is reserved, and what was used is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from helpers.calls import Calls, left
from helpers.driving import SECOND, SteppedClock, one_loop, turns

import aiorate
from aiorate import Budget, CalendarWindow, SlidingWindow, TokenBucket

pytestmark = one_loop


# Settling.


async def test_an_unused_amount_comes_back_at_once(calls: Calls, budget: Budget) -> None:
    """100 tokens were estimated and 40 used: the next in line is granted when that is settled."""
    await calls.queue("a", tokens=100)
    await calls.queue("b", tokens=60)

    await calls.end("a", tokens=40)

    assert list(calls.granted) == ["a", "b"]
    await calls.end("b", tokens=60)
    assert left(budget) == {"requests": 3, "tokens": 0}


async def test_usage_above_the_estimate_is_owed(calls: Calls, clock: SteppedClock) -> None:
    """100 tokens were reserved and 150 used: the line waits until the debt is paid."""
    await calls.queue("a", tokens=100)
    await calls.queue("b", tokens=10)

    await calls.end("a", tokens=150)
    await clock.run(60)

    assert calls.granted == {"a": 0, "b": 6 * SECOND}


@pytest.mark.parametrize(
    ("used", "after"),
    [
        ({"tokens": 0}, {"requests": 4, "tokens": 100}),
        ({"tokens": 30}, {"requests": 4, "tokens": 70}),
        ({"requests": 0, "tokens": 29}, {"requests": 5, "tokens": 71}),
        ({"requests": 3}, {"requests": 2, "tokens": 70}),
        ({}, {"requests": 4, "tokens": 70}),
    ],
)
async def test_settling_some_dimensions_keeps_the_others(budget: Budget, used: dict[str, int], after: dict[str, int]) -> None:
    """0 is a legal amount: a call that was answered from a cache used no tokens."""
    async with budget.reserve(tokens=30) as lease:
        lease.settle(**used)

    assert after == left(budget)


@pytest.mark.parametrize("second", [lambda lease: lease.settle(tokens=0), lambda lease: lease.refund()])
@pytest.mark.parametrize("first", [lambda lease: lease.settle(tokens=10), lambda lease: lease.refund()])
async def test_the_first_of_settle_and_refund_counts(
    budget: Budget, first: Callable[[aiorate.Lease], None], second: Callable[[aiorate.Lease], None]
) -> None:
    """Later ones do nothing, in the block and after it: they would give back what others have taken since."""
    async with budget.reserve(tokens=30) as lease:
        first(lease)
        once = left(budget)
        second(lease)
        assert once == left(budget)
    second(lease)

    assert once == left(budget)


async def test_a_refund_gives_all_amounts_back(budget: Budget) -> None:
    """It is for calls that were not made."""
    async with budget.reserve(requests=2, tokens=30) as lease:
        lease.refund()
        assert left(budget) == {"requests": 5, "tokens": 100}


@pytest.mark.parametrize(
    ("used", "error", "hint"),
    [
        ({"token": 5}, TypeError, "the dimensions are requests, tokens"),
        ({"tokens": -1}, ValueError, "0 or more"),
        ({"tokens": False}, TypeError, "not bool"),
        ({"tokens": 1.5}, TypeError, "not float"),
        ({"requests": 0, "tokens": None}, TypeError, "NoneType"),
    ],
)
async def test_a_bad_settlement_changes_nothing(budget: Budget, used: dict[str, Any], error: type[Exception], hint: str) -> None:
    """The lease can still be settled."""
    async with budget.reserve(tokens=30) as lease:
        with pytest.raises(error, match=hint):
            lease.settle(**used)
        assert left(budget) == {"requests": 4, "tokens": 70}
        lease.settle(tokens=10)

    assert left(budget) == {"requests": 4, "tokens": 90}


@pytest.mark.parametrize("how", ["error", "cancelled"])
@pytest.mark.parametrize(
    ("default", "given", "kept"), [("keep", None, True), ("refund", None, False), ("keep", "refund", False), ("refund", "keep", True)]
)
async def test_an_exception_keeps_the_estimate_or_gives_it_back(
    default: Any, given: Any, kept: bool, how: str, clock: SteppedClock, tokens: TokenBucket
) -> None:
    """The server may have counted the call, so by default the estimate is kept. A cancellation counts as an exception."""
    budget = Budget(requests=TokenBucket("1/s", 5), tokens=tokens, clock=clock, on_error=default)
    calls = Calls(budget, clock)
    await calls.queue("a", tokens=30, on_error=given)

    if how == "error":
        await calls.end("a", error=OSError("reset by peer"))
    else:
        calls.tasks["a"].cancel()
    ended = await asyncio.gather(calls.tasks["a"], return_exceptions=True)

    assert isinstance(ended[0], OSError if how == "error" else asyncio.CancelledError)
    assert left(budget) == ({"requests": 4, "tokens": 70} if kept else {"requests": 5, "tokens": 100})
    assert not tokens.receipts


async def test_an_exception_after_settling_changes_nothing(calls: Calls, budget: Budget) -> None:
    """`on_error` is for calls that did not settle."""
    await calls.queue("a", tokens=30, on_error="refund")

    await calls.end("a", error=OSError(), tokens=20)

    assert left(budget) == {"requests": 4, "tokens": 80}
    assert isinstance(calls.tasks["a"].exception(), OSError)


# The life of a lease.


async def test_an_unsettled_lease_keeps_its_estimate(budget: Budget, tokens: TokenBucket) -> None:
    """No permit comes back, and its record ends."""
    async with budget.reserve(tokens=30):
        assert tokens.receipts

    assert left(budget) == {"requests": 4, "tokens": 70}
    assert not tokens.receipts


async def test_an_unentered_lease_reserves_nothing(budget: Budget, tokens: TokenBucket) -> None:
    """reserve() makes the lease; entering it takes the permits."""
    lease = budget.reserve(tokens=30)

    assert (left(budget), repr(lease)) == ({"requests": 5, "tokens": 100}, "<Lease requests=1, tokens=30, not entered>")
    del lease
    assert not tokens.receipts


async def test_a_lease_entered_by_hand_and_dropped_leaves_no_record(budget: Budget, tokens: TokenBucket) -> None:
    """The estimate stays spent."""
    lease = await budget.reserve(tokens=30).__aenter__()
    assert tokens.receipts

    del lease

    assert not tokens.receipts
    assert left(budget) == {"requests": 4, "tokens": 70}


async def test_a_lease_is_entered_once(budget: Budget, clock: SteppedClock) -> None:
    """A second task cannot enter it, even while it waits."""
    async with budget.reserve(tokens=100) as lease:
        with pytest.raises(RuntimeError, match="entered only once"):
            await lease.__aenter__()
        twice = budget.reserve(tokens=10)
        first = asyncio.ensure_future(twice.__aenter__())
        await turns(2)
        with pytest.raises(RuntimeError, match="entered only once"):
            await twice.__aenter__()
        await clock.run(1)

    assert first.result() is twice
    with pytest.raises(RuntimeError, match="entered only once"):
        await lease.__aenter__()


async def test_settling_outside_the_block_is_an_error(budget: Budget) -> None:
    """Before the block nothing is reserved; after it the estimate is final, and doing nothing would hide that."""
    lease = budget.reserve(tokens=30)
    for correct in (lease.refund, lease.settle):
        with pytest.raises(RuntimeError, match="Enter the lease"):
            correct()
    async with lease:
        pass
    for correct in (lease.refund, lease.settle):
        with pytest.raises(RuntimeError, match="the block has ended"):
            correct()

    assert left(budget) == {"requests": 4, "tokens": 70}


async def test_repr_of_a_lease_shows_its_state(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """A lease is waiting, reserved or settled."""
    lease = budget.reserve(tokens=100)
    async with budget.reserve(tokens=10):
        task = asyncio.ensure_future(lease.__aenter__())
        await turns(2)
        assert repr(lease) == "<Lease requests=1, tokens=100, waiting>"
        await clock.run(1)
    assert repr(lease) == "<Lease requests=1, tokens=100, reserved>"
    task.result().settle(tokens=1)
    assert repr(lease) == "<Lease requests=1, tokens=100, settled>"


# Receipts are exact.


async def test_a_bucket_that_was_full_meanwhile_credits_nothing(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """40 were reserved, and 4 s later the bucket is full again: unused permits would have spilled."""
    await calls.queue("a", tokens=40)
    await clock.run(4)
    await calls.queue("b", tokens=100)

    await calls.end("a", tokens=0)

    assert left(budget) == {"requests": 4, "tokens": 0}


async def test_a_bucket_credits_up_to_its_free_capacity(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """40 were reserved, and 30 have flowed in 3 s later: 10 of the unused permits fit."""
    await calls.queue("a", tokens=40)
    await clock.run(3)
    await calls.queue("b", tokens=90)

    await calls.end("a", tokens=0)

    assert left(budget) == {"requests": 4, "tokens": 10}


@pytest.mark.parametrize("window", [lambda: SlidingWindow("10/10s"), lambda: CalendarWindow("10/10s", "UTC", origin=0)])
async def test_a_window_forgets_exactly_the_entries_of_the_lease(window: Callable[[], aiorate.Scheduler], clock: SteppedClock) -> None:
    """Forgetting the oldest entries instead would be wrong, since they leave the window first."""
    budget = Budget(tokens=window(), clock=clock)
    calls = Calls(budget, clock)
    clock.set(SECOND)
    await calls.queue("a", tokens=4)
    await clock.run(4)
    await calls.queue("b", tokens=6)

    await calls.end("b", tokens=2)

    assert left(budget) == {"tokens": 4}
    await clock.run(6)
    assert left(budget) == ({"tokens": 8} if isinstance(window(), SlidingWindow) else {"tokens": 10})


async def test_a_past_calendar_window_gives_nothing_back(clock: SteppedClock) -> None:
    """An unused permit of yesterday is not one of today."""
    budget = Budget(tokens=CalendarWindow("10/10s", "UTC", origin=0), clock=clock)
    calls = Calls(budget, clock)
    await calls.queue("a", tokens=10)
    await clock.run(10)
    await calls.queue("b", tokens=10)

    await calls.end("a", tokens=0)

    assert left(budget) == {"tokens": 0}
