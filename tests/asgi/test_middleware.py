"""RateLimitMiddleware: which requests it lets through, what it answers to the others, and what it leaves alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from helpers.asgi import Answer, ask, nothing, ok, scope_of

from aiorate import AllOf, Budget, KeyedBudget, KeyedLimiter, Limiter, LimiterClosed, SlidingWindow, TokenBucket
from aiorate.asgi import RateLimitMiddleware
from aiorate.testing import ManualClock, VirtualLoop

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def bucket(burst: int = 2, rate: str = "1/min", **options: Any) -> Limiter:
    return Limiter(TokenBucket(rate, burst=burst), **{"clock": ManualClock(), **options})


@pytest.mark.asyncio
async def test_requests_beyond_the_burst_are_refused() -> None:
    """The answer says when to come back, what is allowed, and which limit it was."""
    app = RateLimitMiddleware(ok, bucket())

    answers = [await ask(app) for _ in range(3)]

    assert [200, 200, 429] == [answer.status for answer in answers]
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


@pytest.mark.asyncio
async def test_every_answer_tells_what_is_left() -> None:
    """Beside the headers of the application, which are not changed."""
    app = RateLimitMiddleware(ok, bucket(3))

    answers = [await ask(app) for _ in range(3)]

    assert ['"default";r=2;t=60', '"default";r=1;t=60', '"default";r=0;t=60'] == [answer.headers["ratelimit"] for answer in answers]
    assert ["yes"] * 3 == [answer.headers["x-app"] for answer in answers]
    assert b"ok" == answers[0].body


@pytest.mark.asyncio
async def test_each_address_has_a_limit() -> None:
    """A client that is refused does not keep others out."""
    app = RateLimitMiddleware(ok, KeyedLimiter(lambda client: bucket(1)))

    statuses = [(await ask(app, scope_of(address))).status for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1")]

    assert [200, 200, 429] == statuses


@pytest.mark.asyncio
async def test_key_may_be_async_and_none_is_not_limited() -> None:
    """An account is often looked up in a database."""

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


@pytest.mark.asyncio
async def test_error_of_the_key_function_is_the_applications_own() -> None:
    """Never a free pass."""

    def key(scope: Any) -> str:
        raise KeyError("x-api-key")

    answer = Answer()

    with pytest.raises(KeyError, match="x-api-key"):
        await RateLimitMiddleware(ok, bucket(), key=key)(scope_of(), nothing, answer.send)

    assert [] == answer.messages


@pytest.mark.asyncio
async def test_closed_limiter_lets_nothing_through() -> None:
    """It refuses with an error, because nobody can say when to come back."""
    limiter = bucket()
    await limiter.aclose()

    with pytest.raises(LimiterClosed):
        await ask(RateLimitMiddleware(ok, limiter))


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", ["websocket", "lifespan", "x-unknown"])
async def test_other_scopes_pass_untouched(kind: str) -> None:
    """The application gets the very objects that the server gave."""
    seen: list[object] = []

    async def app(*arguments: object) -> None:
        seen.extend(arguments)

    scope, limiter = {"type": kind}, bucket(1)
    send = Answer().send

    for _ in range(3):
        await RateLimitMiddleware(app, limiter)(scope, nothing, send)

    assert [scope, nothing, send] * 3 == seen
    assert 0 == limiter.statistics().granted


@pytest.mark.asyncio
async def test_answer_to_head_has_no_body() -> None:
    """Its length is that of the body which GET would have."""
    app = RateLimitMiddleware(ok, bucket(1))
    await ask(app)

    head, get = await ask(app, scope_of(method="HEAD")), await ask(app)

    assert (429, b"", get.headers) == (head.status, head.body, head.headers)
    assert str(len(get.body)) == head.headers["content-length"]


@pytest.mark.asyncio
async def test_several_limits_are_several_policies() -> None:
    """Those of a strategy of several, and the limit that all keys share."""
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


@pytest.mark.asyncio
async def test_place_is_held_until_the_application_returns() -> None:
    """Also when it raises or is cancelled, as when its client goes away."""
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
    assert ["default-concurrent"] == json.loads(refused.body)["violated-policies"]
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    with pytest.raises(ZeroDivisionError):
        await ask(limited, scope_of(path="/error"))
    assert 200 == (await ask(limited)).status


def test_dry_run_refuses_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It counts, logs the number at most once a second, and tells clients nothing, because those that obey would slow down."""

    async def main() -> None:
        app = RateLimitMiddleware(ok, Limiter(TokenBucket("1/min", burst=2)), dry_run=True)
        for second in range(3):
            answers = [await ask(app) for _ in range(4)]
            assert [{"x-app": "yes"}] * 4 == [answer.headers for answer in answers]
            assert 2 + 4 * second == app.would_refuse
            await asyncio.sleep(1)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())

    assert ["1", "3", "7"] == [record.getMessage().split()[-1] for record in caplog.records]


