"""The arguments of RedisLimiter and RedisBudget: wrong ones fail at once, where they are written. No server is needed."""

from __future__ import annotations

import asyncio
import copy
import math
import sys
from typing import Any

import pytest
import redis

from aiorate import AllOf, Budget, CalendarWindow, Limiter, Rate, SlidingWindow, TokenBucket, TokenPool
from aiorate.redis import RedisBudget, RedisLimiter

URL = "redis://127.0.0.1:1/0"
BOTH: list[tuple[dict[str, Any], str]] = [  # wrong options of either, and what the error says
    *(({"name": ""}, "must not be empty"), ({"name": "\ud800"}, "lone surrogate")),
    *(({"slack": -0.001}, "0 seconds or more"), ({"slack": 0.0009}, "at least 0.001"), ({"grace": -1}, "grace")),
    *(({"on_unavailable": "ignore"}, "raise, wait, local, open"), ({"on_unavailable": "local"}, "needs local_share")),
    ({"on_unavailable": "local", "local_share": 0}, "more than 0"),
    *(({"on_unavailable": "local", "local_share": 1.5}, "at most 1"), ({"local_share": 0.5}, "no other policy")),
    *(({"client_or_url": "127.0.0.1:6379"}, "URL"), ({"client_or_url": "http://127.0.0.1"}, "redis://")),
    ({"client_or_url": "redis://127.0.0.1:first/0"}, "must be a number"),
    *(({"client_or_url": f"redis://127.0.0.1/0?{each}"}, "option, after its") for each in ("retries=3", "protocol=9")),
    ({"client_or_url": "redis://127.0.0.1/0?socket_timeout=soon"}, "option, after its"),
    *(({"client_or_url": "redis://127.0.0.1:99999/0"}, "0-65535"), ({"max_waiting": -1}, "max_waiting")),
    ({"scope": "thread"}, "'loop' or 'process'"),
]
RATES: list[tuple[dict[str, Any], str]] = [
    *(({"rate": "0"}, "greater than 0"), ({"rate": []}, "at least one limit"), ({"rate": "10 per fortnight"}, "not a rate")),
    *(({"lease": math.nan}, "finite"), ({"slack": 0, "lease": 0.0009}, "at least 0.001"), ({"burst": 0}, "1 or more")),
    ({"rate": TokenBucket("10/s", burst=20), "burst": 20}, "has a burst already"),
    ({"rate": ["100/s", TokenBucket("10/s", burst=20)], "burst": 20}, "has a burst already"),
    ({"rate": TokenBucket("10/s", burst=20, initial=0)}, "starts full"),
    ({"rate": [CalendarWindow("9/day", "UTC"), "10/s"]}, "must be the only limit"),
    ({"rate": CalendarWindow("9/day", "UTC"), "burst": 2}, "has no burst"),
]
DIMENSIONS: list[tuple[dict[str, Any], str]] = [
    *(({"tokens": "many"}, "is not a rate"), ({"tokens": "0/s"}, "must be greater than 0")),
    ({"tokens": TokenBucket("10/s", burst=5, initial=0)}, "starts full"),
    ({"on_error": "retry"}, "must be 'keep' or 'refund'"),
]
KINDS: list[dict[str, Any]] = [
    {"client_or_url": None},
    {"client_or_url": redis.Redis.from_url(URL)},  # synchronous: it would stop the loop
    *({"client_or_url": redis.asyncio.Redis}, {"client_or_url": object()}, {"name": None}, {"name": b"x"}, {"horizon": None}),
]
LIMITS: list[Any] = [
    *(SlidingWindow("10/s"), [TokenPool("10/s")], AllOf(TokenBucket("10/s", burst=1)), Limiter("10/s"), TokenBucket, None, {"10/s"}),
    RedisLimiter(URL, "y", "10/s"),
]


def limiter(**changes: Any) -> RedisLimiter:
    given = {"client_or_url": URL, "name": "x", "rate": "10/s", **changes}
    return RedisLimiter(given.pop("client_or_url"), given.pop("name"), given.pop("rate"), **given)


def budget(**changes: Any) -> RedisBudget:
    given = {"client_or_url": URL, "name": "x", "tokens": "10/s", **changes}
    return RedisBudget(given.pop("client_or_url"), given.pop("name"), **given)


