"""Every public argument that is a duration takes seconds or a timedelta, and refuses all else with the same words.

The signatures say which arguments these are, so that a new one cannot be left out of the table.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import httpx2
import pytest

from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, Rate, SmoothBursty, SmoothWarmingUp, TokenBucket, TokenPool, WaitTooLong
from aiorate.adaptive import AdaptiveRate
from aiorate.aiohttp import middleware
from aiorate.http import Feedback, Quota, blocking_hooks, hooks, limit_transport
from aiorate.redis import RedisBudget, RedisLimiter
from aiorate.testing import ManualClock, VirtualLoop

MODULES = (
    "aiorate",
    "aiorate.http",
    "aiorate.aiohttp",
    "aiorate.asgi",
    "aiorate.adaptive",
    "aiorate.redis",
    "aiorate.otel",
    "aiorate.testing",
)
URL = "redis://127.0.0.1:1"  # nothing is asked of it


def virtual(call: Callable[[], Any]) -> Any:
    """Awaits what the call returns, in virtual time."""

    async def main() -> Any:
        return await call()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def limiter() -> Limiter:
    return Limiter("10/s", clock=ManualClock())


def shared() -> Limiter:
    return Limiter("10/s", scope="process")


def budget() -> Budget:
    return Budget(n="10/s", clock=ManualClock())


def keyed() -> KeyedLimiter[str]:
    return KeyedLimiter[str](lambda key: "10/s", shared=limiter())


def adaptive() -> AdaptiveRate:
    return AdaptiveRate(limiter(), "1/s", "100/s")


PAUSED = Feedback(429, pause=1)

OF_EACH: dict[str, Callable[[Any], Any]] = {
    "Budget(catch_up)": lambda d: Budget(n="1/s", catch_up=d),
    "Budget.observe(jitter)": lambda d: budget().observe(PAUSED, jitter=d),
    "Budget.pause(seconds)": lambda d: budget().pause(d),
    "Budget.reserve(max_wait)": lambda d: budget().reserve(n=1, max_wait=d),
    "Feedback(pause)": lambda d: limiter().observe(Feedback(429, pause=d)),
    "Feedback(retry_after)": lambda d: Feedback(429, retry_after=d),
    "KeyedBudget(idle)": lambda d: KeyedBudget[str](lambda key: Budget(n="1/s"), idle=d),
    "KeyedBudget.observe(jitter)": lambda d: KeyedBudget[str](lambda key: budget()).observe("a", PAUSED, jitter=d),
    "KeyedBudget.reserve(max_wait)": lambda d: KeyedBudget[str](lambda key: budget()).reserve("a", n=1, max_wait=d),
    "KeyedLimiter(idle)": lambda d: KeyedLimiter[str](lambda key: "1/s", idle=d),
    "KeyedLimiter.acquire(max_wait)": lambda d: virtual(lambda: keyed().acquire("a", max_wait=d)),
    "KeyedLimiter.acquire_blocking(max_wait)": lambda d: KeyedLimiter[str](lambda key: "1/s", scope="process").acquire_blocking(
        "a", max_wait=d
    ),
    "KeyedLimiter.observe(jitter)": lambda d: keyed().observe("a", PAUSED, jitter=d),
    "Limiter(catch_up)": lambda d: Limiter("1/s", catch_up=d),
    "Limiter.acquire(max_wait)": lambda d: virtual(lambda: Limiter("1/s").acquire(max_wait=d)),
    "Limiter.acquire_blocking(max_wait)": lambda d: shared().acquire_blocking(max_wait=d),
    "Limiter.bound(seconds)": lambda d: limiter().bound(d),
    "Limiter.observe(jitter)": lambda d: limiter().observe(PAUSED, jitter=d),
    "Limiter.pause(seconds)": lambda d: limiter().pause(d),
    "Quota(reset)": lambda d: limiter().observe(Feedback(200, quotas=(Quota(remaining=5, reset=d),))),
    "Quota(reset_error)": lambda d: limiter().observe(Feedback(200, quotas=(Quota(remaining=5, reset=5.0, reset_error=d),))),
    "Quota(window)": lambda d: limiter().observe(Feedback(200, quotas=(Quota(limit=5, window=d),))),
    "Rate(per)": lambda d: Rate(1, per=d),
    "SmoothBursty(max_burst)": lambda d: SmoothBursty("1/s", max_burst=d),
    "SmoothWarmingUp(warmup)": lambda d: SmoothWarmingUp("1/s", warmup=d),
    "AdaptiveRate.succeeded(took)": lambda d: adaptive().succeeded(took=d),
    "AdaptiveRate.throttled(retry_after)": lambda d: adaptive().throttled(d),
    "AdaptiveRate.throttled(took)": lambda d: adaptive().throttled(took=d),
    "ManualClock.advance(seconds)": lambda d: ManualClock().advance(d),
    "ManualClock.run(seconds)": lambda d: virtual(lambda: ManualClock().run(d)),
    "RedisBudget(grace)": lambda d: RedisBudget(URL, "a", n="1/s", grace=d),
    "RedisBudget(horizon)": lambda d: RedisBudget(URL, "a", n="1/s", horizon=d),
    "RedisBudget(lease)": lambda d: RedisBudget(URL, "a", n="1/s", lease=d),
    "RedisBudget(slack)": lambda d: RedisBudget(URL, "a", n="1/s", slack=d),
    "RedisLimiter(grace)": lambda d: RedisLimiter(URL, "a", "1/s", grace=d),
    "RedisLimiter(horizon)": lambda d: RedisLimiter(URL, "a", "1/s", horizon=d),
    "RedisLimiter(lease)": lambda d: RedisLimiter(URL, "a", "1/s", lease=d),
    "RedisLimiter(slack)": lambda d: RedisLimiter(URL, "a", "1/s", slack=d),
    "blocking_hooks(max_wait)": lambda d: blocking_hooks(shared(), max_wait=d),
    "hooks(max_wait)": lambda d: hooks(limiter(), max_wait=d),
    "limit_transport(max_wait)": lambda d: limit_transport(httpx2.AsyncHTTPTransport(), limiter(), max_wait=d),
    "middleware(max_wait)": lambda d: middleware(limiter(), max_wait=d),
    # Inherited.
    "RedisBudget.observe(jitter)": lambda d: budget().observe(PAUSED, jitter=d),
    "RedisBudget.pause(seconds)": lambda d: budget().pause(d),
    "RedisBudget.reserve(max_wait)": lambda d: budget().reserve(n=1, max_wait=d),
    "RedisLimiter.bound(seconds)": lambda d: RedisLimiter(URL, "a", "1/s").bound(d),
    "RedisLimiter.observe(jitter)": lambda d: limiter().observe(PAUSED, jitter=d),
    "RedisLimiter.pause(seconds)": lambda d: limiter().pause(d),
    # A timedelta too, where a number means something else.
    "TokenPool(pool)": lambda d: TokenPool("1/s", pool=d),
}
"""Each of them with a call; what the call needs besides is there."""

ASKS_A_STORE = {"RedisLimiter.acquire(max_wait)", "RedisLimiter.acquire_blocking(max_wait)"}
"""Of these, only the refusals are tried here."""
CHECKED_LATER = {"Feedback(retry_after)"}
"""Kept as it is given: nothing is paced by it."""
IN_NS = {"TokenPool(pool)"}
"""A whole number is nanoseconds, as in the original; the contract says so."""
OUTPUTS = re.compile(r"(Event|Slot|Statistics|WaitTooLong|Waited)\(")
"""What aiorate makes: users read it."""
NOT_DURATIONS = {
    *("rate", "permits", "value", "rate_or_scheduler", "factory", "shared", "dimensions", "lowest", "highest"),  # rates
    *("burst_ratio", "ratio", "strictness", "cold_factor", "refused", "local_share"),  # factors
    *("max_stored", "now", "timeout"),  # permits; a Unix time; a parameter of asyncio, None or a float
}

GOOD = [1, 1.0, Fraction(1), Decimal("1"), timedelta(seconds=1)]
BAD = [
    (float("nan"), ValueError, "must be a finite number.*(nan|NaN)"),
    (float("inf"), ValueError, "must be a finite number"),
    (-1, ValueError, "must be (0|greater than 0|0 seconds) or more|more than 0|greater than 0"),
    (timedelta(seconds=-1), ValueError, "must be (0|greater than 0|0 seconds) or more|more than 0|greater than 0"),
    (10**400, ValueError, "1e400"),
    (True, TypeError, "timedelta.*, not bool"),
    ("1s", TypeError, "a timedelta.*(, not str|not the text)"),
    ([1], TypeError, "timedelta.*, not list"),
]


def durations() -> Iterator[str]:
    """The public arguments whose annotation says that they are a duration or any other number that is not an int."""
    seen = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for member in module.__all__:
            thing = getattr(module, member)
            if id(thing) not in seen:
                seen.add(id(thing))
                yield from _of(member, thing)


def _of(name: str, thing: Any) -> Iterator[str]:
    calls = {name: thing}
    if inspect.isclass(thing):
        calls |= {f"{name}.{each}": getattr(thing, each) for each in dir(thing) if not each.startswith("_") and hasattr(thing, each)}
    for call, function in calls.items():
        if not callable(function):
            continue
        try:
            parameters = inspect.signature(function).parameters.values()
        except (ValueError, TypeError):
            continue
        for parameter in parameters:
            if re.search(r"\b(Duration|timedelta|Number|float)\b", str(parameter.annotation)) and parameter.name not in NOT_DURATIONS:
                yield f"{call}({parameter.name})"


def test_every_duration_of_the_public_api_is_in_the_table() -> None:
    """A new argument that is a number either gets a row above or is named as something else than a duration."""
    found = {each for each in durations() if not OUTPUTS.match(each)}

    assert found == {*OF_EACH, *ASKS_A_STORE}


@pytest.mark.parametrize("value", GOOD, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("call", [call for call in OF_EACH if call not in IN_NS])
def test_a_duration_is_a_number_of_seconds_or_a_timedelta(call: str, value: Any) -> None:
    """One second, in every way in which it may be written."""
    OF_EACH[call](value)


@pytest.mark.parametrize(("value", "error", "words"), BAD, ids=[str(row[0])[:9] for row in BAD])
@pytest.mark.parametrize("call", [call for call in OF_EACH if call not in IN_NS | CHECKED_LATER])
def test_what_is_not_a_duration_is_refused(call: str, value: Any, error: type[Exception], words: str) -> None:
    """The same words everywhere: only the name of the argument differs."""
    with pytest.raises(error, match=words):
        OF_EACH[call](value)


@pytest.mark.parametrize("call", ["acquire", "acquire_blocking"])
@pytest.mark.parametrize(("value", "error", "words"), BAD, ids=[str(row[0])[:9] for row in BAD])
def test_a_shared_limit_refuses_it_before_it_asks_the_store(call: str, value: Any, error: type[Exception], words: str) -> None:
    """No store is there: a check that came after the question would be EngineUnavailable."""
    limited = RedisLimiter(URL, "a", "1/s", scope="process")

    with pytest.raises(error, match=words):
        limited.acquire_blocking(max_wait=value) if call == "acquire_blocking" else virtual(lambda: limited.acquire(max_wait=value))


def test_no_bound_is_none() -> None:
    """Who writes infinity is told what to write."""
    with pytest.raises(ValueError, match=r"None \(no bound\)"):
        virtual(lambda: Limiter("1/s").acquire(max_wait=float("inf")))


def test_seconds_and_timedelta_mean_the_same() -> None:
    """For the values that can be read back."""
    half = timedelta(milliseconds=500)
    by_seconds, by_timedelta = Limiter(TokenBucket("10/s", burst=1), catch_up=0.5), Limiter(TokenBucket("10/s", burst=1), catch_up=half)
    assert by_seconds.bound(0.5) == by_timedelta.bound(half) == 11

    one, other = limiter(), limiter()
    one.pause(0.5)
    other.observe(Feedback(429, pause=half))
    assert one.delay() == other.delay() == 0.5

    clock, moved = ManualClock(), ManualClock()
    clock.advance(0.5)
    moved.advance(half)
    assert clock.now() == moved.now() == 500_000_000

    assert TokenPool("1/s", pool=timedelta(milliseconds=5)).max_active == TokenPool("1/s", pool=5_000_000).max_active
    assert SmoothBursty("10/s", max_burst=half).bound(10**9) == SmoothBursty("10/s", max_burst=0.5).bound(10**9)


def test_max_wait_as_a_timedelta_refuses_at_once() -> None:
    """The limit is the same one, and the error tells it in seconds."""

    async def main() -> None:
        limited = Limiter("1/s")
        await limited.acquire()
        with pytest.raises(WaitTooLong) as raised:
            await limited.acquire(max_wait=timedelta(milliseconds=500))
        assert raised.value.max_wait == 0.5

    virtual(main)


def test_feedback_keeps_seconds() -> None:
    """Readers of a feedback meet one type."""
    quota = Quota(limit=10, remaining=5, reset=timedelta(seconds=2), window=timedelta(minutes=1))
    feedback = Feedback(429, pause=timedelta(seconds=2.5), quotas=(quota,), retry_after=timedelta(seconds=3))

    assert (feedback.pause, feedback.retry_after, quota.reset, quota.window) == (2.5, 3.0, 2.0, 60.0)
    assert quota.rate == 10 / 60
    assert feedback == Feedback(429, 2.5, (Quota("", 10, 5, 2.0, 60.0),), "", 3.0)
    assert replace(feedback, pause=None).pause is None


@pytest.mark.parametrize("wrong", [0.005, "5ms", True, [5]])
def test_a_pool_in_seconds_is_told_of_timedelta(wrong: Any) -> None:
    """A number is nanoseconds there, as in the original, and 0.005 is none."""
    with pytest.raises(TypeError, match=r"whole ns"):
        TokenPool("1/s", pool=wrong)
