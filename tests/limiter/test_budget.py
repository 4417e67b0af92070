"""A Budget: several dimensions, one line, all amounts or none."""

from __future__ import annotations

import asyncio
import copy
import pickle
from contextlib import suppress
from typing import Any

import pytest
from helpers.calls import Calls, left
from helpers.driving import SECOND, SteppedClock, one_loop, turns
from helpers.strategies import EACH

import aiorate
from aiorate import Budget, Limiter, SlidingWindow, TokenBucket
from aiorate.http import Feedback

pytestmark = one_loop


# All amounts or none, in order.


async def test_a_reservation_has_an_amount_for_each_dimension(budget: Budget) -> None:
    """A call is one request and any number of tokens; a dimension that is not named takes 1."""
    async with budget.reserve(tokens=30) as lease:
        assert left(budget) == {"requests": 4, "tokens": 70}
    async with budget.reserve(requests=2):
        assert left(budget) == {"requests": 2, "tokens": 69}

    assert (lease.amounts, lease.waited, lease.limited_by) == ({"requests": 1, "tokens": 30}, 0.0, None)


async def test_a_reservation_takes_all_amounts_or_none(calls: Calls, clock: SteppedClock, requests: TokenBucket) -> None:
    """M2: else requests are used up while a call waits for tokens."""
    await calls.queue("a", tokens=100)
    await calls.queue("b", tokens=50)

    before = requests.available(clock.now())
    await clock.run(4.9)

    assert (before, list(calls.granted)) == (4, ["a"])
    assert requests.available(clock.now()) == 5  # full again: none was taken for the waiter
    await clock.run(0.1)
    assert calls.granted == {"a": 0, "b": 5 * SECOND}
    assert requests.available(clock.now()) == 4


async def test_reservations_are_granted_in_order_of_arrival(calls: Calls, clock: SteppedClock) -> None:
    """A large one is not starved by small ones that would fit, and newcomers never pass the line."""
    await calls.queue("a", tokens=95)
    await calls.queue("b", tokens=60)
    await calls.queue("cd", tokens=1)

    await clock.run(60)

    assert calls.granted == {"a": 0, "b": 5.5 * SECOND, "c": 5.6 * SECOND, "d": 5.7 * SECOND}
    assert [calls.leases[name].waited for name in "abcd"] == [0.0, 5.5, 5.6, 5.7]


