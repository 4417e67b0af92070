"""Servers that keep a bucket, and tell how full it is and at what instant, in milliseconds or whole seconds."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

from helpers.calls import Calls
from helpers.capped import Capped
from helpers.driving import SECOND, Crowd, SteppedClock, one_loop
from helpers.strategies import EACH
from helpers.transcripts import S

from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket
from aiorate._rate import ceil_div
from aiorate.http import Feedback, Quota, read_feedback
from aiorate.testing import ManualClock


def openai(left: int) -> Feedback | None:
    """OpenAI's headers for a bucket of 8000 tokens."""
    return read_feedback(
        200,
        {
            "x-ratelimit-limit-requests": "500",
            "x-ratelimit-remaining-requests": "499",
            "x-ratelimit-reset-requests": "120ms",
            "x-ratelimit-limit-tokens": "8000",
            "x-ratelimit-remaining-tokens": str(left),
            "x-ratelimit-reset-tokens": "59s",
        },
    )


@one_loop
async def test_a_budget_is_held_by_the_servers_bucket_of_tokens() -> None:
    """With 100 of 8000 left and full in 59 s, ten reservations of 200 waited 0.01 s in all; they are due in 14 s."""
    clock = SteppedClock()
    calls = Calls(Budget(requests="500/min", tokens=TokenBucket("1000000/min", burst=100_000), clock=clock), clock)

    calls.budget.observe(openai(100))
    assert calls.budget.available("tokens") == 100
    await calls.queue(range(10), tokens=200)
    await clock.run(60)

    assert {n: ceil_div((200 * (n + 1) - 100) * 59 * SECOND, 7900) for n in range(10)} == calls.granted
    assert 14 * SECOND < calls.granted[9] < 15 * SECOND
    assert calls.leases[9].limited_by == "tokens"


def said(remaining: int, limit: int | None, reset: float, name: str = "requests", pause: float | None = None) -> Feedback:
    """Feedback with one bucket of the server: ``remaining`` of ``limit`` left, and full after ``reset`` seconds."""
    unit = "requests" if name == "requests" else "tokens"
    return Feedback(200, pause, (Quota(name, limit, remaining, reset, full_at_reset=True, unit=unit),))


def crowd_of(limiter: Any = None, **options: Any) -> Crowd:
    clock = ManualClock()
    return Crowd(Limiter(TokenBucket("100/s", burst=1000) if limiter is None else limiter, clock=clock, **options), clock)


def instants(crowd: Crowd) -> list[float]:
    return [at / SECOND for at in crowd.granted.values()]


@one_loop
async def test_a_limiter_is_held_by_the_servers_bucket_of_requests() -> None:
    """With 2 of 10 left and full in 80 s, two go at once and then one every 10 s, whatever the strategy allows."""
    for name in EACH:
        crowd = crowd_of(EACH[name]())
        await crowd.clock.run(3)

        crowd.limiter.observe(said(2, 10, 80))
        await crowd.queue(range(5))
        await crowd.clock.run(9.999999999)
        soon = len(crowd.granted)
        await crowd.clock.run(100)

        assert (soon, [13.0, 23.0, 33.0]) == (2, instants(crowd)[2:]), name


def test_tokens_left_do_not_hold_a_limiter_of_requests() -> None:
    """A request is not a token; 2 tokens left would stop all requests."""
    crowd = crowd_of()

    crowd.limiter.observe(said(2, 8000, 59, name="tokens"))

    assert 1000 == crowd.limiter.statistics().available


def test_a_bucket_that_is_full_or_has_no_size_holds_nothing() -> None:
    """Values that make no sense are ignored."""
    for word in [(5, 5, 10), (9, 5, 10), (3, 0, 10), (3, None, 10), (3, 5, 0), (0, None, 10)]:
        crowd = crowd_of()

        crowd.limiter.observe(said(*word))

        assert (1000, 0.0) == (crowd.limiter.statistics().available, crowd.limiter.delay(1000)), word


@one_loop
async def test_changing_the_limiter_does_not_end_the_feedback() -> None:
    """A change here does not fill the server's bucket."""
    changes: list[Callable[[Limiter], object]] = [
        lambda limiter: limiter.set_rate("10000/s"),
        lambda limiter: limiter.apply("5000,1,start"),
        lambda limiter: limiter.charge(10),
        lambda limiter: limiter.refund(10),
    ]
    for number, change in enumerate(changes):
        crowd = crowd_of()
        crowd.limiter.observe(said(2, 10, 80))
        change(crowd.limiter)
        await crowd.queue(range(4))
        await crowd.clock.run(60)

        assert [0.0, 0.0, 10.0, 20.0] == instants(crowd), number


