"""HTTP: what counts as feedback, whom it pauses, and which clients are told apart."""

from __future__ import annotations

import asyncio
from time import process_time
from typing import Any

import aiohttp
import httpx2
import pytest
from helpers.driving import one_loop, until
from helpers.server import Server

from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket
from aiorate.aiohttp import middleware
from aiorate.http import Feedback, hooks, limit_transport, read_feedback
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
    """RateLimit must not prolong what Retry-After says, in a limiter or a budget."""
    for after in [0, 5]:
        clock = ManualClock()
        feedback = read_feedback(429, {"Retry-After": str(after), "RateLimit": '"minute";r=0;t=60'})
        limiter, budget = Limiter(TokenBucket("10/s", burst=10), clock=clock), Budget(requests=TokenBucket("10/s", burst=10), clock=clock)

        limiter.observe(feedback)
        budget.observe(feedback)

        assert (after, after) == (limiter.delay(), budget.delay()), after


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


@one_loop
async def test_pause_is_not_ended_by_other_responses() -> None:
    """python-telegram-bot/python-telegram-bot#5338: somebody else's success ended the pause early.

    Ten requests are on their way. The first returns 429, one a shorter wait, and the others a normal answer.
    """
    clock = ManualClock()
    limiter = Limiter(TokenBucket("10/s", burst=20), clock=clock)
    release = [asyncio.Event() for _ in range(10)]
    answers: list[tuple[int, dict[str, str]]] = [(429, {"Retry-After": "5"}), (429, {"Retry-After": "1"})]
    answers += [(200, {"X-RateLimit-Remaining": "50", "X-RateLimit-Reset": "1"})] * 7 + [(503, {"Retry-After": "0"})]

    async def answer(request: httpx2.Request) -> httpx2.Response:
        number = int(request.url.path[1:])
        await release[number].wait()
        return httpx2.Response(answers[number][0], headers=answers[number][1])

    transport = limit_transport(httpx2.MockTransport(answer), limiter)
    async with httpx2.AsyncClient(transport=transport, base_url="http://example.com") as client:
        requests = [asyncio.create_task(client.get(f"/{number}")) for number in range(10)]
        await until(lambda: limiter.statistics().granted == 10)
        for number in range(10):
            release[number].set()
            await requests[number]
            assert limiter.statistics().paused_until == 5.0
            clock.advance(0.25)

    assert not limiter.try_acquire()


UNREADABLE = ["soon", "-1", "\u0663", "Fri, 99 Foo 9999 99:99:99 GMT", "\ud800", "", ",", "0x10", "1_0", "nan", "9" * 5000]


@one_loop
@pytest.mark.parametrize("value", UNREADABLE, ids=lambda value: ascii(value[:10]))
async def test_unreadable_retry_after_breaks_no_request(value: str) -> None:
    """sdebruyn/fabric-dw-mcp-cli#238: the client crashed. On a success it means nothing; a 429 without a time pauses for a second."""
    limiter = Limiter(TokenBucket("10/s", burst=10), clock=ManualClock())
    statuses = iter((200, 429))

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(next(statuses), headers=[(b"Retry-After", value.encode("utf-8", "surrogatepass"))])

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), event_hooks=hooks(limiter)) as client:
        for paused_until in (None, 1.0):
            await client.get("http://example.com/")
            assert paused_until == limiter.statistics().paused_until
