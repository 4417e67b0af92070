"""A Budget: several dimensions, one line, all or nothing; an estimate is reserved, and what was used is settled."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from helpers.calls import Calls
from helpers.driving import SECOND, SteppedClock, one_loop, turns
from helpers.strategies import EACH

import aiorate
from aiorate import Budget, CalendarWindow, Limiter, SlidingWindow, TokenBucket
from aiorate.http import Feedback, Quota

pytestmark = one_loop


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def requests() -> TokenBucket:
    return TokenBucket("1/s", burst=5)


@pytest.fixture
def tokens() -> TokenBucket:
    return TokenBucket("10/s", burst=100)


@pytest.fixture
def budget(clock: SteppedClock, requests: TokenBucket, tokens: TokenBucket) -> Budget:
    return Budget(requests=requests, tokens=tokens, clock=clock)


@pytest.fixture
def calls(budget: Budget, clock: SteppedClock) -> Calls:
    return Calls(budget, clock)


def left(budget: Budget) -> dict[str, int]:
    """What is to be had of each dimension."""
    return {name: budget.available(name) for name in budget.dimensions}


# All or nothing, in order.


async def test_each_dimension_has_an_amount_of_its_own(budget: Budget) -> None:
    """A call is one request and as many tokens as it is long; a dimension that is not named takes 1."""
    async with budget.reserve(tokens=30) as lease:
        assert left(budget) == {"requests": 4, "tokens": 70}
    async with budget.reserve(requests=2):
        assert left(budget) == {"requests": 2, "tokens": 69}

    assert (lease.amounts, lease.waited, lease.limited_by) == ({"requests": 1, "tokens": 30}, 0.0, None)


async def test_a_reservation_that_one_dimension_refuses_takes_nothing_of_the_others(
    calls: Calls, clock: SteppedClock, requests: TokenBucket
) -> None:
    """M2: else requests are used up while tokens are waited for."""
    await calls.queue("a", tokens=100)
    await calls.queue("b", tokens=50)

    before = requests.available(clock.now())
    await clock.run(4.9)

    assert (before, list(calls.granted)) == (4, ["a"])
    assert requests.available(clock.now()) == 5  # full again: none was taken for who waits
    await clock.run(0.1)
    assert calls.granted == {"a": 0, "b": 5 * SECOND}
    assert requests.available(clock.now()) == 4


async def test_reservations_go_in_the_order_asked_whatever_their_size(calls: Calls, clock: SteppedClock) -> None:
    """A large one is not starved by small ones that would fit, and nobody passes the line."""
    await calls.queue("a", tokens=95)
    await calls.queue("b", tokens=60)
    await calls.queue("cd", tokens=1)

    await clock.run(60)

    assert calls.granted == {"a": 0, "b": 5.5 * SECOND, "c": 5.6 * SECOND, "d": 5.7 * SECOND}
    assert [calls.leases[name].waited for name in "abcd"] == [0.0, 5.5, 5.6, 5.7]


@pytest.mark.parametrize("name", EACH)
async def test_a_hundred_at_once_get_no_more_than_the_budget(name: str, clock: SteppedClock) -> None:
    """Whatever the strategy: each dimension grants what it would grant by itself, and waits for the other."""
    work, window = EACH[name](), SlidingWindow("7/s")
    amount = min(2, work.max_permits or 2)
    calls = Calls(Budget(calls=SlidingWindow("7/s"), work=EACH[name](), clock=clock), clock)
    await calls.queue(range(100), work=amount)

    await clock.run(600)

    on_paper, now = [], 0
    for _ in range(100):
        while (due := max(work.peek(amount, now), window.peek(1, now))) > now:
            now = due
        work.take(amount, now, max(0, now - SECOND // 50))  # in line since the beginning, and booked so far back at most
        window.take(1, now)
        on_paper.append(now)
    assert list(range(100)) == list(calls.granted)
    assert on_paper == list(calls.granted.values())
    assert (clock.timers, calls.budget.waiting) == (0, 0)


@pytest.mark.parametrize(
    ("amounts", "error", "hint"),
    [
        ({"token": 5}, TypeError, "the dimensions are requests, tokens"),
        ({"tokens": -5}, ValueError, "0 or more"),
        ({"tokens": True}, TypeError, "not bool"),
        ({"tokens": 5.0}, TypeError, "not float"),
        ({"tokens": None}, TypeError, "NoneType"),
        ({"max_wait": -1}, ValueError, "max_wait"),
        ({"max_wait": "1"}, TypeError, "max_wait"),
        ({"on_error": "raise"}, ValueError, "'keep' or 'refund'"),
    ],
)
async def test_a_wrong_reservation_is_refused_at_once(budget: Budget, amounts: dict[str, Any], error: type[Exception], hint: str) -> None:
    """Before anything is spent, and by the call that is wrong; aiolimiter takes acquire(-5) and mints capacity."""
    with pytest.raises(error, match=hint):
        budget.reserve(**amounts)

    assert left(budget) == {"requests": 5, "tokens": 100}


async def test_an_estimate_above_what_can_be_had_is_lowered_and_told_of_once(clock: SteppedClock, caplog: pytest.LogCaptureFixture) -> None:
    """A context window is larger than many a bucket; a call must not fail for a cautious estimate, and what it used is settled."""
    events: list[aiorate.Event] = []
    tokens = TokenBucket("10/s", burst=100)
    budget = Budget(requests="1/s", tokens=tokens, clock=clock, name="llm", on_event=events.append)

    assert budget.delay(tokens=1000) == 0.0
    assert events == []  # a question is no reservation
    for _ in range(3):
        async with budget.reserve(tokens=1000) as lease:
            lease.settle(tokens=130)
        await clock.run(60)

    assert lease.amounts == {"requests": 1, "tokens": 100}
    assert events == [aiorate.Event("clamped", "llm", key="tokens", permits=100)]
    assert [record.getMessage() for record in caplog.records] == [
        "limiter 'llm', key 'tokens': estimate lowered to 100, the most that can be granted at once"
    ]


async def test_what_was_used_above_a_lowered_estimate_is_owed(budget: Budget) -> None:
    """Lowered to 100 and settled at 130: the next waits until 30 are paid, and its own."""
    async with budget.reserve(tokens=1000) as lease:
        lease.settle(tokens=130)

    assert budget.delay(tokens=20) == 5.0


# Waiting.


async def test_a_reservation_says_which_dimension_it_waited_for(clock: SteppedClock) -> None:
    """That is what to raise: a lease that waited says for how long, and for what, in line too."""
    budget = Budget(requests=TokenBucket("1/s", burst=2), tokens=TokenBucket("10/s", burst=100), clock=clock, catch_up=0)
    calls = Calls(budget, clock)
    await calls.queue("a", tokens=100)
    await calls.queue("b", tokens=20)
    await calls.queue("c", tokens=1)
    await calls.queue("d", tokens=1)

    await clock.run(10)

    assert calls.granted == {"a": 0, "b": 2 * SECOND, "c": 2.1 * SECOND, "d": 3 * SECOND}
    assert [calls.leases[name].limited_by for name in "abcd"] == [None, "tokens", "tokens", "requests"]


async def test_who_only_waited_behind_others_waited_for_what_held_them_up(calls: Calls, clock: SteppedClock) -> None:
    """Two that go at one instant: the second was held up by the first, which waited for tokens."""
    await calls.queue("a", tokens=100)
    await calls.queue("b", tokens=50)
    clock.set(10 * SECOND)  # a late loop: both are due

    await calls.queue("c", tokens=10)

    assert [calls.leases[name].limited_by for name in "bc"] == ["tokens", None]


async def test_a_pause_is_no_dimension(budget: Budget, clock: SteppedClock) -> None:
    """Waited for a server's pause alone: no limit of ours was too low."""
    budget.observe(Feedback(429, pause=2.0, source="Retry-After"))
    task = asyncio.ensure_future(budget.reserve().__aenter__())

    await clock.run(2)

    assert (task.result().waited, task.result().limited_by) == (2.0, None)


