"""Defects found by the second attack: number 14, and messages. What a server says later, and what is no feedback at all."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.driving import Crowd, one_loop

from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket
from aiorate.http import Feedback, Quota, read_feedback
from aiorate.testing import ManualClock

pytestmark = one_loop


def openai(kind: str, limit: int, left: int, reset: str | None) -> Feedback | None:
    told = {f"x-ratelimit-limit-{kind}": f"{limit}", f"x-ratelimit-remaining-{kind}": f"{left}"}
    return read_feedback(200, told if reset is None else {**told, f"x-ratelimit-reset-{kind}": reset})


@pytest.mark.parametrize("reset", ["0s", "1ms", None])
async def test_a_bucket_that_is_full_again_holds_nobody(reset: str | None) -> None:
    """Number 14: after "0 of 10, full in an hour", "1000 of 1000" was ignored, and five requests were due 23 minutes later."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("1000/s", burst=1000), clock=clock)
    limiter.observe(openai("requests", 10, 0, "1h"))
    clock.advance(400)
    assert limiter.delay(5) > 1000

    limiter.observe(openai("requests", 1000, 1000, reset))

    assert (1000, 0.0) == (limiter.statistics().available, limiter.delay(1000))


async def test_a_bucket_that_is_full_and_smaller_lets_no_more_go() -> None:
    """Number 14: no more than what remains is granted, and 5 of 5 remain."""
    clock = ManualClock()
    budget = Budget(tokens=TokenBucket("1000/s", burst=1000), clock=clock)
    budget.observe(openai("tokens", 100, 90, "6s"))
    clock.advance(10)

    budget.observe(openai("tokens", 5, 5, "0s"))

    assert budget.available("tokens") == 5


async def test_those_in_line_go_when_the_bucket_is_full_again() -> None:
    """Number 14: nobody asks again, so the word itself lets them go."""
    clock = ManualClock()
    crowd = Crowd(Limiter(TokenBucket("1000/s", burst=1000), clock=clock), clock)
    crowd.limiter.observe(openai("requests", 10, 1, "54m"))
    clock.advance(400)
    await crowd.queue(range(9))
    assert len(crowd.granted) == 2

    crowd.limiter.observe(openai("requests", 10, 10, "0s"))
    await crowd.queue("a")

    assert len(crowd.granted) == 10


@pytest.mark.parametrize("wrong", [{"name": []}, {"name": 5}, {"name": None}, {"unit": b"requests"}, {"unit": []}])
async def test_a_quota_whose_name_is_no_text_changes_nothing(wrong: dict[str, Any]) -> None:
    """Messages: a budget was paused, and then raised "unhashable type"."""
    feedback = Feedback(429, 3.0, (Quota(remaining=1, reset=3.0), Quota(**wrong)))
    budget = Budget(requests="5/s")
    limiter = Limiter("5/s")
    keyed = KeyedLimiter[str](lambda key: "5/s")

    for observe in (budget.observe, limiter.observe, lambda told: keyed.observe("key", told)):
        with pytest.raises(TypeError, match=r"observe\(\): the name and the unit of a quota must be text, not "):
            observe(feedback)

    assert (0, 0, 0) == (budget.delay(), limiter.delay(), keyed["key"].delay())


@pytest.mark.parametrize("quotas", [Quota(remaining=1), [{"remaining": 1}], 5, None])
async def test_quotas_that_are_none_say_how_they_are_written(quotas: Any) -> None:
    """Messages: it said that a Feedback is wanted, and no Feedback."""
    with pytest.raises(TypeError, match=r"quotas=\(Quota\(remaining=5, reset=30\),\)"):
        Limiter("5/s").observe(Feedback(429, 3.0, quotas))


@pytest.mark.parametrize("status", ["429", 429.0, None, {"Retry-After": "3"}])
async def test_a_status_that_is_no_number_is_refused(status: Any) -> None:
    """Messages: with the text "429", the pause that the server asks for was read as none."""
    with pytest.raises(TypeError, match=r"read_feedback\(status, headers\): the status must be an int such as 429, not "):
        read_feedback(status, {"Retry-After": "3"})


class _Response:
    """As those of requests, whose parts are their body's."""

    def __iter__(self) -> Any:
        return iter([b"body"])


@pytest.mark.parametrize("headers", [None, 429, "Retry-After: 3", ["Retry-After"], [1, 2], _Response(), object()])
async def test_what_are_no_headers_is_told_what_they_are(headers: Any) -> None:
    """Messages: Python's own words are "not enough values to unpack"."""
    with pytest.raises(TypeError, match=r"read_feedback\(status, headers\) takes response\.headers, "):
        read_feedback(429, headers)
