"""Servers that keep a bucket, as OpenAI's and Anthropic's do, and tell how full it is."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.calls import Calls
from helpers.driving import SECOND, Crowd, SteppedClock, one_loop
from helpers.strategies import EACH

from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket
from aiorate.http import Feedback, Quota, read_feedback
from aiorate.rate import ceil_div
from aiorate.testing import ManualClock

pytestmark = one_loop


def said(remaining: int, limit: int | None, reset: float, name: str = "requests", pause: float | None = None) -> Feedback:
    """Feedback with one bucket of the server: ``remaining`` of ``limit`` left, and full after ``reset`` seconds."""
    unit = "requests" if name == "requests" else "tokens"
    return Feedback(200, pause, (Quota(name, limit, remaining, reset, full_at_reset=True, unit=unit),))


def crowd_of(limiter: Any = None, **options: Any) -> Crowd:
    clock = ManualClock()
    return Crowd(Limiter(TokenBucket("100/s", burst=1000) if limiter is None else limiter, clock=clock, **options), clock)


def instants(crowd: Crowd) -> list[float]:
    return [at / SECOND for at in crowd.granted.values()]


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


@pytest.mark.parametrize("name", EACH)
async def test_a_limiter_is_held_by_the_servers_bucket_of_requests(name: str) -> None:
    """With 2 of 10 left and full in 80 s, two go at once and then one every 10 s, whatever the strategy allows."""
    crowd = crowd_of(EACH[name]())
    await crowd.clock.run(3)

    crowd.limiter.observe(said(2, 10, 80))
    await crowd.queue(range(5))
    await crowd.clock.run(9.999999999)
    soon = len(crowd.granted)
    await crowd.clock.run(100)

    assert (soon, [13.0, 23.0, 33.0]) == (2, instants(crowd)[2:])


async def test_tokens_left_do_not_hold_a_limiter_of_requests() -> None:
    """A request is not a token; 2 tokens left would stop all requests."""
    crowd = crowd_of()

    crowd.limiter.observe(said(2, 8000, 59, name="tokens"))

    assert 1000 == crowd.limiter.statistics().available


@pytest.mark.parametrize("word", [(5, 5, 10), (9, 5, 10), (3, 0, 10), (3, None, 10), (3, 5, 0), (0, None, 10)])
async def test_a_bucket_that_is_full_or_has_no_size_holds_nothing(word: Any) -> None:
    """Values that make no sense are ignored."""
    crowd = crowd_of()

    crowd.limiter.observe(said(*word))

    assert (1000, 0.0) == (crowd.limiter.statistics().available, crowd.limiter.delay(1000))


async def test_a_server_that_allows_more_changes_nothing() -> None:
    """Feedback only ever lowers what is available."""
    crowd = crowd_of(TokenBucket("1/s", burst=2))

    crowd.limiter.observe(said(900, 1000, 1))
    await crowd.queue(range(4))
    await crowd.clock.run(10)

    assert [0.0, 0.0, 1.0, 2.0] == instants(crowd)


async def test_feedback_ends_when_it_can_lower_nothing() -> None:
    """The limiter's own rate is the lower one, and once the server's bucket is full only the strategy counts."""
    crowd = crowd_of(TokenBucket("1/s", burst=5))
    crowd.limiter.observe(said(2, 10, 4))
    assert crowd.limiter._dispatcher.scheduler is not crowd.limiter.scheduler

    await crowd.clock.run(3.9)
    crowd.limiter.delay()
    assert crowd.limiter._dispatcher.scheduler is not crowd.limiter.scheduler
    await crowd.clock.run(0.1)
    crowd.limiter.delay()

    assert crowd.limiter._dispatcher.scheduler is crowd.limiter.scheduler


async def test_feedback_of_a_lower_limit_holds_until_the_next() -> None:
    """After an idle hour the server's bucket holds 10, not our 1000."""
    crowd = crowd_of()
    crowd.limiter.observe(said(2, 10, 8))

    await crowd.clock.run(3600)
    await crowd.queue(range(12))
    await crowd.clock.run(10)

    assert [3600.0] * 10 + [3601.0, 3602.0] == instants(crowd)


