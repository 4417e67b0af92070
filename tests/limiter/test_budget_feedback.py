"""Pauses and quotas of a server, as a budget follows them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from helpers.calls import Calls, left
from helpers.driving import SECOND, SteppedClock, one_loop

import aiorate
from aiorate import Budget, TokenBucket
from aiorate.http import Feedback, Quota

pytestmark = one_loop


def quota(name: str, remaining: int | None, reset: float | None, **more: Any) -> Feedback:
    """A response with the quota of one limit."""
    return Feedback(200, quotas=(Quota(name, remaining=remaining, reset=reset, **more),))


# Pauses.


async def test_a_pause_stops_all_dimensions(clock: SteppedClock) -> None:
    """Retry-After does not say which limit it was; requests that arrive meanwhile go on in order."""
    events: list[aiorate.Event] = []
    budget = Budget(tokens=TokenBucket("10/s", burst=100), clock=clock, on_event=events.append, name="llm")
    calls = Calls(budget, clock)
    budget.observe(Feedback(429, pause=5.0, source="Retry-After"))
    budget.observe(Feedback(429, pause=3.0, source="Retry-After"))  # it ends before the other
    with pytest.raises(aiorate.WaitTooLong, match="would wait 5 s because the budget is paused"):
        await budget.reserve(max_wait=4.9).__aenter__()
    await calls.queue("abc", tokens=10)

    assert (budget.delay(), budget.available("tokens"), "paused" in repr(budget)) == (5.0, 0, True)
    await clock.run(5)

    assert calls.granted == dict.fromkeys("abc", 5 * SECOND)
    assert events == [aiorate.Event("paused", "llm", seconds=5.0, source="Retry-After")]
    assert [calls.leases[name].limited_by for name in "abc"] == [None, None, None]


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


@pytest.mark.parametrize("wrong", ["30", -1, None, True, float("nan"), timedelta(seconds=-1)])
async def test_a_bad_pause_changes_nothing(budget: Budget, wrong: Any) -> None:
    """The error for the text of a header names read_feedback() and observe()."""
    with pytest.raises((TypeError, ValueError), match=r"pause\(\).*read_feedback" if isinstance(wrong, str) else r"pause\(\)"):
        budget.pause(wrong)

    assert budget.delay() == 0


async def test_jitter_makes_a_pause_longer_once(budget: Budget, clock: SteppedClock) -> None:
    """Of many responses that come together only the first draws: the maximum of many draws would be about the same for every client."""
    budget.observe(Feedback(429, pause=5.0), jitter=2)
    drawn = budget.delay()
    for _ in range(20):
        budget.observe(Feedback(429, pause=5.0), jitter=2)
    with pytest.raises(ValueError, match=r"observe\(jitter\)"):
        budget.observe(Feedback(429, pause=50.0), jitter=-1)

    assert drawn == budget.delay()
    assert 5.0 <= drawn < 7.0


# Quotas.


@pytest.mark.parametrize(
    ("told", "of_requests", "of_tokens"),
    [
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
    ],
)
async def test_a_quota_lowers_the_dimension_of_its_name_or_unit(budget: Budget, told: Feedback, of_requests: int, of_tokens: int) -> None:
    """Other dimensions keep theirs."""
    budget.observe(told)

    assert left(budget) == {"requests": of_requests, "tokens": of_tokens}


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
    assert calls.leases["c"].limited_by == "tokens"


async def test_quotas_of_a_second_and_of_a_minute_hold_side_by_side(calls: Calls, budget: Budget, clock: SteppedClock) -> None:
    """Each quota ends at its own reset."""
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


async def test_observe_ignores_none_and_refuses_other_types(budget: Budget) -> None:
    """read_feedback() returns None for a response without such headers; anything but feedback is an error and changes nothing."""
    budget.observe(None)
    for wrong in (429, {"Retry-After": "5"}, Feedback(429, pause=-1.0), Feedback(429, pause=1.0, quotas=(Quota("tokens", remaining=-1),))):
        with pytest.raises((TypeError, ValueError), match=r"observe\(\)"):
            budget.observe(wrong)  # type: ignore[arg-type]

    assert left(budget) == {"requests": 5, "tokens": 100}
