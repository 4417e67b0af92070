"""Feedback from servers: an empty quota, a bucket that is full again, a global limit, and what is not feedback."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import httpx2
import pytest
from helpers.driving import SECOND, Crowd, one_loop
from helpers.server import Server

from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket
from aiorate.aiohttp import middleware
from aiorate.http import Feedback, Quota, hooks, limit_transport, read_feedback
from aiorate.testing import ManualClock


def crowd_of(limiter: Any = None, **options: Any) -> Crowd:
    clock = ManualClock()
    return Crowd(Limiter(TokenBucket("100/s", burst=1000) if limiter is None else limiter, clock=clock, **options), clock)


def instants(crowd: Crowd) -> list[float]:
    return [at / SECOND for at in crowd.granted.values()]


@one_loop
@pytest.mark.parametrize("kind", ["limiter", "budget", "key"])
async def test_nothing_left_is_nothing_until_the_reset(kind: str) -> None:
    """A Feedback made by the user counted with 1 left, and was ignored with none."""
    clock = ManualClock()
    feedback = Feedback(200, quotas=(Quota(remaining=0, reset=30.0),))
    if kind == "limiter":
        limiter = Limiter(TokenBucket("10/s", burst=10), clock=clock)
        limiter.observe(feedback)
        assert limiter.delay() == 30.0
    elif kind == "key":
        keyed = KeyedLimiter(lambda key: Limiter(TokenBucket("10/s", burst=10), clock=clock))
        keyed.observe("a", feedback)
        assert (keyed["a"].delay(), keyed["b"].delay()) == (30.0, 0.0)
    else:
        budget = Budget(requests=TokenBucket("10/s", burst=10), clock=clock)
        budget.observe(feedback)
        assert budget.delay() == 30.0


@one_loop
@pytest.mark.parametrize("after", [0, 5])
async def test_a_retry_after_still_wins_over_the_reset(after: int) -> None:
    """RateLimit must not prolong what Retry-After says, in a limiter or a budget."""
    clock = ManualClock()
    feedback = read_feedback(429, {"Retry-After": str(after), "RateLimit": '"minute";r=0;t=60'})
    limiter, budget = Limiter(TokenBucket("10/s", burst=10), clock=clock), Budget(requests=TokenBucket("10/s", burst=10), clock=clock)

    limiter.observe(feedback)
    budget.observe(feedback)

    assert (after, after) == (limiter.delay(), budget.delay())


@one_loop
async def test_everybody_in_line_waits_for_the_reset() -> None:
    """Waiters wait too, not only newcomers."""
    crowd = crowd_of(TokenBucket("1/s", burst=1))
    await crowd.queue(range(3))

    crowd.limiter.observe(Feedback(200, quotas=(Quota(remaining=0, reset=30.0),)))
    await crowd.clock.run(60)
    await asyncio.sleep(0)

    assert [0.0, 30.0, 31.0] == instants(crowd)


def test_shorter_retry_after_wins_over_the_reset() -> None:
    """draft-ietf-httpapi-ratelimit-headers-11, section 7: nothing is left for 30 s, and the server says to come in 5 s."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("10/s", burst=10), clock=clock)

    limiter.observe(read_feedback(429, {"Retry-After": "5", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}))

    assert limiter.delay() == 5
    clock.advance(5)
    assert limiter.delay(10) == 0


@pytest.mark.parametrize("quota", [Quota(reset=30), Quota(remaining=0), Quota(limit=10, remaining=5), Quota(remaining=0, reset=0)])
def test_incomplete_quota_holds_nobody(quota: Quota) -> None:
    """A remainder without a reset, or a reset without a remainder, says nothing."""
    limiter = Limiter(TokenBucket("10/s", burst=10), clock=ManualClock())

    limiter.observe(Feedback(200, quotas=(quota,)))

    assert limiter.delay(10) == 0


def openai(kind: str, limit: int, left: int, reset: str | None) -> Feedback | None:
    """OpenAI's headers for one bucket."""
    told = {f"x-ratelimit-limit-{kind}": f"{limit}", f"x-ratelimit-remaining-{kind}": f"{left}"}
    return read_feedback(200, told if reset is None else {**told, f"x-ratelimit-reset-{kind}": reset})


