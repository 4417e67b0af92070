"""The middleware over limits that processes share, with a real store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.asgi import ask, ok, scope_of
from helpers.driving import others
from helpers.stores import RealServer, TimedClient
from redis.exceptions import ConnectionError as NoConnection

from aiorate import CalendarWindow, EngineUnavailable, KeyedLimiter, Limiter, TokenBucket
from aiorate.asgi import RateLimitMiddleware
from aiorate.redis import RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


def workers(store: RealServer, limit: Any, count: int = 2, **options: Any) -> list[RateLimitMiddleware]:
    """As many workers, each with a client and limiters, that share a limit for each address."""
    apps = []
    for _ in range(count):
        client = TimedClient(store, latency=0.001)
        limiters = KeyedLimiter(lambda address, client=client: RedisLimiter(client, f"client:{address}", limit, **options))  # type: ignore[misc]
        apps.append(RateLimitMiddleware(ok, limiters))
    return apps


async def test_workers_share_the_limit_of_each_client(store: RealServer) -> None:
    apps = workers(store, TokenBucket("10/min", burst=3))

    answers = [await ask(apps[number % 2]) for number in range(4)]
    other = await ask(apps[0], scope_of("192.0.2.9"))

    assert [200, 200, 200, 429] == [answer.status for answer in answers]
    assert [f'"default";r={left};t=6' for left in (2, 1, 0, 0)] == [answer.headers["ratelimit"] for answer in answers]
    assert '"default";q=3;w=18' == answers[0].headers["ratelimit-policy"]
    assert "6" == answers[3].headers["retry-after"]
    assert 200 == other.status
    for number in range(3):  # a client that waits as told is let through
        await asyncio.sleep(6)
        assert 200 == (await ask(apps[number % 2])).status


async def test_window_of_the_calendar_tells_when_it_ends(store: RealServer) -> None:
    apps = workers(store, CalendarWindow("3/min", "UTC"))

    answers = [await ask(apps[number % 2]) for number in range(4)]

    assert [200, 200, 200, 429] == [answer.status for answer in answers]
    assert [f'"default";r={left};t=60' for left in (2, 1, 0, 0)] == [answer.headers["ratelimit"] for answer in answers]
    assert '"default";q=3;w=60' == answers[0].headers["ratelimit-policy"]
    await asyncio.sleep(60)
    assert '"default";r=2;t=60' == (await ask(apps[0])).headers["ratelimit"]


async def test_lease_and_places_are_kept_too(store: RealServer) -> None:
    client = TimedClient(store, latency=0.001)
    limiter = RedisLimiter(client, "all", TokenBucket("100/s", burst=50), lease=0.05, max_concurrency=1)
    app = RateLimitMiddleware(ok, limiter)

    answers = [await ask(app) for _ in range(20)]

    assert [200] * 20 == [answer.status for answer in answers]
    assert '"all";q=50;w=1' == answers[0].headers["ratelimit-policy"]
    await limiter.aclose()
    assert not others()

    async def slow(*connection: Any) -> None:
        await asyncio.sleep(1)
        await ok(*connection)

    busy = RateLimitMiddleware(slow, RedisLimiter(client, "busy", TokenBucket("100/s", burst=50), max_concurrency=1))
    assert [200, 429] == [answer.status for answer in await asyncio.gather(ask(busy), ask(busy))]


async def test_outage_goes_by_the_policy_of_the_limiter(store: RealServer) -> None:
    """An error is the application's; "wait" refuses, since nothing waits here; "open" lets all through."""
    for policy in ("raise", "wait", "open", "local"):
        store.send("FLUSHALL")
        await in_an_outage(store, policy)


async def in_an_outage(store: RealServer, policy: Any) -> None:
    client = TimedClient(store)
    share: dict[str, Any] = {"local_share": 0.5} if policy == "local" else {}
    limiter = RedisLimiter(client, "api", TokenBucket("1/s", burst=4), on_unavailable=policy, grace=0.5, **share)
    app = RateLimitMiddleware(ok, limiter)
    await ask(app)
    client.error = NoConnection("down")
    for _ in range(20):  # until the grace is over
        try:
            await ask(app)
        except EngineUnavailable:
            break
        await asyncio.sleep(0.1)

    if policy == "raise":
        with pytest.raises(EngineUnavailable):
            await ask(app)
    else:
        answers = [await ask(app) for _ in range(3)]
        expected = {"wait": [429] * 3, "open": [200] * 3}.get(policy)
        assert expected is None or expected == [answer.status for answer in answers]
        assert policy != "open" or '"api";r=4;t=4' == answers[0].headers["ratelimit"]
        assert policy != "wait" or '"api";r=0' == answers[0].headers["ratelimit"]
        assert policy != "local" or 200 in [answer.status for answer in answers] or '"api";r=0' in answers[0].headers["ratelimit"]
    await limiter.aclose()


async def test_limiter_in_front_of_one_with_a_lease_works(store: RealServer) -> None:
    without = RedisLimiter(TimedClient(store), "without", "10/s", burst=10)
    with pytest.raises(RuntimeError, match="without a lease"):  # it has permits only for requests that wait
        await ask(RateLimitMiddleware(ok, KeyedLimiter(lambda client: TokenBucket("1/s", 5), shared=without)))
    await without.aclose()
    shared = RedisLimiter(TimedClient(store), "all", "10/s", burst=10, lease=0.5)
    await shared.acquire()
    app = RateLimitMiddleware(ok, KeyedLimiter(lambda client: Limiter(TokenBucket("1/s", 5)), shared=shared))

    answer = await ask(app)

    assert '"default";q=5;w=5, "all";q=10;w=1' == answer.headers["ratelimit-policy"]
    await shared.aclose()


async def test_outage_of_the_store_is_one_for_all_keys(store: RealServer) -> None:
    """A client that comes after the grace of another, or rarely, is let through by the policy "open" as well."""
    for every in (0.1, 5.0):
        store.send("FLUSHALL")
        await with_many_keys(store, every)


async def with_many_keys(store: RealServer, every: float) -> None:
    client = TimedClient(store)
    limiters = KeyedLimiter(
        lambda address: RedisLimiter(client, f"client:{address}", TokenBucket("1/min", burst=9), on_unavailable="open", grace=1)
    )
    app = RateLimitMiddleware(ok, limiters)
    await ask(app)
    client.error = NoConnection("down")

    statuses = [(await ask(app)).status]
    for _ in range(round(2 / every) + 1):
        await asyncio.sleep(every)
        statuses.append((await ask(app)).status)
    new = (await ask(app, scope_of("192.0.2.9"))).status

    assert (429, 200, 200) == (statuses[0], statuses[-1], new)
    client.error = None
    await asyncio.sleep(1)
    assert 200 == (await ask(app, scope_of("192.0.2.10"))).status
    client.error = NoConnection("down again")
    assert 429 == (await ask(app, scope_of("192.0.2.11"))).status
    await limiters.aclose()
