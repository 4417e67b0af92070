"""RateLimitMiddleware: which requests it lets through, what it answers to the others, and what it leaves alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from helpers.asgi import Answer, ask, nothing, ok, scope_of

from aiorate import AllOf, Budget, KeyedLimiter, Limiter, LimiterClosed, SlidingWindow, TokenBucket
from aiorate.asgi import RateLimitMiddleware, rate_limit_headers
from aiorate.testing import ManualClock

pytestmark = pytest.mark.asyncio
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def bucket(burst: int = 2, rate: str = "1/min", **options: Any) -> Limiter:
    return Limiter(TokenBucket(rate, burst=burst), **{"clock": ManualClock(), **options})


async def test_requests_beyond_the_burst_are_refused() -> None:
    app = RateLimitMiddleware(ok, bucket())

    answers = [await ask(app) for _ in range(3)]

    assert [200, 200, 429] == [answer.status for answer in answers]
    assert ['"default";r=1;t=60', '"default";r=0;t=60'] == [answer.headers["ratelimit"] for answer in answers[:2]]
    assert [("yes", b"ok")] * 2 == [(answer.headers["x-app"], answer.body) for answer in answers[:2]]
    refused = answers[-1]
    assert {
        "content-type": "application/problem+json",
        "content-length": str(len(refused.body)),
        "retry-after": "60",
        "ratelimit-policy": '"default";q=2;w=120',
        "ratelimit": '"default";r=0;t=60',
    } == refused.headers
    problem = json.loads(refused.body)
    assert (QUOTA_EXCEEDED, 429, ["default"]) == (problem["type"], problem["status"], problem["violated-policies"])


async def test_a_route_tells_the_same_headers() -> None:
    limiter = bucket(1, name="secret")
    app = RateLimitMiddleware(ok, KeyedLimiter(lambda client: limiter))
    for refused in (False, True):
        sent = (await ask(app)).headers
        told = {name.lower(): value for name, value in rate_limit_headers(limiter, "secret", refused=refused).items()}
        assert told == {name: sent[name] for name in ("retry-after", "ratelimit-policy", "ratelimit") if name in sent}
    assert '"default";r=0;t=60' == rate_limit_headers(limiter)["RateLimit"]


async def test_each_address_has_a_limit() -> None:
    app = RateLimitMiddleware(ok, KeyedLimiter(lambda client: bucket(1)))

    statuses = [(await ask(app, scope_of(address))).status for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1")]

    assert [200, 200, 429] == statuses


async def test_key_may_be_async_and_none_is_not_limited() -> None:
    async def user(scope: Any) -> str | None:
        await asyncio.sleep(0)
        return None if scope["path"] == "/health" else scope["user"]

    limiters = KeyedLimiter(lambda client: bucket(1))
    app = RateLimitMiddleware(ok, limiters, key=user)

    health = [await ask(app, scope_of(path="/health", user="a")) for _ in range(3)]
    statuses = [(await ask(app, scope_of(user=name))).status for name in "aba"]

    assert [200] * 3 == [answer.status for answer in health]
    assert {"x-app": "yes"} == health[0].headers
    assert [200, 200, 429] == statuses
    assert {"a", "b"} == set(limiters)


async def test_closed_limiter_lets_nothing_through() -> None:
    limiter = bucket()
    await limiter.aclose()

    with pytest.raises(LimiterClosed):
        await ask(RateLimitMiddleware(ok, limiter))


async def test_other_scopes_pass_untouched() -> None:
    seen: list[object] = []

    async def app(*arguments: object) -> None:
        seen.extend(arguments)

    limiter, send = bucket(1), Answer().send
    scopes = [{"type": kind} for kind in ("websocket", "lifespan", "x-unknown") * 2]
    for scope in scopes:
        await RateLimitMiddleware(app, limiter)(scope, nothing, send)

    assert [each for scope in scopes for each in (scope, nothing, send)] == seen
    assert 0 == limiter.statistics().granted


async def test_several_limits_are_several_policies() -> None:
    limiters = KeyedLimiter(
        lambda client: Limiter(AllOf(TokenBucket("1/min", burst=2), SlidingWindow("100/h")), clock=ManualClock()),
        shared=Limiter(TokenBucket("1/min", burst=1), name="all clients", clock=ManualClock()),
    )
    app = RateLimitMiddleware(ok, limiters)
    await ask(app)

    refused = await ask(app)

    assert '"default";q=2;w=120, "default-2";q=100;w=3600, "all clients";q=1;w=60' == refused.headers["ratelimit-policy"]
    assert '"default";r=1;t=60, "default-2";r=99;t=3600, "all clients";r=0;t=60' == refused.headers["ratelimit"]
    assert ["all clients"] == json.loads(refused.body)["violated-policies"]


async def test_place_is_held_until_the_application_returns() -> None:
    limiter, going = bucket(100, max_concurrency=1), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/error":
            raise ZeroDivisionError
        if scope["path"] == "/slow":
            await going.wait()
        await ok(scope, receive, send)

    limited = RateLimitMiddleware(app, limiter)
    slow = asyncio.create_task(ask(limited, scope_of(path="/slow")))
    await asyncio.sleep(0)

    refused = await ask(limited)
    assert (429, "1") == (refused.status, refused.headers["retry-after"])
    assert [] == json.loads(refused.body)["violated-policies"]
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    with pytest.raises(ZeroDivisionError):
        await ask(limited, scope_of(path="/error"))
    assert 200 == (await ask(limited)).status


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_dry_run_refuses_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It counts, logs the number at most once a second, and tells clients nothing, because those that obey would slow down."""

    limiter = Limiter(TokenBucket("1/min", burst=2))
    app = RateLimitMiddleware(ok, limiter, dry_run=True)
    for second in range(3):
        answers = [await ask(app) for _ in range(4)]
        assert [{"x-app": "yes"}] * 4 == [answer.headers for answer in answers]
        assert 2 + 4 * second == app.would_refuse
        await asyncio.sleep(1)
    await limiter.aclose()  # whose errors refuse nobody either
    assert (200, 11) == ((await ask(app)).status, app.would_refuse)

    assert ["1", "3", "7", "11"] == [record.getMessage().split()[-1] for record in caplog.records]