@pytest.mark.parametrize("name", EACH)
async def test_two_dimensions_keep_both_schedules(name: str, clock: SteppedClock) -> None:
    """A hundred requests at once are each granted at the first instant that both schedules allow."""
    work, window = EACH[name](), SlidingWindow("7/s")
    amount = min(2, work.max_permits or 2)
    calls = Calls(Budget(calls=SlidingWindow("7/s"), work=EACH[name](), clock=clock), clock)
    await calls.queue(range(100), work=amount)

    await clock.run(600)

    on_paper, now = [], 0
    for _ in range(100):
        while (due := max(work.peek(amount, now), window.peek(1, now))) > now:
            now = due
        work.take(amount, now, max(0, now - SECOND // 50))  # in line from the beginning, and booked at most catch_up back
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
async def test_a_bad_reservation_is_refused_at_once(budget: Budget, amounts: dict[str, Any], error: type[Exception], hint: str) -> None:
    """reserve() raises, before anything is spent; aiolimiter takes acquire(-5) and mints capacity."""
    with pytest.raises(error, match=hint):
        budget.reserve(**amounts)

    assert left(budget) == {"requests": 5, "tokens": 100}


async def test_an_estimate_above_the_capacity_is_lowered(clock: SteppedClock, caplog: pytest.LogCaptureFixture) -> None:
    """A cautious estimate may exceed a bucket, and must not make the call fail. One event reports it; settling corrects the amount."""
    events: list[aiorate.Event] = []
    tokens = TokenBucket("10/s", burst=100)
    budget = Budget(requests="1/s", tokens=tokens, clock=clock, name="llm", on_event=events.append)

    assert budget.delay(tokens=1000) == 0.0
    assert events == []  # delay() reserves nothing
    for _ in range(3):
        async with budget.reserve(tokens=1000) as lease:
            lease.settle(tokens=130)
        await clock.run(60)

    assert lease.amounts == {"requests": 1, "tokens": 100}
    assert events == [aiorate.Event("clamped", "llm", key="tokens", permits=100)]
    assert [record.getMessage() for record in caplog.records] == [
        "limiter 'llm', key 'tokens': estimate lowered to 100, the most that can be granted at once"
    ]


async def test_usage_above_a_lowered_estimate_is_owed(budget: Budget) -> None:
    """Lowered to 100 and settled at 130: the next reservation waits until the 30 are paid too."""
    async with budget.reserve(tokens=1000) as lease:
        lease.settle(tokens=130)

    assert budget.delay(tokens=20) == 5.0


async def test_available_amounts_are_what_a_newcomer_gets(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """None are available behind a line."""
    await calls.queue("a", tokens=60)
    before = left(budget)
    await calls.queue("b", tokens=70)

    assert (before, left(budget)) == ({"requests": 4, "tokens": 40}, {"requests": 0, "tokens": 0})
    assert (budget.waiting, budget.dimensions) == (1, ("requests", "tokens"))
    with pytest.raises(TypeError, match="the dimensions are requests, tokens"):
        budget.available("token")


# Waiting.


async def test_a_lease_names_the_dimension_that_it_waited_for(clock: SteppedClock) -> None:
    """It is the limit to raise; `waited` says for how long, the time in line included."""
    budget = Budget(requests=TokenBucket("1/s", burst=2), tokens=TokenBucket("10/s", burst=100), clock=clock, catch_up=0)
    calls = Calls(budget, clock)
    await calls.queue("a", tokens=100)
    await calls.queue("b", tokens=20)
    await calls.queue("c", tokens=1)
    await calls.queue("d", tokens=1)

    await clock.run(10)

    assert calls.granted == {"a": 0, "b": 2 * SECOND, "c": 2.1 * SECOND, "d": 3 * SECOND}
    assert [calls.leases[name].limited_by for name in "abcd"] == [None, "tokens", "tokens", "requests"]


async def test_a_lease_that_only_waited_in_line_names_no_dimension(calls: Calls, clock: SteppedClock) -> None:
    """Two are granted at one instant: the first waited for tokens, and the second only for the first."""
    await calls.queue("a", tokens=100)
    await calls.queue("b", tokens=50)
    clock.set(10 * SECOND)  # the loop is late: both are due

    await calls.queue("c", tokens=10)

    assert [calls.leases[name].limited_by for name in "bc"] == ["tokens", None]


async def test_a_lease_that_waited_for_a_pause_names_no_dimension(budget: Budget, clock: SteppedClock) -> None:
    """No limit of the budget was the reason."""
    budget.observe(Feedback(429, pause=2.0, source="Retry-After"))
    task = asyncio.ensure_future(budget.reserve().__aenter__())

    await clock.run(2)

    assert (task.result().waited, task.result().limited_by) == (2.0, None)


async def test_max_wait_refuses_at_once_and_spends_nothing(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """The error says how long the wait would be, and for which dimension."""
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


async def test_a_refused_lease_may_be_entered_again(budget: Budget, clock: SteppedClock) -> None:
    """The refusal reserved nothing."""
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
async def test_at_most_max_waiting_reservations_wait(most: int, clock: SteppedClock) -> None:
    """The next is refused at once; with 0 none may wait."""
    budget = Budget(tokens=TokenBucket("10/s", burst=10), clock=clock, max_waiting=most)
    calls = Calls(budget, clock)
    await calls.queue(range(most + 1), tokens=10)

    with pytest.raises(aiorate.LineFull, match=f"max_waiting={most}"):
        await budget.reserve().__aenter__()

    assert (budget.waiting, list(calls.granted)) == (most, [0])
    await clock.run(10)
    assert len(calls.granted) == most + 1


@pytest.mark.parametrize("name", EACH)
async def test_delay_of_a_budget_is_the_wait(name: str, clock: SteppedClock) -> None:
    """It is exact on a clock that stands still, behind a line too, and asking changes nothing."""
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


async def test_polling_yields_to_the_loop() -> None:
    """A task that polls with max_wait=0 must not keep a timeout from firing."""
    budget = Budget(tokens=TokenBucket("1/h", burst=1))
    async with budget.reserve():
        pass

    async def poll() -> None:
        while True:
            with suppress(aiorate.WaitTooLong):
                await budget.reserve(max_wait=0).__aenter__()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(poll(), 0.05)


async def test_a_budget_counts_its_reservations(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """Each counts as one, whatever its amounts; refused and cancelled ones are counted too."""
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


# A budget is made, copied, and closed.


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
async def test_bad_arguments_of_a_budget_fail_in_the_constructor(options: dict[str, Any], error: type[Exception], hint: str) -> None:
    """A mistake shows where it is written, not at the first use."""
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
async def test_errors_for_unnamed_limits_say_what_to_write(budget: Budget, limits: Any, hint: str) -> None:
    """Limiter("500/min") needs no name, so users try the same here, and with amounts."""
    with pytest.raises(TypeError, match=hint):
        Budget(limits)
    with pytest.raises(TypeError, match=r"write reserve\(tokens=30\)"):
        budget.reserve(30)  # type: ignore[arg-type]

    async with budget.reserve(tokens=30) as lease:
        with pytest.raises(TypeError, match=r"write settle\(tokens=10\)"):
            lease.settle(10)  # type: ignore[arg-type]

    assert left(budget) == {"requests": 4, "tokens": 70}


async def test_a_strategy_belongs_to_one_dimension_of_one_budget() -> None:
    """Two would spend each other's permits; only a Limiter can be shared."""
    limited, twice, inner = TokenBucket("1/s", burst=1), TokenBucket("1/s", burst=1), TokenBucket("1/s", burst=1)
    Limiter(limited)

    with pytest.raises(ValueError, match="share that limiter"):
        Budget(tokens=limited)
    with pytest.raises(ValueError, match="two dimensions"):
        Budget(tokens=twice, requests=twice)
    with pytest.raises(ValueError, match="two dimensions"):
        Budget(tokens=aiorate.AllOf(inner, SlidingWindow("1/s")), requests=inner)
    Budget(tokens=twice, requests=inner)  # a refused constructor claims nothing
    with pytest.raises(ValueError, match="belongs to"):
        Limiter(twice)


async def test_dimensions_may_be_rates_in_every_form(clock: SteppedClock) -> None:
    """repr() shows each of them."""
    budget = Budget(requests="500/min", tokens="200_000/min", calls=3, words=aiorate.Rate(5, per=2), name="llm", clock=clock)

    assert repr(budget).startswith("<Budget 'llm' requests=TokenPool('500/min'")
    assert repr(budget).endswith(", 0 waiting>")
    assert budget.delay(tokens=100_000) == 0.0007  # any amount, once its pool of 1 ms is full; the rest is owed


async def test_budgets_and_leases_cannot_be_copied(budget: Budget) -> None:
    """A copy would grant the same permits again, or give them back twice."""
    for thing in (budget, budget.reserve()):
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                duplicate(thing)


async def test_closing_a_budget_fails_the_line(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """Each waiter gets its own LimiterClosed, no timer stays, and leases can still be settled."""
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