async def test_responses_out_of_order_do_not_raise_what_is_left() -> None:
    """Several are in flight. The one sent first and received last tells of more than is left."""
    crowd = crowd_of()
    for left in (7, 4, 6, 5):
        crowd.limiter.observe(said(left, 10, 10 - left))

    assert 4 == crowd.limiter.statistics().available


async def test_requests_on_their_way_are_not_granted_again() -> None:
    """A response that left the server before three requests reached it still counts their permits."""
    crowd = crowd_of()
    crowd.limiter.observe(said(5, 60, 55))
    await crowd.queue(range(3))

    crowd.limiter.observe(said(5, 60, 55))

    assert 2 == crowd.limiter.statistics().available


async def test_permits_that_others_use_or_leave_are_counted() -> None:
    """The server's count wins over ours, except for grants of the last seconds."""
    crowd = crowd_of()
    crowd.limiter.observe(said(50, 60, 10))
    await crowd.queue(range(3))
    crowd.limiter.observe(said(1, 60, 59))
    assert 1 == crowd.limiter.statistics().available

    await crowd.clock.run(20)
    crowd.limiter.observe(said(50, 60, 10))

    assert 50 == crowd.limiter.statistics().available


async def test_settling_less_does_not_raise_what_the_server_said() -> None:
    """The server had counted the call before it answered, so its count already includes what the call left unused."""
    clock = SteppedClock()
    calls = Calls(Budget(tokens=TokenBucket("1000/s", burst=10_000), clock=clock), clock)
    await calls.queue("a", tokens=600)
    clock.advance(1)
    calls.budget.observe(said(100, 8000, 79, name="tokens"))

    await calls.end("a", tokens=50)

    assert calls.budget.available("tokens") == 100


async def test_reservation_after_the_feedback_returns_unused_permits() -> None:
    """They were taken from what the server had left."""
    clock = SteppedClock()
    calls = Calls(Budget(tokens=TokenBucket("1000/s", burst=10_000), clock=clock), clock)
    calls.budget.observe(said(600, 8000, 74, name="tokens"))
    clock.advance(1)
    await calls.queue("ab", tokens=600)
    assert "b" not in calls.granted

    await calls.end("a", tokens=100)

    assert calls.budget.delay(tokens=100) == 1.0  # 700 less 600, 500 back, and 600 again
    assert calls.granted == {"a": SECOND, "b": SECOND}


async def test_a_cancelled_request_leaves_no_trace() -> None:
    """It was granted within the server's bucket, and never sent."""
    crowd = crowd_of()
    crowd.limiter.observe(said(1, 10, 90))
    await crowd.queue(range(2))
    crowd.clock.advance(10)  # grants the second, which has not run yet
    crowd.tasks[1].cancel()
    await crowd.queue([2])
    await crowd.clock.run(60)

    assert [0.0, 10.0] == instants(crowd)


@pytest.mark.parametrize("change", ["set_rate", "charge", "refund", "apply"])
async def test_changing_the_limiter_does_not_end_the_feedback(change: str) -> None:
    """A change here does not fill the server's bucket."""
    crowd = crowd_of()
    crowd.limiter.observe(said(2, 10, 80))
    if change == "set_rate":
        crowd.limiter.set_rate("10000/s")
    elif change == "apply":
        crowd.limiter.apply("5000,1,start")
    elif change == "charge":
        crowd.limiter.charge(10)
    else:
        crowd.limiter.refund(10)
    await crowd.queue(range(4))
    await crowd.clock.run(60)

    assert [0.0, 0.0, 10.0, 20.0] == instants(crowd)