@one_loop
async def test_a_pause_does_not_stop_the_servers_bucket() -> None:
    """It refills while the limiter is paused, whether the feedback came before or during the pause."""
    for told_at, due in [(0, [25.0, 25.0, 30.0, 40.0]), (5, [25.0, 25.0, 35.0, 45.0])]:
        crowd = crowd_of()
        if told_at:
            crowd.limiter.pause(25)
            await crowd.clock.run(told_at)
            crowd.limiter.observe(said(0, 10, 100))
        else:
            crowd.limiter.observe(said(0, 10, 100))
            crowd.limiter.pause(25)
        delays = [told_at + crowd.limiter.delay(permits) for permits in (1, 2, 3, 4)]
        await crowd.queue(range(4))
        await crowd.clock.run(100)

        assert delays == due == instants(crowd), (told_at, due)


def test_the_error_of_a_reset_is_read() -> None:
    """Each instant in whole seconds adds one; a duration has none."""
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
    for reset, date, read in [
        ("2026-11-20T12:00:05.300Z", True, (5.3, 1.0)),
        ("2026-11-20T12:00:05Z", True, (5.0, 2.0)),
        ("2026-11-20T12:00:05.300Z", False, (5.3, 0.0)),
        ("2026-11-20T12:00:05Z", False, (5.0, 1.0)),
        ("6m0s", True, (360.0, 0.0)),
        ("300ms", True, (0.3, 0.0)),
        ("5", True, (5.0, 0.0)),
        ("2026-11-20T11:00:00Z", True, (0.0, 2.0)),
        ("Fri, 20 Nov 2026 12:00:05 GMT", True, (5.0, 2.0)),
        ("in a while", True, (None, 0.0)),
    ]:
        output = "anthropic-ratelimit-output-tokens"
        sent = {f"{output}-limit": "8000", f"{output}-remaining": "4000", f"{output}-reset": reset}
        if date:
            sent["Date"] = "Fri, 20 Nov 2026 12:00:00 GMT"

        feedback = read_feedback(200, sent, now=noon)

        assert feedback is not None, (reset, date, read)
        quota = feedback.quotas[0]
        assert (None if quota.reset is None else round(quota.reset, 6), quota.reset_error) == read, (reset, date, read)


def test_a_rough_time_moves_no_rate() -> None:
    """Before, the bucket fills at 1 per second."""
    for left, full_in, later in [
        (0, 30 * S, 2),  # known within a tenth: it counts
        (54, 6 * S, 55),  # 6 in 5 to 7 s: it stays
        (59, S // 2, 60),  # 1 in up to 1.5 s
        (60, 0, 60),  # a full bucket tells no rate
    ]:
        capped = Capped(TokenBucket("1000000/s", burst=1_000_000))
        capped.refill("tokens", 0, 60, 60 * S, 0, 0, 0)

        capped.refill("tokens", left, 60, full_in, 60 * S, 60 * S, S)

        assert (left, later) == (capped.left(60 * S), capped.left(61 * S)), (left, full_in, later)


def rough(left: int, unit: str = "requests") -> Feedback:
    """``left`` of 60, and full in 5 s, or 4 or 6."""
    return Feedback(200, quotas=(Quota(unit, 60, left, 5.0, full_at_reset=True, unit=unit, reset_error=1.0),))


def test_the_error_of_a_reset_reaches_every_limit() -> None:
    """20 of 60 in 4 s: 5 per second, not 4. A limiter, a key, a dimension, one that is shared, and one of a shared budget."""
    clock = ManualClock()
    fast = TokenBucket("1000/s", burst=1000)
    limiter, shared = Limiter(deepcopy(fast), clock=clock), Limiter(deepcopy(fast), clock=clock)
    keyed = KeyedLimiter(lambda key: Limiter(deepcopy(fast), clock=clock))
    own, above = Budget(tokens=deepcopy(fast), clock=clock), Budget(tokens=deepcopy(fast), clock=clock)
    with_limiter, with_budget = (
        Budget(calls=deepcopy(fast), requests=shared, clock=clock),
        Budget(calls=deepcopy(fast), shared=above, clock=clock),
    )

    limiter.observe(rough(40))
    keyed.observe("key", rough(40))
    own.observe(rough(40, "tokens"))
    with_limiter.observe(rough(40))
    with_budget.observe(rough(40, "tokens"))

    assert [limiter.delay(45), keyed["key"].delay(45), own.delay(tokens=45)] == [1.0, 1.0, 1.0]
    assert [with_limiter.delay(requests=45), with_budget.delay(tokens=45)] == [1.0, 1.0]
