"""The peers that share a limit through Redis, each in its best configuration, and aiorate's own. A library is imported when it is used."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

from benchmarks.subjects import Calls, rate_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CLIENTS", "SHARED"]


def _aiorate(url: str, rate: float, options: dict[str, Any]) -> Calls:
    from aiorate.redis import RedisLimiter

    options = dict(options)
    make = CLIENTS[options.pop("client", "")]
    source = make(url)
    limiter = RedisLimiter(source, "bench", rate, **options)

    async def close() -> None:
        await limiter.aclose()
        if source is not url:
            await source.aclose()

    return Calls(limiter.acquire, limiter, close=close, limiter=limiter)


def _url(url: str) -> Any:
    return url


def _redis_py(url: str) -> Any:
    from redis.asyncio import Redis

    return Redis.from_url(url)


def _redis_py_cluster(url: str) -> Any:
    from redis.asyncio.cluster import RedisCluster

    return RedisCluster.from_url(url)


def _valkey_py(url: str) -> Any:
    from valkey.asyncio import Valkey

    return Valkey.from_url(url)


CLIENTS: dict[str, Callable[[str], Any]] = {"": _url, "redis-py": _redis_py, "redis-py cluster": _redis_py_cluster, "valkey-py": _valkey_py}
"""What a `RedisLimiter` is made with: by the option ``client`` of aiorate's own, the URL itself by default."""


def _limits(kind: str) -> Callable[[str, float, dict[str, Any]], Calls]:
    def make(url: str, rate: float, options: dict[str, Any]) -> Calls:
        from limits import RateLimitItemPerSecond
        from limits.aio import storage, strategies

        item = RateLimitItemPerSecond(math.ceil(rate), 1)
        store: Any = storage.RedisStorage(f"async+{url}", implementation="redispy")
        limiter: Any = getattr(strategies, kind)(store)
        hit = limiter.hit

        async def acquire() -> None:
            while not await hit(item, "bench"):
                reset, _ = await limiter.get_window_stats(item, "bench")
                await asyncio.sleep(max(0.0, reset - time.time()))

        return Calls(acquire, close=store.bridge.storage.aclose, limiter=limiter)

    return make


def _pyrate(url: str, rate: float, options: dict[str, Any]) -> Calls:
    from pyrate_limiter import Limiter, Rate, RedisBucket
    from redis.asyncio import Redis

    client: Any = Redis.from_url(url)
    limiter: Any = None
    # Its bucket is made by a coroutine.
    making = asyncio.Lock()

    async def acquire() -> None:
        nonlocal limiter
        if limiter is None:
            async with making:
                if limiter is None:
                    bucket: Any = RedisBucket.init([Rate(math.ceil(rate), 1000)], client, "bench")
                    limiter = Limiter(await bucket, buffer_ms=0)
        await limiter.try_acquire_async("bench")

    async def close() -> None:
        if limiter is not None:
            limiter.close()
        await client.aclose()

    return Calls(acquire, close=close)


def _throttled(url: str, rate: float, options: dict[str, Any]) -> Calls:
    from throttled.asyncio import RateLimiterType, RedisStore, Throttled, per_sec

    store: Any = RedisStore(url)
    limiter = Throttled(key="bench", using=RateLimiterType.GCRA.value, quota=per_sec(math.ceil(rate)), store=store)
    limit = limiter.limit

    async def acquire() -> None:
        while (result := await limit()).limited:  # its state has no event
            await asyncio.sleep(result.state.retry_after)

    async def close() -> None:
        # Its client is one of a pool that outlives it.
        await store._backend.get_client().connection_pool.disconnect()  # there is no other way

    return Calls(acquire, close=close, limiter=limiter)


def _floor(url: str, rate: float, options: dict[str, Any]) -> Calls:
    from aiorate import Limiter

    return Calls(Limiter(rate_of(rate / options["processes"])).acquire)


SHARED: dict[str, Callable[[str, float, dict[str, Any]], Calls]] = {
    "floor": _floor,
    "aiorate": _aiorate,
    "limits-fixed": _limits("FixedWindowRateLimiter"),
    "limits-moving": _limits("MovingWindowRateLimiter"),
    "pyrate-limiter": _pyrate,
    "throttled-py": _throttled,
}
"""By name: a limiter of that rate per second in the store at that URL, with its own options.

The floor is a limiter for each of ``processes`` processes, which share nothing: what the machine makes of the rate.
"""
