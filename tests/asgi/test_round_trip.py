"""What the middleware writes is what a client reads: `read_feedback`, and any parser of structured fields."""

from __future__ import annotations

from random import Random
from typing import Any

import http_sf
import pytest
from helpers.asgi import Answer, ask, ok

from aiorate import AllOf, CalendarWindow, Limiter, Rate, Scheduler, SlidingWindow, TokenBucket
from aiorate.asgi import RateLimitMiddleware
from aiorate.http import Quota
from aiorate.http._feedback import LONGEST
from aiorate.testing import ManualClock

SECOND = 1_000_000_000
NAMES = [
    *(None, "api", "per client", 'a "quoted" \\ name', 'x, limit=3, remaining=0, reset=9"; q=1', "5;w=9, 7;w=3"),
    *("naïve ☃", "\n\x00\ud800", "%"),
]


def seconds_of(ns: int) -> int:
    """Rounded up, at least 1."""
    return max(1, -(-ns // SECOND))


def random_limit(random: Random) -> tuple[Scheduler, int, int]:
    """A strategy, and the ``q`` and ``w`` that it should have."""
    most, period = random.choice([1, 2, 10, 999, 10**6]), random.choice([1, 7, 60, 3_600, 86_400])
    match random.randrange(3):
        case 0:
            return SlidingWindow(Rate(most, period)), most, period
        case 1:
            return CalendarWindow(f"{most}/min", "UTC", origin=0), most, 60
        case _:
            rate, burst = Rate(random.randint(1, 5_000), period), random.randint(1, 5_000)
            return TokenBucket(rate, burst), burst, seconds_of(burst * rate.period_ns // rate.permits)


@pytest.mark.asyncio
async def test_random_policies_are_read_back_equal() -> None:
    """Of limiters of one limit and of several, with names of all kinds, as they stand after some requests."""
    for seed in range(200):
        await check_random_policies(Random(seed))


async def check_random_policies(random: Random) -> None:
    limits = [random_limit(random) for _ in range(random.choice([1, 1, 1, 2, 3]))]
    clock = ManualClock()
    name = random.choice(NAMES)
    schedulers = [scheduler for scheduler, _, _ in limits]
    limiter = Limiter(schedulers[0] if len(limits) == 1 else AllOf(*schedulers), name=name, clock=clock)
    app = RateLimitMiddleware(ok, limiter)

    answer = await ask(app)
    for _ in range(random.randint(0, 3)):
        clock.advance(random.choice([0, 0, 0.1, 1, 100]))
        answer = await ask(app)
    left = [(scheduler.available(clock.now()), scheduler) for scheduler in schedulers]

    expected = []
    for (_, most, window), (remaining, scheduler) in zip(limits, left, strict=True):
        more_at = window * SECOND if remaining == most else scheduler.peek(remaining + 1, clock.now()) - clock.now()
        reset = min(float(seconds_of(more_at)), LONGEST)
        expected.append((most, remaining, reset, float(window) if window <= LONGEST else None, "requests"))
    check_read_back(answer, expected)


def check_read_back(answer: Answer, expected: list[tuple[Any, ...]]) -> None:
    feedback = answer.feedback
    assert feedback is not None
    assert expected == [(quota.limit, quota.remaining, quota.reset, quota.window, quota.unit) for quota in feedback.quotas]
    for header, parameters in (("ratelimit-policy", ("q", "w")), ("ratelimit", ("r", "t"))):
        items: Any = http_sf.parse(answer.headers[header].encode(), tltype="list")
        assert answer.headers[header] == http_sf.ser(items)
        assert [quota.name for quota in feedback.quotas] == [name for name, _ in items]
        assert [parameters] * len(expected) == [tuple(given) for _, given in items]


@pytest.mark.asyncio
async def test_name_of_a_policy_is_that_of_the_limiter() -> None:
    for name, shown in (
        ("api", "api"),
        ('say "x"', "say %22x%22"),
        ("naïve ☃", "na%C3%AFve %E2%98%83"),
        ("a\nb", "a%0Ab"),
        ("\\", "%5C"),
        (None, "default"),
        ("x" * 99, "x" * 64),
    ):
        answer = await ask(RateLimitMiddleware(ok, Limiter(TokenBucket("1/min", 2), name=name, clock=ManualClock())))
        assert answer.feedback is not None
        assert (Quota(shown, 2, 1, 60.0, 120.0),) == answer.feedback.quotas


@pytest.mark.asyncio
async def test_policy_of_months_is_that_of_the_longest() -> None:
    """So a client that divides q by w is never too fast. What is longer than a day is not read back as a window."""
    for rate, days in (("1000/month", 31), ("1000/3months", 92), ("1000/year", 366)):
        window = CalendarWindow(rate, "UTC", origin=1_706_745_600 * SECOND)  # the first of February of a leap year
        answer = await ask(RateLimitMiddleware(ok, Limiter(window, clock=ManualClock())))

        assert answer.headers["ratelimit-policy"] == f'"default";q=1000;w={days * 86_400}'
        assert answer.feedback is not None
        assert (Quota("default", 1000, 999, LONGEST, None),) == answer.feedback.quotas
