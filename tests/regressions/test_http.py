"""HTTP: what counts as feedback, whom it pauses, and which clients are told apart."""

from __future__ import annotations

from time import process_time
from typing import Any

import aiohttp
import httpx2
import pytest
from helpers.driving import one_loop
from helpers.server import Server

from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket
from aiorate.aiohttp import middleware
from aiorate.http import Feedback, hooks, read_feedback
from aiorate.testing import ManualClock


def test_an_item_joins_the_one_policy_of_its_name() -> None:
    """RateLimit without a partition key became a quota without a limit, beside a policy without a remainder."""
    for policy, told, limits in [
        ('"10-in-1min";q=10;w=60;pk=:ODM2:', '"10-in-1min";r=4;t=30', [10]),  # express-rate-limit 8
        ('"a";q=10;w=60', '"a";r=4;t=30;pk=:ODM2:', [10]),
        ('"a";q=10;w=60;pk=:ODM2:', '"a";r=4;t=30;pk=:ODM2:', [10]),
        ('"a";q=10;w=60;pk=:ODM2:,"b";q=99;w=60;pk=:ODM2:', '"b";r=4;t=30', [99, 10]),
        ('"a";q=10;w=60;pk=:ODM2:,"a";q=99;w=60', '"a";r=4;t=30', [99, 10]),  # the one without a key, like the item
        ('"a";q=10;w=60;pk=:ODM2:,"a";q=99;w=60;pk=:ODM3:', '"a";r=4;t=30', [None, 10, 99]),  # could belong to either
        ('"a";q=10;w=60;pk=:ODM2:', '"a";r=4;t=30;pk=:ODM3:', [None, 10]),  # another partition
    ]:
        feedback = read_feedback(200, {"RateLimit-Policy": policy, "RateLimit": told})

        assert feedback is not None, (policy, told, limits)
        assert limits == [quota.limit for quota in feedback.quotas], (policy, told, limits)
        assert (4, 30.0) == (feedback.quotas[0].remaining, feedback.quotas[0].reset), (policy, told, limits)


@pytest.mark.slow
def test_repeated_headers_cost_linear_time() -> None:
    """Each was joined to all before it; 2 MB of them took 71 s."""
    few, many = [("Retry-After", "1")] * 20_000, [("Retry-After", "1")] * 160_000

    def seconds(headers: Any) -> float:
        begun = process_time()
        assert read_feedback(429, headers) is not None
        return process_time() - begun

    ratio = min(seconds(many) for _ in range(3)) / min(seconds(few) for _ in range(3))

    assert ratio < 24  # 8 times as many; squared, 64


def test_a_retry_after_still_wins_over_the_reset() -> None:
    """RateLimit must not prolong what Retry-After says, in a limiter or a budget; 0 is less than a second."""
    for after, delay in [(0, 1), (5, 5)]:
        clock = ManualClock()
        feedback = read_feedback(429, {"Retry-After": str(after), "RateLimit": '"minute";r=0;t=60'})
        limiter, budget = Limiter(TokenBucket("10/s", burst=10), clock=clock), Budget(requests=TokenBucket("10/s", burst=10), clock=clock)

        limiter.observe(feedback)
        budget.observe(feedback)

        assert (delay, delay) == (limiter.delay(), budget.delay()), after


def openai(kind: str, limit: int, left: int, reset: str | None) -> Feedback | None:
    """OpenAI's headers for one bucket."""
    told = {f"x-ratelimit-limit-{kind}": f"{limit}", f"x-ratelimit-remaining-{kind}": f"{left}"}
    return read_feedback(200, told if reset is None else {**told, f"x-ratelimit-reset-{kind}": reset})


def test_a_bucket_that_is_full_again_holds_nobody() -> None:
    """After "0 of 10, full in an hour", "1000 of 1000" was ignored, and five requests were due 23 minutes later."""
    for reset in ["0s", "1ms", None]:
        clock = ManualClock()
        limiter = Limiter(TokenBucket("1000/s", burst=1000), clock=clock)
        limiter.observe(openai("requests", 10, 0, "1h"))
        clock.advance(400)
        assert limiter.delay(5) > 1000, reset

        limiter.observe(openai("requests", 1000, 1000, reset))

        assert (1000, 0.0) == (limiter.statistics().available, limiter.delay(1000)), reset


async def ask(kind: str, keyed: KeyedLimiter[str], url: str) -> None:
    if kind == "middleware":
        async with aiohttp.ClientSession(middlewares=[middleware(keyed)]) as session, session.get(url):
            return
    async with httpx2.AsyncClient(event_hooks=hooks(keyed)) as client:
        await client.get(url)


@one_loop
@pytest.mark.parametrize("kind", ["hooks", "middleware"])
async def test_a_server_that_says_global_pauses_itself_alone(kind: str) -> None:
    """One response of one host, with Discord's header, stopped a crawl of all hosts for a day."""
    keyed = KeyedLimiter[str](lambda origin: TokenBucket("10/s", burst=10), shared=TokenBucket("50/s", burst=50))
    async with Server() as hostile:
        hostile.answers((429, {"Retry-After": "86400", "X-RateLimit-Global": "true"}))
        await ask(kind, keyed, hostile.url)

        assert keyed.shared is not None
        assert keyed[hostile.url].delay() > 86_000
        assert (0.0, 0.0) == (keyed["http://other:80"].delay(), keyed.shared.delay())