@one_loop
@pytest.mark.parametrize("reset", ["0s", "1ms", None])
async def test_a_bucket_that_is_full_again_holds_nobody(reset: str | None) -> None:
    """After "0 of 10, full in an hour", "1000 of 1000" was ignored, and five requests were due 23 minutes later."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("1000/s", burst=1000), clock=clock)
    limiter.observe(openai("requests", 10, 0, "1h"))
    clock.advance(400)
    assert limiter.delay(5) > 1000

    limiter.observe(openai("requests", 1000, 1000, reset))

    assert (1000, 0.0) == (limiter.statistics().available, limiter.delay(1000))


@one_loop
async def test_full_but_smaller_bucket_grants_only_its_size() -> None:
    """5 of 5 remain, so at most 5 are granted."""
    clock = ManualClock()
    budget = Budget(tokens=TokenBucket("1000/s", burst=1000), clock=clock)
    budget.observe(openai("tokens", 100, 90, "6s"))
    clock.advance(10)

    budget.observe(openai("tokens", 5, 5, "0s"))

    assert budget.available("tokens") == 5


@one_loop
async def test_waiters_go_when_the_bucket_is_full_again() -> None:
    """No new request comes, so the feedback itself has to wake them."""
    clock = ManualClock()
    crowd = Crowd(Limiter(TokenBucket("1000/s", burst=1000), clock=clock), clock)
    crowd.limiter.observe(openai("requests", 10, 1, "54m"))
    clock.advance(400)
    await crowd.queue(range(9))
    assert len(crowd.granted) == 2

    crowd.limiter.observe(openai("requests", 10, 10, "0s"))
    await crowd.queue("a")

    assert len(crowd.granted) == 10


@one_loop
@pytest.mark.parametrize("wrong", [{"name": []}, {"name": 5}, {"name": None}, {"unit": b"requests"}, {"unit": []}])
async def test_quota_with_a_wrong_name_changes_nothing(wrong: dict[str, Any]) -> None:
    """A budget was paused first, and then raised "unhashable type"."""
    feedback = Feedback(429, 3.0, (Quota(remaining=1, reset=3.0), Quota(**wrong)))
    budget = Budget(requests="5/s")
    limiter = Limiter("5/s")
    keyed = KeyedLimiter[str](lambda key: "5/s")

    for observe in (budget.observe, limiter.observe, lambda told: keyed.observe("key", told)):
        with pytest.raises(TypeError, match=r"observe\(\): the name and the unit of a quota must be text, not "):
            observe(feedback)

    assert (0, 0, 0) == (budget.delay(), limiter.delay(), keyed["key"].delay())


@one_loop
@pytest.mark.parametrize("quotas", [Quota(remaining=1), [{"remaining": 1}], 5, None])
async def test_wrong_quotas_are_answered_by_how_to_write_them(quotas: Any) -> None:
    """The error said that a Feedback is wanted, for an argument that was one."""
    with pytest.raises(TypeError, match=r"quotas=\(Quota\(remaining=5, reset=30\),\)"):
        Limiter("5/s").observe(Feedback(429, 3.0, quotas))


@one_loop
@pytest.mark.parametrize("status", ["429", 429.0, None, {"Retry-After": "3"}])
async def test_status_must_be_an_int(status: Any) -> None:
    """With the text "429", the pause that the server asks for was ignored."""
    with pytest.raises(TypeError, match=r"read_feedback\(status, headers\): the status must be an int such as 429, not "):
        read_feedback(status, {"Retry-After": "3"})


class BodyIterator:
    """Like a response of requests, which iterates over its body."""

    def __iter__(self) -> Any:
        return iter([b"body"])


@one_loop
@pytest.mark.parametrize("headers", [None, 429, "Retry-After: 3", ["Retry-After"], [1, 2], BodyIterator(), object()])
async def test_wrong_headers_are_answered_by_how_to_pass_them(headers: Any) -> None:
    """Python's own message is "not enough values to unpack"."""
    with pytest.raises(TypeError, match=r"read_feedback\(status, headers\) takes response\.headers, "):
        read_feedback(429, headers)


async def ask(kind: str, keyed: KeyedLimiter[str], url: str, key: Any = None) -> None:
    if kind == "middleware":
        async with aiohttp.ClientSession(middlewares=[middleware(keyed, key=key)]) as session, session.get(url):
            return
    options: Any = {"event_hooks": hooks(keyed, key=key)} if kind == "hooks" else {}
    if kind == "transport":
        options = {"transport": limit_transport(httpx2.AsyncHTTPTransport(), keyed, key=key)}
    async with httpx2.AsyncClient(**options) as client:
        await client.get(url)


@one_loop
@pytest.mark.parametrize("kind", ["hooks", "transport", "middleware"])
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
@pytest.mark.parametrize("kind", ["hooks", "transport", "middleware"])
async def test_custom_keys_still_share_a_global_limit(kind: str) -> None:
    """With a key for each route, all belong to the one server that says so."""
    keyed = KeyedLimiter[str](lambda route: TokenBucket("10/s", burst=10), shared=TokenBucket("50/s", burst=50))
    async with Server() as discord:
        discord.answers((429, {"Retry-After": "5", "X-RateLimit-Global": "true"}))
        await ask(kind, keyed, discord.url, key=lambda request: request.url.path)

    assert keyed["another route"].delay() > 4