def test_a_wrong_value_is_refused_at_once() -> None:
    for made, table in ((limiter, BOTH), (limiter, RATES), (budget, BOTH), (budget, DIMENSIONS)):
        for changes, hint in table:
            with pytest.raises(ValueError, match=hint):
                print(made.__name__, changes, made(**changes))


def test_a_wrong_kind_is_refused_at_once() -> None:
    """And the error says which limits are possible."""
    for changes in (*KINDS, {"burst": 1.5}, {"burst": True}, {"burst": ["3"]}, {"lease": "1"}, {"clock": 5}):
        with pytest.raises(TypeError):
            print("limiter", changes, limiter(**changes))
    for changes in (*KINDS, {"rate": object()}, {"shared": Limiter("10/s")}):
        with pytest.raises(TypeError):
            print("budget", changes, budget(**changes))
    for limit in LIMITS:
        with pytest.raises(TypeError, match=r"TokenBucket.*CalendarWindow"):
            print(limiter(rate=limit))
        with pytest.raises(TypeError, match=r"RedisBudget\(tokens\)"):
            print(budget(tokens=limit))
    with pytest.raises(TypeError):
        RedisBudget(URL, "x")
    for client in (redis.asyncio.RedisCluster.from_url(URL), redis.asyncio.Sentinel([]).master_for("x")):
        with pytest.raises(TypeError, match=r"belongs to an event loop. Give a URL"):
            limiter(client_or_url=client, scope="process")
    with pytest.raises(RuntimeError, match="process"):
        limiter().acquire_blocking()


def test_a_bucket_gives_rate_and_burst() -> None:
    bucket = TokenBucket("10/s", burst=20)
    for limit in (bucket, [bucket], (bucket,)):
        assert repr(RedisLimiter(URL, "x", "10/s", burst=20)) == repr(RedisLimiter(URL, "x", limit))

    mixed = RedisLimiter(URL, "x", [bucket, "500/min", TokenBucket("1000/h", burst=100)])
    assert "10/s burst 20, 500/min, 1000/h burst 100" in repr(mixed)


def test_a_url_wants_one_of_two_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    assert "aiorate:x" == limiter().key
    monkeypatch.setitem(sys.modules, "valkey.asyncio", None)
    for url in (URL, URL.replace("redis", "valkey")):
        with pytest.raises(ImportError, match="pip install"):
            limiter(client_or_url=url)


def test_outside_an_event_loop_nothing_is_asked() -> None:
    """No task could hear an answer there: an error, and an estimate. What was not used closes without a store."""
    made = limiter(lease=1)
    with pytest.raises(RuntimeError, match="scope='process'"):
        made.try_acquire()
    assert 0 <= made.delay() < 0.1
    asyncio.run(limiter().aclose())
    asyncio.run(budget().aclose())


def test_the_bound_is_printed() -> None:
    """b + R (W + max(slack, lease)), and the largest request more; a window has at most three in its time."""
    for bound, made, window, largest in (
        (1 + 1005, limiter(rate="1000/s"), 1, 1),
        (300 + 1050, limiter(rate="1000/s", burst=300, lease=0.05), 1, 1),
        (1 + 1005 + 8, limiter(rate="1000/s"), 1, 8),
        (5 + 60, limiter(rate=["10/s", TokenBucket("60/min", burst=5)], slack=0.001), 60, 1),
        (1 + 1010, limiter(rate="1000/s", slack=0, lease=0.01), 1, 1),  # a lease is slack enough
        (27, limiter(rate=[CalendarWindow("9/day", "Europe/Berlin")]), 86_400, 1),
    ):
        assert bound == made.bound(window, largest=largest), made


def test_they_say_what_they_are() -> None:
    made = limiter(name="search", rate=["10/s", TokenBucket("60/min", burst=5)])
    assert "'search'" in repr(made)
    assert "60/min burst 5" in repr(made)
    assert ("aiorate:search", Rate.parse("60/min"), "shared") == (made.key, made.rate, made.statistics().state)

    of_two = RedisBudget(URL, "x", requests="10/s", tokens=TokenBucket("100/s", burst=50))
    assert isinstance(of_two, Budget)
    assert (("requests", "tokens"), "aiorate:x", "shared") == (of_two.dimensions, of_two.key, of_two.statistics().state)
    assert "requests=10/s, tokens=100/s burst 50" in repr(of_two)
    assert {"requests": 3, "tokens": 50} == of_two.reserve(requests=3, tokens=1000).amounts
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(of_two)
