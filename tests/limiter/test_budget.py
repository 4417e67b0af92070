"""A Budget: several dimensions, one line, all amounts or none; and pauses and quotas of a server, as a budget follows them."""

from __future__ import annotations

import copy
import itertools
import pickle
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from helpers.calls import Calls, left
from helpers.driving import SECOND, SteppedClock, one_loop, turns
from helpers.strategies import EACH

import aiorate
from aiorate import Budget, Event, Limiter, SlidingWindow, TokenBucket
from aiorate.http import Feedback, Quota

pytestmark = one_loop


async def test_a_reservation_has_an_amount_for_each_dimension(budget: Budget) -> None:
    """A call is one request and any number of tokens; a dimension that is not named takes 1."""
    async with budget.reserve(tokens=30) as lease:
        assert left(budget) == {"requests": 4, "tokens": 70}
    async with budget.reserve(requests=2):
        assert left(budget) == {"requests": 2, "tokens": 69}
    assert (lease.amounts, lease.waited, lease.limited_by) == ({"requests": 1, "tokens": 30}, 0.0, None)


async def test_a_reservation_takes_all_amounts_or_none(calls: Calls, clock: SteppedClock, requests: TokenBucket) -> None:
    """Otherwise requests are used up while a call waits for tokens."""
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


async def test_two_dimensions_keep_both_schedules() -> None:
    """Requests at once are each granted at the first instant that both schedules allow, with any strategy."""
    for name in EACH:
        clock = SteppedClock()
        work, window = EACH[name](), SlidingWindow("7/s")
        amount = min(2, work.max_permits or 2)
        calls = Calls(Budget(calls=SlidingWindow("7/s"), work=EACH[name](), clock=clock), clock)
        await calls.queue(range(40), work=amount)
        await clock.run(600)

        on_paper, now = [], 0
        for _ in range(40):
            while (due := max(work.peek(amount, now), window.peek(1, now))) > now:
                now = due
            work.take(amount, now, max(0, now - SECOND // 50))  # in line from the beginning, and booked at most catch_up back
            window.take(1, now)
            on_paper.append(now)
        assert dict(enumerate(on_paper)) == calls.granted, name
        assert (0, 0) == (clock.timers, calls.budget.waiting)


async def test_delay_of_a_budget_is_the_wait() -> None:
    """It is exact on a clock that stands still, behind a line too, and asking changes nothing."""
    for name in EACH:
        clock = SteppedClock()
        budget = Budget(work=EACH[name](), tokens=TokenBucket("3/s", burst=7), clock=clock)
        calls = Calls(budget, clock)
        for number in range(12):
            foretold, asked = budget.delay(work=1 + number % 2, tokens=1 + number % 7), clock.now()
            calls.ask(number, work=1 + number % 2, tokens=1 + number % 7)
            await turns(3)
            if number % 3 == 0:
                await clock.run(foretold)
                assert round(foretold * SECOND) == calls.granted[number] - asked, name


async def test_an_estimate_above_the_capacity_is_lowered(clock: SteppedClock, caplog: pytest.LogCaptureFixture) -> None:
    """A cautious estimate may exceed a bucket, and must not make the call fail. One event reports it, and what was used on top is owed."""
    events: list[Event] = []
    budget = Budget(requests="1/s", tokens=TokenBucket("10/s", burst=100), clock=clock, name="llm", on_event=events.append)
    assert 0.0 == budget.delay(tokens=1000)
    assert [] == events  # delay() reserves nothing
    for _ in range(3):
        await clock.run(60)
        async with budget.reserve(tokens=1000) as lease:
            lease.settle(tokens=130)

    assert {"requests": 1, "tokens": 100} == lease.amounts
    assert [Event("clamped", "llm", key="tokens", permits=100)] == events
    assert 1 == len(caplog.records)
    assert 5.0 == budget.delay(tokens=20)


async def test_max_wait_refuses_at_once_and_spends_nothing(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
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


async def test_at_most_max_waiting_reservations_wait() -> None:
    """The next is refused at once; with 0 none may wait."""
    for most in (0, 2):
        clock = SteppedClock()
        calls = Calls(Budget(tokens=TokenBucket("10/s", burst=10), clock=clock, max_waiting=most), clock)
        await calls.queue(range(most + 1), tokens=10)
        with pytest.raises(aiorate.LineFull, match=f"max_waiting={most}"):
            await calls.budget.reserve().__aenter__()
        assert (most, [0]) == (calls.budget.waiting, list(calls.granted))
        await clock.run(10)
        assert most + 1 == len(calls.granted)


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


async def test_bad_arguments_of_a_budget_are_refused(budget: Budget) -> None:
    make: Any = partial(Budget, tokens="1/s")
    options = [("on_error", "raise"), ("max_waiting", -1), ("max_waiting", False), ("catch_up", -1), ("clock", 5), ("name", 5)]
    options += [("on_event", "log"), ("fast", "fast"), ("words", None)]
    waits = [("max_wait", -1), ("max_wait", "1"), ("on_error", "raise")]
    amounts = [("token", 5), *(("tokens", wrong) for wrong in (-5, True, 5.0, None))]
    async with budget.reserve(tokens=30) as lease:
        for call, rows in ((make, options), (budget.reserve, waits + amounts), (lease.settle, amounts)):
            for name, wrong in rows:
                with pytest.raises((TypeError, ValueError), match=name):
                    call(**{name: wrong})
            with pytest.raises(TypeError):
                call(30)
        with pytest.raises(TypeError, match="dimension"):
            Budget()
        for thing, duplicate in itertools.product((budget, lease), (copy.copy, copy.deepcopy, pickle.dumps)):
            with pytest.raises(TypeError, match="copied"):
                duplicate(thing)
        assert {"requests": 4, "tokens": 70} == left(budget)
        lease.settle(tokens=10)

    assert {"requests": 4, "tokens": 90} == left(budget)


async def test_a_strategy_belongs_to_one_dimension_of_one_budget() -> None:
    """Two would spend each other's permits; only a Limiter can be shared."""
    limited, twice, inner = TokenBucket("1/s", burst=1), TokenBucket("1/s", burst=1), TokenBucket("1/s", burst=1)
    Limiter(limited)

    with pytest.raises(ValueError, match="scheduler"):
        Budget(tokens=limited)
    with pytest.raises(ValueError, match="given twice"):
        Budget(tokens=twice, requests=twice)
    with pytest.raises(ValueError, match="belongs to an AllOf already"):
        Budget(tokens=aiorate.AllOf(inner, SlidingWindow("1/s")), requests=inner)
    Budget(tokens=twice, requests=TokenBucket("1/s", burst=1))  # a refused constructor claims nothing
    with pytest.raises(ValueError, match="scheduler"):
        Limiter(twice)


async def test_closing_a_budget_fails_the_line(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """Each waiter gets its own LimiterClosed, no timer stays, and leases can still be settled."""
    await calls.queue("a", tokens=100)
    await calls.queue("bc", tokens=10)
    await budget.aclose()
    await turns(3)

    errors = [calls.tasks[name].exception() for name in "bc"]
    assert all(isinstance(error, aiorate.LimiterClosed) for error in errors)
    assert errors[0] is not errors[1]
    with pytest.raises(aiorate.LimiterClosed):
        await budget.reserve().__aenter__()
    await calls.end("a", tokens=10)
    assert (budget.delay(), left(budget), clock.timers) == (float("inf"), {"requests": 0, "tokens": 0}, 0)


# Feedback.


def quota(name: str, remaining: int | None, reset: float | None, **more: Any) -> Feedback:
    return Feedback(200, quotas=(Quota(name, remaining=remaining, reset=reset, **more),))


async def test_pause_and_resume_of_a_budget(calls: Calls, budget: Budget, clock: SteppedClock, caplog: pytest.LogCaptureFixture) -> None:
    """Programs need them whose hooks never see the 429, as behind an SDK with its own client. Pauses merge by the later end."""
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


async def test_bad_pauses_and_feedback_change_nothing(budget: Budget) -> None:
    """read_feedback() returns None for a response without such headers, which is ignored."""
    budget.observe(None)
    wrong: Any
    for wrong in ("30", -1, None, True, float("nan"), timedelta(seconds=-1)):
        with pytest.raises((TypeError, ValueError), match="pause"):
            budget.pause(wrong)
    for wrong in (429, {"Retry-After": "5"}):
        with pytest.raises((TypeError, ValueError), match="observe"):
            budget.observe(wrong)
    with pytest.raises(ValueError, match="jitter"):
        budget.observe(Feedback(429, pause=50.0), jitter=-1)

    assert (0, {"requests": 5, "tokens": 100}) == (budget.delay(), left(budget))


async def test_a_quota_lowers_the_dimension_of_its_name_or_unit(clock: SteppedClock) -> None:
    rows = [
        (quota("tokens", 30, 10.0, unit="tokens"), 5, 30),
        (quota("requests", 3, 10.0), 3, 100),
        (quota("per-minute", 2, 10.0), 2, 100),  # by its unit, since no dimension has its name
        (quota("input_tokens", 40, 10.0, unit="tokens"), 5, 40),
        (quota("per-minute", 30, 10.0, limit=6, window=60.0), 1, 100),  # at most what the policy allows in that time
        (quota("bytes", 1, 10.0, unit="content-bytes"), 5, 100),  # no dimension has this name or unit
        (quota("tokens", None, 10.0, unit="tokens"), 5, 100),
        (quota("tokens", 30, None, unit="tokens"), 5, 100),
        (quota("tokens", 200, 10.0, unit="tokens"), 5, 100),  # never more than the bucket holds
        (quota("tokens", 30, 10.0, unit="tokens", full_at_reset=True, limit=100), 5, 30),  # the server refills before that
        (quota("tokens", 0, 10.0, unit="tokens", full_at_reset=True, limit=100), 5, 0),
    ]
    for told, of_requests, of_tokens in rows:
        budget = Budget(requests=TokenBucket("1/s", 5), tokens=TokenBucket("10/s", 100), clock=clock)
        budget.observe(told)
        assert left(budget) == {"requests": of_requests, "tokens": of_tokens}, told


async def test_a_quota_holds_until_its_reset(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """An unused amount is available again until then; afterwards only the budget's own limit counts."""
    budget.observe(quota("tokens", 30, 2.0, unit="tokens"))
    await calls.queue("a", tokens=30)
    await calls.queue("bcd", tokens=10)
    await clock.run(1)
    await calls.end("a", tokens=15)
    assert calls.granted == {"a": 0, "b": SECOND}
    await clock.run(1)
    assert calls.granted == {"a": 0, "b": SECOND, "c": 2 * SECOND, "d": 2 * SECOND}
    assert ["tokens", "tokens"] == [calls.leases[name].limited_by for name in "cd"]  # d has only stood behind c
