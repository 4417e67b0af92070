"""Every public argument that is a duration takes seconds or a timedelta, and refuses anything else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import httpx2

from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, Rate, SmoothBursty, SmoothWarmingUp, TokenBucket, TokenPool
from aiorate.adaptive import AdaptiveRate
from aiorate.aiohttp import middleware
from aiorate.http import Feedback, Quota, blocking_hooks, hooks, limit_transport
from aiorate.redis import RedisBudget, RedisLimiter
from aiorate.testing import ManualClock, VirtualLoop

URL = "redis://127.0.0.1:1"  # nothing is asked of it
OF_STORES = ("grace", "horizon", "lease", "slack")
PAUSED = Feedback(429, pause=1)


def virtual(call: Callable[[], Any]) -> Any:
    """Awaits what the call returns, in virtual time."""

    async def main() -> Any:
        return await call()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def refusal(call: Callable[[Any], object], value: Any) -> Exception | None:
    try:
        call(value)
    except (TypeError, ValueError) as error:
        return error
    return None


def limiter(scope: Any = "loop") -> Limiter:
    return Limiter("10/s", scope="process") if scope == "process" else Limiter("10/s", clock=ManualClock())


def budget() -> Budget:
    return Budget(n="10/s", clock=ManualClock())


def keyed(scope: Any = "loop") -> KeyedLimiter[str]:
    return KeyedLimiter[str](lambda key: "10/s", scope=scope)


def keyed_budget() -> KeyedBudget[str]:
    return KeyedBudget[str](lambda key: budget())


def adaptive() -> AdaptiveRate:
    return AdaptiveRate(limiter(), "1/s", "100/s")


def quota(**fields: Any) -> Feedback:
    return Feedback(200, quotas=(Quota(**fields),))


CALLS: dict[str, Callable[[Any], Any]] = {
    "Limiter(catch_up)": lambda d: Limiter("1/s", catch_up=d),
    "Limiter.acquire(max_wait)": lambda d: virtual(lambda: Limiter("1/s").acquire(max_wait=d)),
    "Limiter.acquire_blocking(max_wait)": lambda d: limiter("process").acquire_blocking(max_wait=d),
    "Limiter.bound(seconds)": lambda d: limiter().bound(d),
    "Limiter.observe(jitter)": lambda d: limiter().observe(PAUSED, jitter=d),
    "Limiter.pause(seconds)": lambda d: limiter().pause(d),
    "Budget(catch_up)": lambda d: Budget(n="1/s", catch_up=d),
    "Budget.observe(jitter)": lambda d: budget().observe(PAUSED, jitter=d),
    "Budget.pause(seconds)": lambda d: budget().pause(d),
    "Budget.reserve(max_wait)": lambda d: budget().reserve(n=1, max_wait=d),
    "KeyedBudget(idle)": lambda d: KeyedBudget[str](lambda key: budget(), idle=d),
    "KeyedBudget.observe(jitter)": lambda d: keyed_budget().observe("a", PAUSED, jitter=d),
    "KeyedBudget.reserve(max_wait)": lambda d: keyed_budget().reserve("a", n=1, max_wait=d),
    "KeyedLimiter(idle)": lambda d: KeyedLimiter[str](lambda key: "1/s", idle=d),
    "KeyedLimiter.acquire(max_wait)": lambda d: virtual(lambda: keyed().acquire("a", max_wait=d)),
    "KeyedLimiter.acquire_blocking(max_wait)": lambda d: keyed("process").acquire_blocking("a", max_wait=d),
    "KeyedLimiter.observe(jitter)": lambda d: keyed().observe("a", PAUSED, jitter=d),
    "Feedback(pause)": lambda d: limiter().observe(Feedback(429, pause=d)),
    "Quota(reset)": lambda d: limiter().observe(quota(remaining=5, reset=d)),
    "Quota(reset_error)": lambda d: limiter().observe(quota(remaining=5, reset=5.0, reset_error=d)),
    "Quota(window)": lambda d: limiter().observe(quota(limit=5, window=d)),
    "Rate(per)": lambda d: Rate(1, per=d),
    "SmoothBursty(max_burst)": lambda d: SmoothBursty("1/s", max_burst=d),
    "SmoothWarmingUp(warmup)": lambda d: SmoothWarmingUp("1/s", warmup=d),
    "AdaptiveRate.succeeded(took)": lambda d: adaptive().succeeded(took=d),
    "AdaptiveRate.throttled(retry_after)": lambda d: adaptive().throttled(d),
    "AdaptiveRate.throttled(took)": lambda d: adaptive().throttled(took=d),
    "ManualClock.advance(seconds)": lambda d: ManualClock().advance(d),
    "ManualClock.run(seconds)": lambda d: virtual(lambda: ManualClock().run(d)),
    **{f"RedisBudget({name})": lambda d, name=name: RedisBudget(URL, "a", n="1/s", **{name: d}) for name in OF_STORES},
    **{f"RedisLimiter({name})": lambda d, name=name: RedisLimiter(URL, "a", "1/s", **{name: d}) for name in OF_STORES},
    "RedisLimiter.bound(seconds)": lambda d: RedisLimiter(URL, "a", "1/s").bound(d),
    "blocking_hooks(max_wait)": lambda d: blocking_hooks(limiter("process"), max_wait=d),
    "hooks(max_wait)": lambda d: hooks(limiter(), max_wait=d),
    "limit_transport(max_wait)": lambda d: limit_transport(httpx2.AsyncHTTPTransport(verify=False), limiter(), max_wait=d),
    "middleware(max_wait)": lambda d: middleware(limiter(), max_wait=d),
}
"""Each of them with a call that has all else that it needs."""

# A check that came after the question to the store would be EngineUnavailable.
ASKS_A_STORE: dict[str, Callable[[Any], Any]] = {
    "RedisLimiter.acquire(max_wait)": lambda d: virtual(lambda: RedisLimiter(URL, "a", "1/s").acquire(max_wait=d)),
    "RedisLimiter.acquire_blocking(max_wait)": lambda d: RedisLimiter(URL, "a", "1/s", scope="process").acquire_blocking(max_wait=d),
}

GOOD = [1, 1.0, Fraction(1), Decimal("1"), timedelta(seconds=1)]
BAD = [
    (float("nan"), ValueError, "finite number"),
    (float("inf"), ValueError, "finite number"),
    (-1, ValueError, "must be (0|greater|more)"),
    (timedelta(seconds=-1), ValueError, "must be (0|greater|more)"),
    (10**400, ValueError, "1e400"),
    (True, TypeError, "timedelta.*, not bool"),
    ("1s", TypeError, "a timedelta.*(, not str|not the text)"),
    ([1], TypeError, "timedelta.*, not list"),
]


def test_a_duration_is_a_number_of_seconds_or_a_timedelta() -> None:
    for call in CALLS.values():
        for value in GOOD:
            call(value)


def test_what_is_not_a_duration_is_refused() -> None:
    for name, call in {**CALLS, **ASKS_A_STORE}.items():
        for value, error, words in BAD:
            refused = refusal(call, value)
            assert type(refused) is error, (name, value)
            assert re.search(words, str(refused)), (name, value)


def test_seconds_and_timedelta_mean_the_same() -> None:
    half = timedelta(milliseconds=500)
    for d in (0.5, half):
        limited, clock = limiter(), ManualClock()
        limited.pause(d)
        clock.advance(d)

        assert Limiter(TokenBucket("10/s", burst=1), catch_up=d).bound(d) == 11
        assert (limited.delay(), clock.now()) == (0.5, 500_000_000)
        assert SmoothBursty("10/s", max_burst=d).bound(10**9) == SmoothBursty("10/s", max_stored=5).bound(10**9)
    assert TokenPool("1/s", pool=timedelta(milliseconds=5)).max_active == TokenPool("1/s", pool=5_000_000).max_active