@pytest.mark.parametrize(
    ("arguments", "options", "hint"),
    [
        ((bucket(), ok), {}, "application comes first"),
        ((None, bucket()), {}, "an ASGI application.*not NoneType"),
        ((ok, Budget(requests="10/s")), {}, "not Budget.*AllOf"),
        ((ok, KeyedBudget(lambda key: Budget(requests="10/s"))), {}, "not KeyedBudget.*AllOf"),
        ((ok, TokenBucket("5/s", burst=5)), {}, "not TokenBucket.*KeyedLimiter"),
        ((ok, "5/s"), {}, "not str.*KeyedLimiter"),
        ((ok, KeyedLimiter), {}, "not the class KeyedLimiter"),
        ((ok, None), {}, "not NoneType"),
        ((ok, bucket()), {"key": "address"}, "function of the scope.*not str"),
        ((ok, bucket()), {"dry_run": 1}, "dry_run must be True or False, not int"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: tuple[Any, ...], options: dict[str, Any], hint: str) -> None:
    """Before the first request, and with what to write instead."""
    with pytest.raises(TypeError, match=hint):
        RateLimitMiddleware(*arguments, **options)


@pytest.mark.asyncio
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


@pytest.mark.asyncio
async def test_requests_behind_a_line_are_refused() -> None:
    """Other code may wait at the same limiter, and comes first."""
    limiter = bucket(1)
    app = RateLimitMiddleware(ok, limiter)
    await limiter.acquire()
    waiting = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0)

    answer = await ask(app)

    assert (429, '"default";r=0;t=120') == (answer.status, answer.headers["ratelimit"])
    waiting.cancel()


@pytest.mark.asyncio
async def test_change_of_the_rate_is_told_at_once() -> None:
    """For one limit and for several."""
    limiter, both = bucket(10), Limiter(AllOf(TokenBucket("1/min", 2), SlidingWindow("5/min")), clock=ManualClock())
    app, of_both = RateLimitMiddleware(ok, limiter), RateLimitMiddleware(ok, both)
    assert '"default";q=10;w=600' == (await ask(app)).headers["ratelimit-policy"]
    await ask(of_both)

    limiter.set_rate("10/s")
    both.set_rate("7/min", member=1)

    assert '"default";q=10;w=1' == (await ask(app)).headers["ratelimit-policy"]
    assert '"default";q=2;w=120, "default-2";q=7;w=60' == (await ask(of_both)).headers["ratelimit-policy"]


@pytest.mark.asyncio
async def test_names_with_the_key_in_them_are_not_sent() -> None:
    """A key may be secret, and one name is the same for all clients."""
    limiters = KeyedLimiter(lambda key: Limiter(TokenBucket("1/min", 2), name=f"token {key}" if key == "s3cret" else "basic"))
    app = RateLimitMiddleware(ok, limiters, key=lambda scope: scope["path"])

    policies = [(await ask(app, scope_of(path=path))).headers["ratelimit-policy"] for path in ("s3cret", "other")]

    assert ['"default";q=2;w=120', '"basic";q=2;w=120'] == policies


@pytest.mark.asyncio
@pytest.mark.parametrize("keyed", [True, False])
async def test_keys_that_equal_no_other_are_errors(keyed: bool) -> None:
    """Each request would be another client, with a full limit."""

    async def inner() -> str:
        raise AssertionError("never awaited")

    async def outer() -> Any:
        return inner()

    limiter = KeyedLimiter(lambda key: bucket(1)) if keyed else bucket(1)

    with pytest.raises(TypeError, match="Await it in the function"):
        await ask(RateLimitMiddleware(ok, limiter, key=lambda scope: outer()))
    with pytest.raises(ValueError, match="NaN"):
        await ask(RateLimitMiddleware(ok, limiter, key=lambda scope: float("nan")))


@pytest.mark.asyncio
async def test_dry_run_counts_errors_of_the_limiter() -> None:
    """It refuses nobody, whatever becomes of the limiter."""
    limiter = bucket()
    app = RateLimitMiddleware(ok, limiter, dry_run=True)
    await limiter.aclose()

    assert [200, 200] == [(await ask(app)).status for _ in range(2)]
    assert 2 == app.would_refuse


@pytest.mark.asyncio
async def test_name_of_all_keys_is_that_of_the_policy() -> None:
    """Whatever the limiters of the keys are called."""
    limiters = KeyedLimiter(lambda key: Limiter(TokenBucket("1/min", 2), name=f"of {key}"), name="users")

    answer = await ask(RateLimitMiddleware(ok, limiters))

    assert '"users";q=2;w=120' == answer.headers["ratelimit-policy"]
