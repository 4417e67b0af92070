"""What is measured: aiorate and its peers, each in its best configuration. A library is imported when its limiter is first made.

Where a library has a choice, it has the one with which it does best: no margin, no random waits, the finest polling that does not
spin. A library that only answers yes or no has the shortest loop around it that sleeps until the instant it names.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import aiorate

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

__all__ = ["SUBJECTS", "Calls", "Subject", "closed"]


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a limiter; None: it has no such call."""

    acquire: Callable[[], Awaitable[object]]
    context: AbstractAsyncContextManager[object] | None = None
    attempt: Callable[[], object] | None = None  # never waits, and need not be awaited
    close: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A library; None: it has nothing of the kind."""

    distribution: str
    imported: str  # what a program imports
    make: Callable[[float, int], Calls]  # of a rate per second and a burst
    keyed: Callable[[float, int], Callable[[int], Awaitable[object]]] | None = None  # the same for each key
    shared: Callable[[str], Awaitable[Calls]] | None = None  # in the store at a URL, 1 000 000/s


async def closed(calls: Calls) -> None:
    """Stop the threads, timers and connections behind the calls."""
    left = calls.close() if calls.close else None
    if isinstance(left, Awaitable):
        await left


def _whole(rate: float) -> tuple[int, int]:
    """Whole permits per whole seconds."""
    fraction = Fraction(rate).limit_denominator(100_000)
    return fraction.numerator, fraction.denominator


def _aiorate(rate: float, burst: int) -> Calls:
    few = burst <= max(1.0, rate / 100)  # as many as a plain limiter lets through at once
    limiter = aiorate.Limiter(rate if few else aiorate.TokenBucket(rate, burst))
    return Calls(limiter.acquire, limiter, limiter.try_acquire)


def _aiorate_keyed(rate: float, burst: int) -> Callable[[int], Awaitable[object]]:
    exact = aiorate.Rate(rate)
    return aiorate.KeyedLimiter[int](lambda key: aiorate.TokenBucket(exact, burst), max_keys=1_000_000, idle=3600).acquire


async def _aiorate_shared(url: str) -> Calls:
    from aiorate.redis import RedisLimiter

    limiter = RedisLimiter(url, "bench", "1000000/s")
    return Calls(limiter.acquire, close=limiter.aclose)


def _aiolimiter(rate: float, burst: int) -> Calls:
    from aiolimiter import AsyncLimiter

    limiter = AsyncLimiter(burst, burst / rate)
    return Calls(limiter.acquire, limiter)


def _asynciolimiter(rate: float, burst: int) -> Calls:
    from asynciolimiter import LeakyBucketLimiter

    limiter = LeakyBucketLimiter(rate, capacity=burst)
    return Calls(limiter.wait, close=limiter.close)


def _asyncio_throttle(rate: float, burst: int) -> Calls:
    from asyncio_throttle.throttler import Throttler

    # Asks again five times in a period. More often would be a spin with many waiters.
    period = burst / rate
    limiter = Throttler(burst, period, retry_interval=min(0.01, max(0.0005, period / 5)))
    return Calls(limiter.acquire, limiter)


def _pyrate_bucket(rate: float, burst: int) -> Any:
    from pyrate_limiter import GCRA, Rate, StateBucket

    permits, seconds = _whole(rate)
    return StateBucket([Rate(permits, 1000 * seconds, burst=burst)], GCRA())


def _pyrate(rate: float, burst: int) -> Calls:
    from pyrate_limiter import Limiter, SingleBucketFactory

    # Its state is a number, so no thread need clear anything away.
    limiter = Limiter(SingleBucketFactory(_pyrate_bucket(rate, burst), schedule_leak=False), buffer_ms=0)
    return Calls(limiter.try_acquire_async, close=limiter.close)


def _pyrate_keyed(rate: float, burst: int) -> Callable[[int], Awaitable[object]]:
    from pyrate_limiter import BucketFactory, Limiter, RateItem

    class Factory(BucketFactory):
        def __init__(self) -> None:
            self.buckets: dict[str, Any] = {}

        def wrap_item(self, name: str, weight: int = 1) -> RateItem:
            return RateItem(name, time.monotonic_ns() // 1_000_000, weight)

        def get(self, item: RateItem) -> Any:
            if item.name not in self.buckets:
                self.buckets[item.name] = _pyrate_bucket(rate, burst)
            return self.buckets[item.name]

    acquire = Limiter(Factory(), buffer_ms=0).try_acquire_async
    return lambda key: acquire(str(key))


async def _pyrate_shared(url: str) -> Calls:
    from pyrate_limiter import Limiter, Rate, RedisBucket
    from redis.asyncio import Redis

    client: Any = Redis.from_url(url)
    bucket: Any = RedisBucket.init([Rate(1_000_000, 1000)], client, "bench")
    limiter = Limiter(await bucket, buffer_ms=0)
    acquire = limiter.try_acquire_async

    async def close() -> None:
        limiter.close()
        await client.aclose()

    return Calls(lambda: acquire("bench"), close=close)


def _limits(rate: float, burst: int) -> Calls:
    acquire = _limits_keyed(rate, burst)
    return Calls(lambda: acquire(0))


def _limits_keyed(rate: float, burst: int, store: Any = None) -> Callable[[int], Awaitable[object]]:
    from limits import RateLimitItemPerSecond
    from limits.aio import storage, strategies

    seconds = max(1, math.ceil(max(burst, 1) / rate))  # its windows are whole seconds
    item = RateLimitItemPerSecond(max(1, round(rate * seconds)), seconds)
    limiter = strategies.MovingWindowRateLimiter(store or storage.MemoryStorage())
    hit = limiter.hit

    async def acquire(key: int) -> None:
        while not await hit(item, str(key)):
            reset, _ = await limiter.get_window_stats(item, str(key))
            await asyncio.sleep(max(0.0, reset - time.time()))

    return acquire


async def _limits_shared(url: str) -> Calls:
    from limits.aio import storage

    store: Any = storage.RedisStorage(f"async+{url}", implementation="redispy")
    acquire = _limits_keyed(1_000_000, 1, store)
    return Calls(lambda: acquire(0), close=store.bridge.storage.aclose)


def _throttled(rate: float, burst: int) -> Calls:
    acquire = _throttled_keyed(rate, burst)
    return Calls(lambda: acquire(0))


def _throttled_keyed(rate: float, burst: int, store: Any = None) -> Callable[[int], Awaitable[object]]:
    from throttled.asyncio import MemoryStore, RateLimiterType, Throttled, per_duration

    permits, seconds = _whole(rate)
    quota = per_duration(timedelta(seconds=seconds), permits, burst)
    store = store or MemoryStore(options={"MAX_SIZE": 1_000_000})  # a key that it drops has its burst again
    limit = Throttled(using=RateLimiterType.GCRA.value, quota=quota, store=store).limit

    async def acquire(key: int) -> None:
        while (result := await limit(str(key))).limited:  # with its own timeout= it waits twice as long
            await asyncio.sleep(result.state.retry_after)

    return acquire


async def _throttled_shared(url: str) -> Calls:
    from throttled.asyncio import RedisStore

    store: Any = RedisStore(url)
    acquire = _throttled_keyed(1_000_000, 1_000_000, store)

    async def close() -> None:
        await store._backend.get_client().connection_pool.disconnect()  # there is no other way

    return Calls(lambda: acquire(0), close=close)


SUBJECTS = (
    Subject("aiorate", "aiorate", _aiorate, _aiorate_keyed, _aiorate_shared),
    Subject("aiolimiter", "aiolimiter", _aiolimiter),
    Subject("asynciolimiter", "asynciolimiter", _asynciolimiter),
    Subject("asyncio-throttle", "asyncio_throttle", _asyncio_throttle),
    Subject("pyrate-limiter", "pyrate_limiter", _pyrate, _pyrate_keyed, _pyrate_shared),
    Subject("limits", "limits.aio.strategies", _limits, _limits_keyed, _limits_shared),
    Subject("throttled-py", "throttled.asyncio", _throttled, _throttled_keyed, _throttled_shared),
)