async def test_reset_forgets_the_feedback() -> None:
    """The way out when a server sends nonsense."""
    crowd = crowd_of()
    crowd.limiter.observe(said(0, 1, 86_400))
    await crowd.queue(range(3))

    crowd.limiter.reset()
    await crowd.clock.run(1)

    assert [0.0] * 3 == instants(crowd)


@pytest.mark.parametrize(("told_at", "due"), [(0, [25.0, 25.0, 30.0, 40.0]), (5, [25.0, 25.0, 35.0, 45.0])])
async def test_a_pause_does_not_stop_the_servers_bucket(told_at: int, due: list[float]) -> None:
    """It refills while the limiter is paused, whether the feedback came before or during the pause."""
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

    assert delays == due == instants(crowd)


async def test_feedback_during_a_pause_counts_from_its_arrival() -> None:
    """20 of the 25 s of the pause count, not those before the feedback."""
    clock = ManualClock()
    budget = Budget(tokens=TokenBucket("100/s", burst=1000), clock=clock)
    budget.pause(25)
    clock.advance(5)

    budget.observe(said(0, 10, 100, name="tokens"))

    assert [20.0, 20.0, 30.0] == [budget.delay(tokens=tokens) for tokens in (1, 2, 3)]


async def test_request_larger_than_the_bucket_goes_when_it_is_full() -> None:
    """The server may refuse it, but it must not wait for ever."""
    crowd = crowd_of()
    crowd.limiter.observe(said(5, 10, 5))

    assert crowd.limiter.delay(15) == 5.0
    crowd.ask("large", 15)
    await crowd.queue(["next"])
    await crowd.clock.run(30)

    assert [5.0, 11.0] == instants(crowd)


async def test_delay_and_max_wait_tell_the_truth() -> None:
    """They count the line in front of a bucket that refills."""
    crowd = crowd_of()
    crowd.limiter.observe(said(2, 10, 80))
    await crowd.queue(range(4))

    assert (30.0, 0) == (crowd.limiter.delay(), crowd.limiter.statistics().available)


async def test_delay_behind_a_long_line_tells_the_truth() -> None:
    """Of a long line that has just changed, only the sum of the permits counts."""
    crowd = crowd_of()
    crowd.limiter.observe(said(2, 10, 80))
    await crowd.queue(range(500))
    crowd.limiter.delay()

    for left in (2, 1):
        crowd.limiter.observe(said(left, 10, 10 * (10 - left)))
        assert 4990.0 == crowd.limiter.delay()


async def test_a_key_whose_server_is_full_again_is_evicted() -> None:
    """Feedback holds until the next, and a key must not be kept that long."""
    clock = ManualClock()
    keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("10/s", burst=100), clock=clock))
    keyed.observe("api", said(2, 10, 8))
    assert keyed.evict() == 0

    clock.advance(8)

    assert keyed.evict() == 1


async def test_tightest_quota_counts_for_a_single_dimension_of_tokens() -> None:
    """Anthropic tells of all tokens, and of input and output tokens alone, which are other amounts."""
    clock = ManualClock()
    budget = Budget(tokens=TokenBucket("1000/s", burst=100_000), clock=clock)
    quotas = tuple(
        Quota(name, limit, left, 30.0, full_at_reset=True, unit="tokens")
        for name, limit, left in (("tokens", 40_000, 30_000), ("input_tokens", 30_000, 25_000), ("output_tokens", 8_000, 7_000))
    )

    budget.observe(Feedback(200, quotas=quotas))

    assert budget.available("tokens") == 30_000


async def test_each_of_very_many_quota_names_counts() -> None:
    """A server that invents names raises no limit."""
    crowd = crowd_of()
    for number in range(1000):
        crowd.limiter.observe(Feedback(200, quotas=(Quota(f"{number}", 2000, 900 - number % 7, 60.0, full_at_reset=True),)))

    assert 894 == crowd.limiter.statistics().available