async def test_wrong_arguments_are_refused_at_once() -> None:
    table: list[tuple[Any, str]] = [
        (lambda: RateLimitMiddleware(bucket(), ok), "an ASGI application, not Limiter"),
        (lambda: RateLimitMiddleware(ok, Budget(requests="10/s")), "a KeyedLimiter or a Limiter, not Budget"),
        (lambda: RateLimitMiddleware(ok, KeyedLimiter), "not the class KeyedLimiter"),
        (lambda: RateLimitMiddleware(ok, bucket(), key="address"), "function of the scope.*not str"),
        (lambda: rate_limit_headers(KeyedLimiter(lambda client: "1/s")), r"such as keyed\[key\], not KeyedLimiter"),
    ]
    for call, hint in table:
        with pytest.raises(TypeError, match=hint):
            call()


async def test_paused_and_stopped_limiters_tell_when_to_come_back() -> None:
    """A pause has an end. Nobody knows that of a stop: the client may ask again in a second."""
    limiter = bucket(10)
    app = RateLimitMiddleware(ok, limiter)
    limiter.pause(90.5)
    paused = await ask(app)
    limiter.resume()
    limiter.apply("100,1.0,stop")
    stopped = await ask(app)

    assert (429, "91", '"default";r=0;t=91') == (paused.status, paused.headers["retry-after"], paused.headers["ratelimit"])
    assert (429, "1", '"default";r=0') == (stopped.status, stopped.headers["retry-after"], stopped.headers["ratelimit"])


async def test_names_of_keys_are_not_sent() -> None:
    """A limit of a store has the key in its name, and a key may be secret, whether it is text or not."""
    keys: list[tuple[Any, str, str | None, str]] = [
        ("s3cret", "token s3cret", None, "default"),
        ("s3cret", "basic", None, "basic"),
        (("token", "s3cret"), "token:s3cret", None, "default"),
        (("token", "s3cret"), "token:s3cret", "users", "users"),
    ]
    for key, own, name, told in keys:
        app = RateLimitMiddleware(ok, KeyedLimiter(lambda key, own=own: bucket(name=own), name=name), key=lambda scope, key=key: key)

        assert f'"{told}";q=2;w=120' == (await ask(app)).headers["ratelimit-policy"]


async def test_keys_that_cannot_be_are_errors() -> None:
    """Nothing is sent, and an error of the function is the application's."""

    def broken() -> Any:
        raise KeyError("x-api-key")

    limiters = KeyedLimiter(lambda key: bucket(1))
    keys: list[tuple[Any, Any, str]] = [
        (lambda: ["a"], TypeError, "unhashable"),
        (broken, KeyError, "x-api-key"),
    ]
    for key, error, hint in keys:
        answer = Answer()
        with pytest.raises(error, match=hint):
            await RateLimitMiddleware(ok, limiters, key=lambda scope, key=key: key())(scope_of(), nothing, answer.send)
        assert [] == answer.messages