async def test_max_wait_refuses_at_once_and_spends_nothing(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """The error says how long, and for what."""
    async with budget.reserve(tokens=100):
        with pytest.raises(aiorate.WaitTooLong, match=r"would wait 3 s for tokens, but max_wait is 2\.9 s") as refused:
            await budget.reserve(tokens=30, max_wait=2.9).__aenter__()
        assert (refused.value.wait, budget.waiting) == (3.0, 0)
        calls.ask("a", tokens=30, max_wait=3)
        await turns(3)
        with pytest.raises(aiorate.WaitTooLong, match="would wait 4 s in line"):
            await budget.reserve(tokens=10, max_wait=2.9).__aenter__()

        await clock.run(3)

    assert calls.granted == {"a": 3 * SECOND}


async def test_a_lease_that_was_refused_may_be_tried_again(budget: Budget, clock: SteppedClock) -> None:
    """Nothing was reserved, so nothing is used up."""
    async with budget.reserve(tokens=100):
        lease = budget.reserve(tokens=30, max_wait=1)
        with pytest.raises(aiorate.WaitTooLong):
            await lease.__aenter__()
        clock.advance(2)
        task = asyncio.ensure_future(lease.__aenter__())
        await clock.run(1)

    assert task.result() is lease
    assert lease.waited == 1.0


@pytest.mark.parametrize("most", [0, 2])
async def test_no_more_than_max_waiting_stand_in_line(most: int, clock: SteppedClock) -> None:
    """The next is refused at once; 0 lets nobody wait."""
    budget = Budget(tokens=TokenBucket("10/s", burst=10), clock=clock, max_waiting=most)
    calls = Calls(budget, clock)
    await calls.queue(range(most + 1), tokens=10)

    with pytest.raises(aiorate.LineFull, match=f"max_waiting={most}"):
        await budget.reserve().__aenter__()

    assert (budget.waiting, list(calls.granted)) == (most, [0])
    await clock.run(10)
    assert len(calls.granted) == most + 1


@pytest.mark.parametrize("name", EACH)
async def test_delay_foretells_when_a_reservation_is_granted(name: str, clock: SteppedClock) -> None:
    """Exactly, on a clock that stands still, behind a line too; and it changes nothing."""
    budget = Budget(work=EACH[name](), tokens=TokenBucket("3/s", burst=7), clock=clock)
    calls = Calls(budget, clock)
    for number in range(12):
        foretold = budget.delay(work=1 + number % 2, tokens=1 + number % 7)
        asked = clock.now()
        calls.ask(number, work=1 + number % 2, tokens=1 + number % 7)
        await turns(3)
        if number % 3:
            continue
        await clock.run(foretold)
        assert calls.granted[number] - asked == round(foretold * SECOND)


async def test_asking_in_vain_again_and_again_lets_the_loop_turn() -> None:
    """Whoever polls with max_wait=0 must not keep a timeout from coming."""
    budget = Budget(tokens=TokenBucket("1/h", burst=1))
    async with budget.reserve():
        pass

    async def poll() -> None:
        while True:
            with suppress(aiorate.WaitTooLong):
                await budget.reserve(max_wait=0).__aenter__()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(poll(), 0.05)


# Settling.


async def test_what_was_not_used_comes_back_at_once(calls: Calls, budget: Budget) -> None:
    """100 tokens were estimated and 40 used; the one in line goes as soon as that is known."""
    await calls.queue("a", tokens=100)
    await calls.queue("b", tokens=60)

    await calls.end("a", tokens=40)

    assert list(calls.granted) == ["a", "b"]
    await calls.end("b", tokens=60)
    assert left(budget) == {"requests": 3, "tokens": 0}


async def test_what_was_used_beyond_the_estimate_is_owed(calls: Calls, clock: SteppedClock) -> None:
    """100 tokens were reserved and 150 used: those in line wait until the debt is paid."""
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
async def test_dimensions_that_are_not_named_stay_as_reserved(budget: Budget, used: dict[str, int], after: dict[str, int]) -> None:
    """And 0 is a legal amount: a call that was answered from a cache used no tokens."""
    async with budget.reserve(tokens=30) as lease:
        lease.settle(**used)

    assert after == left(budget)


@pytest.mark.parametrize("second", [lambda lease: lease.settle(tokens=0), lambda lease: lease.refund()])
@pytest.mark.parametrize("first", [lambda lease: lease.settle(tokens=10), lambda lease: lease.refund()])
async def test_the_first_of_settle_and_refund_counts(
    budget: Budget, first: Callable[[aiorate.Lease], None], second: Callable[[aiorate.Lease], None]
) -> None:
    """Twice would give back what others have taken since; after the block too."""
    async with budget.reserve(tokens=30) as lease:
        first(lease)
        once = left(budget)
        second(lease)
        assert once == left(budget)
    second(lease)

    assert once == left(budget)


async def test_a_refund_gives_everything_back(budget: Budget) -> None:
    """The call was not made."""
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
async def test_a_wrong_settlement_changes_nothing(budget: Budget, used: dict[str, Any], error: type[Exception], hint: str) -> None:
    """And it can be made good: the lease is not settled by it."""
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
    """The server may have counted the call, so by default the estimate stands; a cancellation is an exception as any other."""
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


async def test_what_was_settled_before_an_exception_stands(calls: Calls, budget: Budget) -> None:
    """on_error is for those who could not say."""
    await calls.queue("a", tokens=30, on_error="refund")

    await calls.end("a", error=OSError(), tokens=20)

    assert left(budget) == {"requests": 4, "tokens": 80}
    assert isinstance(calls.tasks["a"].exception(), OSError)


# The life of a lease.


async def test_a_lease_that_is_never_settled_keeps_its_estimate(budget: Budget, tokens: TokenBucket) -> None:
    """Not a permit comes back, and nothing is recorded for it any more."""
    async with budget.reserve(tokens=30):
        assert tokens.receipts

    assert left(budget) == {"requests": 4, "tokens": 70}
    assert not tokens.receipts


async def test_a_lease_that_is_never_entered_reserves_nothing(budget: Budget, tokens: TokenBucket) -> None:
    """reserve() is a plan; entering takes."""
    lease = budget.reserve(tokens=30)

    assert (left(budget), repr(lease)) == ({"requests": 5, "tokens": 100}, "<Lease requests=1, tokens=30, not entered>")
    del lease
    assert not tokens.receipts


async def test_a_lease_that_is_entered_by_hand_and_forgotten_leaves_no_record(budget: Budget, tokens: TokenBucket) -> None:
    """Its estimate stands."""
    lease = await budget.reserve(tokens=30).__aenter__()
    assert tokens.receipts

    del lease

    assert not tokens.receipts
    assert left(budget) == {"requests": 4, "tokens": 70}


async def test_a_lease_is_entered_once(budget: Budget, clock: SteppedClock) -> None:
    """Also by two tasks at one time, of which one waits."""
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


async def test_nothing_is_settled_outside_the_block(budget: Budget) -> None:
    """Before, nothing is reserved; afterwards the estimate stands, and silence would hide that it does."""
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


async def test_a_lease_is_told_by_its_repr(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """Where it stands."""
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


async def test_a_bucket_that_was_full_meanwhile_credits_nothing_that_would_have_spilled(
    calls: Calls, budget: Budget, clock: SteppedClock
) -> None:
    """40 reserved and full again 4 s later: those that were not used would have run over."""
    await calls.queue("a", tokens=40)
    await clock.run(4)
    await calls.queue("b", tokens=100)

    await calls.end("a", tokens=0)

    assert left(budget) == {"requests": 4, "tokens": 0}


async def test_a_bucket_that_was_nearly_full_credits_what_there_was_room_for(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """40 reserved, 30 back after 3 s: there was room for 10."""
    await calls.queue("a", tokens=40)
    await clock.run(3)
    await calls.queue("b", tokens=90)

    await calls.end("a", tokens=0)

    assert left(budget) == {"requests": 4, "tokens": 10}


@pytest.mark.parametrize("window", [lambda: SlidingWindow("10/10s"), lambda: CalendarWindow("10/10s", "UTC", origin=0)])
async def test_a_window_forgets_the_very_entries(window: Callable[[], aiorate.Scheduler], clock: SteppedClock) -> None:
    """Not the oldest ones: they would leave earlier than those that were used."""
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


async def test_a_window_of_the_past_gives_nothing_back(clock: SteppedClock) -> None:
    """What was reserved yesterday is not today's."""
    budget = Budget(tokens=CalendarWindow("10/10s", "UTC", origin=0), clock=clock)
    calls = Calls(budget, clock)
    await calls.queue("a", tokens=10)
    await clock.run(10)
    await calls.queue("b", tokens=10)

    await calls.end("a", tokens=0)

    assert left(budget) == {"tokens": 0}


# What a server says.


def quota(name: str, remaining: int | None, reset: float | None, **more: Any) -> Feedback:
    """A response that tells of one limit."""
    return Feedback(200, quotas=(Quota(name, remaining=remaining, reset=reset, **more),))


async def test_a_pause_holds_all_and_ends_for_all(clock: SteppedClock) -> None:
    """Retry-After does not say which limit it was; those who came meanwhile go on in order."""
    events: list[aiorate.Event] = []
    budget = Budget(tokens=TokenBucket("10/s", burst=100), clock=clock, on_event=events.append, name="llm")
    calls = Calls(budget, clock)
    budget.observe(Feedback(429, pause=5.0, source="Retry-After"))
    budget.observe(Feedback(429, pause=3.0, source="Retry-After"))  # it is over before the other
    with pytest.raises(aiorate.WaitTooLong, match="would wait 5 s because the budget is paused"):
        await budget.reserve(max_wait=4.9).__aenter__()
    await calls.queue("abc", tokens=10)

    assert (budget.delay(), budget.available("tokens"), "paused" in repr(budget)) == (5.0, 0, True)
    await clock.run(5)

    assert calls.granted == dict.fromkeys("abc", 5 * SECOND)
    assert events == [aiorate.Event("paused", "llm", seconds=5.0, source="Retry-After")]
    assert [calls.leases[name].limited_by for name in "abc"] == [None, None, None]


async def test_a_program_pauses_by_itself(calls: Calls, budget: Budget, clock: SteppedClock, caplog: pytest.LogCaptureFixture) -> None:
    """Where no hook sees the 429, as behind an SDK with a client of its own. Pauses merge with those of servers, by the later end."""
    budget.pause(timedelta(seconds=3))
    budget.pause(2)
    budget.observe(Feedback(429, pause=2.5, source="Retry-After"))
    await calls.queue("ab", tokens=70)

    assert (budget.delay(), budget.available("tokens"), caplog.records) == (7.1, 0, [])
    await clock.run(3)
    assert calls.granted == {"a": 3 * SECOND}
    budget.pause(100)
    budget.resume()
    await clock.run(4)
    assert calls.granted == {"a": 3 * SECOND, "b": 7 * SECOND}


@pytest.mark.parametrize("wrong", ["30", -1, None, True, float("nan"), timedelta(seconds=-1)])
async def test_a_wrong_pause_changes_nothing(budget: Budget, wrong: Any) -> None:
    """The text of a header is for observe()."""
    with pytest.raises((TypeError, ValueError), match=r"pause\(\).*read_feedback" if isinstance(wrong, str) else r"pause\(\)"):
        budget.pause(wrong)

    assert budget.delay() == 0


async def test_jitter_makes_a_pause_longer_once(budget: Budget, clock: SteppedClock) -> None:
    """Of many responses that come together, the first draws; the longest of many draws would be the same for every client."""
    budget.observe(Feedback(429, pause=5.0), jitter=2)
    drawn = budget.delay()
    for _ in range(20):
        budget.observe(Feedback(429, pause=5.0), jitter=2)
    with pytest.raises(ValueError, match=r"observe\(jitter\)"):
        budget.observe(Feedback(429, pause=50.0), jitter=-1)

    assert drawn == budget.delay()
    assert 5.0 <= drawn < 7.0


async def test_a_budget_counts_its_reservations(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """Whatever they take; who was refused or left is counted too."""
    await calls.queue("abc", tokens=60)
    with pytest.raises(aiorate.WaitTooLong):
        await budget.reserve(tokens=60, max_wait=1).__aenter__()
    calls.tasks["c"].cancel()
    await clock.run(2)

    told = budget.statistics()
    assert (2, 0, 1, 1) == (told.granted, told.waiting, told.refused, told.cancelled)
    assert (2.0, 2.0) == (told.waited_max, told.waited_total)
    assert (0, None, None) == (told.available, told.paused_until, told.next_at)
    clock.advance(1)
    assert budget.statistics().available == 5
    budget.pause(4)
    assert (0, 7.0) == (budget.statistics().available, budget.statistics().paused_until)


@pytest.mark.parametrize(
    ("told", "of_requests", "of_tokens"),
    [
        (quota("tokens", 30, 10.0, unit="tokens"), 5, 30),
        (quota("requests", 3, 10.0), 3, 100),
        (quota("per-minute", 2, 10.0), 2, 100),  # by its unit, for it has a name of its own
        (quota("input_tokens", 40, 10.0, unit="tokens"), 5, 40),
        (quota("per-minute", 30, 10.0, limit=6, window=60.0), 1, 100),  # no more than the policy allows in that time
        (quota("bytes", 1, 10.0, unit="content-bytes"), 5, 100),  # of neither
        (quota("tokens", None, 10.0, unit="tokens"), 5, 100),
        (quota("tokens", 30, None, unit="tokens"), 5, 100),
        (quota("tokens", 200, 10.0, unit="tokens"), 5, 100),  # never more than there is here
        (quota("tokens", 30, 10.0, unit="tokens", full_at_reset=True, limit=100), 5, 30),  # a part is back before
        (quota("tokens", 0, 10.0, unit="tokens", full_at_reset=True, limit=100), 5, 0),
    ],
)
async def test_a_quota_lowers_the_dimension_of_its_name_or_unit(budget: Budget, told: Feedback, of_requests: int, of_tokens: int) -> None:
    """The others go on as before."""
    budget.observe(told)

    assert left(budget) == {"requests": of_requests, "tokens": of_tokens}


async def test_a_quota_holds_until_its_reset(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """What was reserved and not used is left of it again; then the limit here counts as if nothing had been said."""
    budget.observe(quota("tokens", 30, 2.0, unit="tokens"))
    await calls.queue("a", tokens=30)
    await calls.queue("bcd", tokens=10)

    await clock.run(1)
    await calls.end("a", tokens=15)

    assert calls.granted == {"a": 0, "b": SECOND}
    await clock.run(1)
    assert calls.granted == {"a": 0, "b": SECOND, "c": 2 * SECOND, "d": 2 * SECOND}
    assert calls.leases["c"].limited_by == "tokens"


async def test_quotas_of_a_second_and_of_a_minute_hold_side_by_side(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """The longer one is not forgotten when the shorter ends, nor the other way round."""
    budget.observe(
        Feedback(
            200, quotas=(Quota("tokens", remaining=5, reset=1.0, unit="tokens"), Quota("tokens", remaining=8, reset=60.0, unit="tokens"))
        )
    )

    assert left(budget)["tokens"] == 5
    async with budget.reserve(tokens=5):
        clock.advance(1)
        assert left(budget)["tokens"] == 3
    clock.advance(59)
    assert left(budget)["tokens"] == 100


async def test_nothing_was_said_or_nothing_that_can_be_understood(budget: Budget) -> None:
    """None is what a response without such headers gives; anything else is a mistake, and changes nothing."""
    budget.observe(None)
    for wrong in (429, {"Retry-After": "5"}, Feedback(429, pause=-1.0), Feedback(429, pause=1.0, quotas=(Quota("tokens", remaining=-1),))):
        with pytest.raises((TypeError, ValueError), match=r"observe\(\)"):
            budget.observe(wrong)  # type: ignore[arg-type]

    assert left(budget) == {"requests": 5, "tokens": 100}


# A budget is made, looked at, and closed.


@pytest.mark.parametrize(
    ("options", "error", "hint"),
    [
        ({}, TypeError, "at least one dimension"),
        ({"tokens": "fast"}, ValueError, "fast"),
        ({"tokens": None}, TypeError, r"Budget\(tokens\).*NoneType"),
        ({"tokens": TokenBucket}, TypeError, "the class TokenBucket"),
        ({"tokens": "1/s", "on_error": "raise"}, ValueError, "'keep' or 'refund'"),
        ({"tokens": "1/s", "on_error": None}, ValueError, "'keep' or 'refund'"),
        ({"tokens": "1/s", "max_wait": "1/s"}, TypeError, "'max_wait', which is an option of reserve"),
        ({"tokens": "1/s", "max_concurrency": 5}, TypeError, r"max_concurrency.*option of Limiter"),
        ({"tokens": "1/s", "precise": True}, TypeError, r"precise.*option of Limiter"),
        ({"tokens": "1/s", "max_waiting": -1}, ValueError, "max_waiting"),
        ({"tokens": "1/s", "max_waiting": False}, TypeError, "max_waiting"),
        ({"tokens": "1/s", "catch_up": -1}, ValueError, "catch_up"),
        ({"tokens": "1/s", "clock": 5}, TypeError, "clock"),
        ({"tokens": "1/s", "name": 5}, TypeError, "name"),
        ({"tokens": "1/s", "on_event": "log"}, TypeError, "on_event"),
    ],
)
async def test_a_wrong_budget_fails_when_it_is_made(options: dict[str, Any], error: type[Exception], hint: str) -> None:
    """Not at its first use."""
    with pytest.raises(error, match=hint):
        Budget(**options)


@pytest.mark.parametrize(
    ("limits", "hint"),
    [
        ("500/min", r"Budget\(requests='500/min'\)"),
        ({"requests": "500/min"}, r"Budget\(\*\*limits\)"),
        (Limiter("1/s"), r"Budget\(requests=\.\.\.\)"),
    ],
)
async def test_a_limit_without_a_name_is_told_how_to_be_given(budget: Budget, limits: Any, hint: str) -> None:
    """Limiter("500/min") needs none, so it is tried here too; and so are amounts."""
    with pytest.raises(TypeError, match=hint):
        Budget(limits)
    with pytest.raises(TypeError, match=r"write reserve\(tokens=30\)"):
        budget.reserve(30)  # type: ignore[arg-type]

    async with budget.reserve(tokens=30) as lease:
        with pytest.raises(TypeError, match=r"write settle\(tokens=10\)"):
            lease.settle(10)  # type: ignore[arg-type]

    assert left(budget) == {"requests": 4, "tokens": 70}


async def test_a_strategy_belongs_to_one_dimension_of_one_budget() -> None:
    """Each would spend what is the other's (a Limiter is what can be shared)."""
    limited, twice, inner = TokenBucket("1/s", burst=1), TokenBucket("1/s", burst=1), TokenBucket("1/s", burst=1)
    Limiter(limited)

    with pytest.raises(ValueError, match="share that limiter"):
        Budget(tokens=limited)
    with pytest.raises(ValueError, match="two dimensions"):
        Budget(tokens=twice, requests=twice)
    with pytest.raises(ValueError, match="two dimensions"):
        Budget(tokens=aiorate.AllOf(inner, SlidingWindow("1/s")), requests=inner)
    Budget(tokens=twice, requests=inner)  # what was refused belongs to nobody
    with pytest.raises(ValueError, match="belongs to"):
        Limiter(twice)


async def test_budgets_and_leases_cannot_be_copied(budget: Budget) -> None:
    """Two would grant the same permits, or give them back twice."""
    for thing in (budget, budget.reserve()):
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                duplicate(thing)


async def test_a_closed_budget_sends_everybody_away_and_takes_back_what_is_settled(
    calls: Calls, budget: Budget, clock: SteppedClock
) -> None:
    """Each with an error of its own; no timer stays."""
    await calls.queue("a", tokens=100)
    await calls.queue("bc", tokens=10)

    await budget.aclose()
    await turns(3)

    errors = [calls.tasks[name].exception() for name in "bc"]
    assert all(isinstance(error, aiorate.LimiterClosed) for error in errors)
    assert errors[0] is not errors[1]
    with pytest.raises(aiorate.LimiterClosed, match="Create a new one"):
        await budget.reserve().__aenter__()
    await calls.end("a", tokens=10)
    assert (budget.delay(), left(budget), clock.timers) == (float("inf"), {"requests": 0, "tokens": 0}, 0)
    assert repr(budget).endswith("0 waiting, closed>")


async def test_what_is_to_be_had_is_what_a_newcomer_gets(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """Nothing while somebody is in line: nobody passes."""
    await calls.queue("a", tokens=60)
    before = left(budget)
    await calls.queue("b", tokens=70)

    assert (before, left(budget)) == ({"requests": 4, "tokens": 40}, {"requests": 0, "tokens": 0})
    assert (budget.waiting, budget.dimensions) == (1, ("requests", "tokens"))
    with pytest.raises(TypeError, match="the dimensions are requests, tokens"):
        budget.available("token")


async def test_rates_in_every_form_are_dimensions(clock: SteppedClock) -> None:
    """As everywhere; and the budget tells how it stands."""
    budget = Budget(requests="500/min", tokens="200_000/min", calls=3, words=aiorate.Rate(5, per=2), name="llm", clock=clock)

    assert repr(budget).startswith("<Budget 'llm' requests=TokenPool('500/min'")
    assert repr(budget).endswith(", 0 waiting>")
    assert budget.delay(tokens=100_000) == 0.0007  # any amount, as soon as its pool of 1 ms is full; the rest is owed
