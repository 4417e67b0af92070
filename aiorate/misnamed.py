"""Names that a module of aiorate does not have, and what to write. Imported only when one was looked up in vain. Knows no limiter."""

from __future__ import annotations

from inspect import currentframe
from opcode import opmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HOMES", "not_in_module"]

HOMES: dict[str, tuple[str, ...]] = {
    "aiorate": (
        *("AllOf", "Budget", "BurstCompensation", "BurstRatio", "CalendarWindow", "Clock", "EngineUnavailable", "Event", "KeyedBudget"),
        *("KeyedLimiter", "Lease", "Limiter", "LimiterClosed", "LimiterError", "LineFull", "Rate", "RateSpec", "Scheduler"),
        *("SlidingWindow", "Slot", "SmoothBursty", "SmoothWarmingUp", "Statistics", "TicksAccumulator", "TokenBucket", "TokenPool"),
        *("WaitTooLong", "Waited"),
    ),
    "aiorate.http": ("Feedback", "Limiters", "Quota", "blocking_hooks", "hooks", "limit_transport", "read_feedback"),
    "aiorate.aiohttp": ("Limiters", "cost", "middleware"),
    "aiorate.asgi": ("RateLimitMiddleware", "client_address"),
    "aiorate.redis": ("RedisBudget", "RedisLimiter"),
    "aiorate.adaptive": ("AdaptiveRate", "adaptive_of"),
    "aiorate.otel": ("Adaptive", "Watched", "instrument"),
    "aiorate.testing": ("ManualClock", "ResetLimiters", "VirtualLoop", "check_scheduler", "reset_limiters", "simulate", "transcript"),
}
"""Where each public name is."""

_KEYED = "`from aiorate import KeyedLimiter`, and KeyedLimiter(lambda key: '10/s')"
_STORE = "`from aiorate.redis import RedisLimiter`, and RedisLimiter(url, name, '10/s')"
_KEYED_STORE = (
    "`from aiorate import KeyedLimiter` and `from aiorate.redis import RedisLimiter`, and"
    " KeyedLimiter(lambda key: RedisLimiter(url, f'search:{key}', '10/s'))"
)
_PROCESS = "`from aiorate import Limiter`, and Limiter('10/s', scope='process')"
_HOOKS = "`from aiorate.http import hooks`, and AsyncClient(event_hooks=hooks(limiter))"
_AGAIN = "`from aiorate import Limiter`; to retry, use a library for that, and wait for permits inside each attempt"
_LIMITER = "`from aiorate import Limiter`, and limiter = Limiter('10/s')"
_DECORATE = f"{_LIMITER}, and `@limiter` above `async def`"
_BUCKET = "`from aiorate import Limiter, TokenBucket`, and Limiter(TokenBucket('10/s', burst=20))"
_PACED = f"{_LIMITER}, which spaces permits evenly"
_SLIDING = "`from aiorate import Limiter, SlidingWindow`, and Limiter(SlidingWindow('10/s'))"
_FIXED = "`from aiorate import CalendarWindow, Limiter`, and Limiter(CalendarWindow('1000/day', 'UTC'))"
_PLACES = "`from aiorate import Limiter`, and Limiter('10/s', max_concurrency=5)"
_REFUSED = "`from aiorate import WaitTooLong`, which acquire(max_wait=...) raises; without max_wait, acquire() waits"
_UNITS = "a rate as text, such as '10/s', '500/min', '3/250ms' or '10000/day', or Rate(10, 60), where the period is in seconds"
_SERVER = "`from aiorate.asgi import RateLimitMiddleware`, and app.add_middleware(RateLimitMiddleware, limiter=limiter)"
_AIOHTTP = "`from aiorate.aiohttp import middleware`, and ClientSession(middlewares=[middleware(limiter)])"
_TRANSPORT = "`from aiorate.http import limit_transport`, and limit_transport(httpx2.AsyncHTTPTransport(), limiter)"
_FOUND = "`from aiorate.adaptive import AdaptiveRate`, and AdaptiveRate(Limiter('10/s'), '1/s', '100/s')"
_TIME = "`from aiorate.testing import ManualClock, VirtualLoop`"

