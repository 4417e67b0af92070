"""The peers, each in its best configuration. A library is imported when its limiter is first made.

Where a library has a choice, it has the one with which it does best: no random waits, the finest polling that does not spin, its
exact algorithm. A library that only answers yes or no has the shortest loop around it that sleeps until the instant it names.
"""

from __future__ import annotations

import asyncio
import math
import time
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from benchmarks.subjects import Calls, Subject

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PEERS"]


def _whole(rate: float) -> tuple[int, int]:
    """Whole permits per whole seconds."""
    fraction = Fraction(rate).limit_denominator(100_000)
    return fraction.numerator, fraction.denominator


def _aiolimiter(rate: float, burst: int) -> Calls:
    from aiolimiter import AsyncLimiter

    limiter = AsyncLimiter(burst, burst / rate)
    return Calls(limiter.acquire, limiter, limiter=limiter)


def _asynciolimiter(kind: str) -> Callable[[float, int], Calls]:
    def make(rate: float, burst: int) -> Calls:
        import asynciolimiter

        limiter: Any
        if kind == "leaky":
            limiter = asynciolimiter.LeakyBucketLimiter(rate, capacity=burst)
        elif kind == "strict":
            limiter = asynciolimiter.StrictLimiter(rate)
        else:
            limiter = asynciolimiter.Limiter(rate, max_burst=max(5, burst))
        return Calls(limiter.wait, close=limiter.close, limiter=limiter)

    return make


def _pyrate_gcra(rate: float, burst: int) -> Calls:
    from pyrate_limiter import GCRA, Rate, SingleBucketFactory, StateBucket

    permits, seconds = _whole(rate)
    # Its state is a number, so no thread need clear anything away.
    return _pyrate(SingleBucketFactory(StateBucket([Rate(permits, 1000 * seconds, burst=burst)], GCRA()), schedule_leak=False))


def _pyrate_window(rate: float, burst: int) -> Calls:
    from pyrate_limiter import InMemoryBucket, Rate

    # Its windows are whole milliseconds.
    ms = max(1, round(1000 * burst / rate))
    return _pyrate(InMemoryBucket([Rate(max(1, round(rate * ms / 1000)), ms)]))


def _pyrate(bucket: Any) -> Calls:
    from pyrate_limiter import Limiter

    limiter = Limiter(bucket, buffer_ms=0)
    acquire = limiter.try_acquire_async

    async def attempt() -> object:
        return await acquire(blocking=False)

    return Calls(acquire, attempt_async=attempt, close=limiter.close, limiter=limiter)


def _limits(kind: str) -> Callable[[float, int], Calls]:
    def make(rate: float, burst: int) -> Calls:
        from limits import RateLimitItemPerSecond
        from limits.aio import storage, strategies

        # Its windows are whole seconds.
        seconds = max(1, math.ceil(max(burst, 1) / rate))
        item = RateLimitItemPerSecond(max(1, round(rate * seconds)), seconds)
        limiter: Any = getattr(strategies, kind)(storage.MemoryStorage())
        hit = limiter.hit

        async def acquire() -> None:
            while not await hit(item, "bench"):
                reset, _ = await limiter.get_window_stats(item, "bench")
                await asyncio.sleep(max(0.0, reset - time.time()))

        async def attempt() -> object:
            return await hit(item, "bench")

        return Calls(acquire, attempt_async=attempt, limiter=limiter)

    return make


def _throttled(waits: bool) -> Callable[[float, int], Calls]:
    def make(rate: float, burst: int) -> Calls:
        from throttled.asyncio import MemoryStore, RateLimiterType, Throttled, per_duration

        permits, seconds = _whole(rate)
        quota = per_duration(timedelta(seconds=seconds), permits, burst)
        made: dict[str, Any] = {"key": "bench", "using": RateLimiterType.GCRA.value, "quota": quota, "store": MemoryStore()}
        limiter = Throttled(**made, timeout=1e9) if waits else Throttled(**made)
        limit = limiter.limit

        async def acquire() -> None:
            while (result := await limit()).limited:  # its state has no event
                await asyncio.sleep(result.state.retry_after)

        async def attempt() -> object:
            return await limit(timeout=-1)

        return Calls(limit if waits else acquire, limiter if waits else None, attempt_async=attempt, limiter=limiter)

    return make


def _asyncio_throttle(rate: float, burst: int) -> Calls:
    from asyncio_throttle.throttler import Throttler

    # Asks again five times in a period. More often would be a spin with many waiters.
    period = burst / rate
    limiter = Throttler(burst, period, retry_interval=min(0.01, max(0.0005, period / 5)))
    return Calls(limiter.acquire, limiter, limiter=limiter)


PEERS: tuple[Subject, ...] = (
    Subject("aiolimiter", "peer", "aiolimiter", _aiolimiter),
    Subject("asynciolimiter", "peer", "asynciolimiter", _asynciolimiter("")),
    Subject("asynciolimiter-leaky", "peer", "asynciolimiter", _asynciolimiter("leaky")),
    Subject("asynciolimiter-strict", "peer", "asynciolimiter", _asynciolimiter("strict")),
    Subject("pyrate-gcra", "peer", "pyrate-limiter", _pyrate_gcra),
    Subject("pyrate-window", "peer", "pyrate-limiter", _pyrate_window),
    Subject("limits-moving", "peer", "limits", _limits("MovingWindowRateLimiter")),
    Subject("limits-fixed", "peer", "limits", _limits("FixedWindowRateLimiter")),
    Subject("limits-sliding", "peer", "limits", _limits("SlidingWindowCounterRateLimiter")),
    Subject("throttled-py", "peer", "throttled-py", _throttled(True)),
    Subject("throttled-py+sleep", "peer", "throttled-py", _throttled(False)),
    Subject("asyncio-throttle", "peer", "asyncio-throttle", _asyncio_throttle),
)