_OTHERS = {
    **dict.fromkeys(("RateLimiter", "AsyncLimiter", "AsyncRateLimiter", "Throttler", "Throttle", "AsyncThrottle", "Limit"), _LIMITER),
    **dict.fromkeys(("Bottleneck", "AIOLimiter", "AioRate", "StrictLimiter", "Ratelimiter", "AsyncThrottler", "acquire"), _LIMITER),
    **dict.fromkeys(
        ("SyncLimiter", "BlockingLimiter", "ThreadLimiter"), "`from aiorate import Limiter`, and Limiter('10/s', scope='process')"
    ),
    **dict.fromkeys(("rate_limit", "rate_limited", "ratelimit", "limits", "throttle", "throttled", "sleep_and_retry"), _DECORATE),
    **dict.fromkeys(("Bucket", "TokenBucketLimiter", "TokenBucketRateLimiter", "BurstyLimiter", "BucketLimiter"), _BUCKET),
    **dict.fromkeys(("LeakyBucket", "LeakyBucketLimiter", "LeakyBucketRateLimiter", "GCRA", "GCRALimiter", "SmoothRateLimiter"), _PACED),
    **dict.fromkeys(("SlidingWindowLimiter", "SlidingWindowRateLimiter", "MovingWindow", "MovingWindowRateLimiter", "Window"), _SLIDING),
    **dict.fromkeys(("SlidingWindowLog", "SlidingLog", "SlidingWindowCounter"), _SLIDING),
    **dict.fromkeys(("FixedWindow", "FixedWindowLimiter", "FixedWindowRateLimiter", "DailyLimiter", "DailyQuota"), _FIXED),
    **dict.fromkeys(("Semaphore", "ConcurrencyLimiter", "CapacityLimiter", "BoundedSemaphore", "MaxConcurrency"), _PLACES),
    **dict.fromkeys(("RateLimitExceeded", "RateLimitError", "RateLimited", "RateLimitException", "BucketFullException"), _REFUSED),
    **dict.fromkeys(("LimitExceeded", "LimiterDelayException", "TooManyRequests", "Timeout", "TimeoutError"), _REFUSED),
    **dict.fromkeys(("Duration", "SECOND", "MINUTE", "HOUR", "DAY", "RateLimitItem", "RateItem", "Period", "Unit"), _UNITS),
    **dict.fromkeys(("parse", "parse_rate", "parse_many"), "`from aiorate import Rate`, and Rate.parse('10/s')"),
    **dict.fromkeys(("KeyedRateLimiter", "LimiterRegistry", "PerKeyLimiter", "LimiterGroup", "KeyedThrottler", "Keyed"), _KEYED),
    **dict.fromkeys(("redis_limiter", "RedisRateLimiter", "RedisBucket", "RedisStorage", "DistributedLimiter", "SharedLimiter"), _STORE),
    **dict.fromkeys(("RedisKeyedLimiter", "KeyedRedisLimiter"), _KEYED_STORE),
    **dict.fromkeys(("RateLimiterMiddleware", "SlowAPIMiddleware", "LimiterMiddleware", "RateLimitingMiddleware"), _SERVER),
    **dict.fromkeys(("get_remote_address", "get_ipaddr", "remote_address", "client_ip"), "`from aiorate.asgi import client_address`"),
    **dict.fromkeys(("RateLimitTransport", "Transport", "AsyncTransport", "LimitedTransport", "RateLimiterTransport"), _TRANSPORT),
    **dict.fromkeys(("event_hooks", "hook", "request_hook"), _HOOKS),
    **dict.fromkeys(("TraceConfig", "trace_config", "RateLimitedSession", "ClientSession", "ClientMiddleware"), _AIOHTTP),
    **dict.fromkeys(("AdaptiveLimiter", "AIMD", "AdaptiveRateLimiter", "Adaptive", "AutoLimiter"), _FOUND),
    **dict.fromkeys(("FakeClock", "TestClock", "MockClock", "VirtualClock", "freeze_time", "travel"), _TIME),
    **dict.fromkeys(("Retry", "retry", "backoff", "RetryPolicy", "retry_after"), _AGAIN),
    **dict.fromkeys(("LLMBudget", "TokenBudget", "RateBudget", "Quotas"), "`from aiorate import Budget`, and Budget(tokens='200_000/min')"),
}
"""What to write for names of other libraries, and for names that sound right."""


def not_in_module(module: str, name: str) -> ImportError | AttributeError:
    """The error for a name that the module does not have: what to write, where that is known.

    For the ``__getattr__`` of the module. It is an ImportError if its caller is a statement ``from module import name``, which would
    replace an AttributeError by Python's own words.
    """
    homes = [home for home, names in HOMES.items() if name in names]
    if homes:
        write = f"write `from {homes[0]} import {name}`"
    elif f"{module}.{name}" in HOMES:
        write = f"it is a module. Write `import {module}.{name}`, or `from {module}.{name} import ...`"
    elif name in _OTHERS:
        write = f"write {_OTHERS[name]}"
    else:
        write = _nearest(name, {one: home for home, names in HOMES.items() for one in names})
    text = f"{module} has no {name!r}{': ' if write else ''}{write}."
    return ImportError(text, name=module) if _imports() else AttributeError(text)


def _nearest(name: str, homes: dict[str, str]) -> str:
    from difflib import get_close_matches

    plain: dict[str, str] = {one.lower(): one for one in homes}
    near: Iterable[str] = get_close_matches(name.lower().replace("_", ""), plain, n=1, cutoff=0.8)
    return next((f"write `from {homes[plain[one]]} import {plain[one]}`" for one in near), "")


def _imports() -> bool:
    frame = currentframe()
    for _ in range(3):  # through not_in_module() and __getattr__() to the code that looked the name up
        frame = None if frame is None else frame.f_back
    return frame is not None and frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]
