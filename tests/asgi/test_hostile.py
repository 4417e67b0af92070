"""Applications, servers and clients that do what they should not: the middleware changes nothing for them, and refuses all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.asgi import Answer, App, ask, nothing, ok, scope_of

from aiorate import KeyedLimiter, Limiter, TokenBucket
from aiorate.asgi import RateLimitMiddleware, client_address
from aiorate.testing import ManualClock

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

FIELDS = ["ratelimit-policy", "ratelimit"]


def limited(app: App, burst: int = 10, **options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, Limiter(TokenBucket("1/min", burst=burst), clock=ManualClock()), **options)


def sending(*messages: Any) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    return app


START = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
BODY = {"type": "http.response.body", "body": b"ok"}


MESSAGES: list[list[Any]] = [
    [{"type": "http.response.debug", "info": {}}, START, BODY],
    [{"type": "http.response.early_hint", "links": [b"</style.css>; rel=preload"]}, START, BODY],
    [START, BODY, {"type": "http.response.trailers", "headers": [(b"x", b"y")], "more_trailers": False}],
    [START, {"type": "http.response.pathsend", "path": "/etc/hostname"}],
    [START, {"type": "http.response.zerocopysend", "file": 3}],
    [START, BODY, START, BODY],
    [BODY],
    [],
    *([message] for message in (None, 5, {}, {"kind": "x"}, [])),
]


async def test_all_messages_but_the_first_start_are_the_applications() -> None:
    """They reach the server as the same objects, also those that are none, which are the server's to refuse."""
    for messages in MESSAGES:
        answer = Answer()
        await limited(sending(*messages))(scope_of(), nothing, answer.send)

        first = messages.index(START) if START in messages else None
        for index, (sent, got) in enumerate(zip(messages, answer.messages, strict=True)):
            if index == first:
                assert [b"a", *(name.encode() for name in FIELDS)] == [name for name, _ in got["headers"]], messages
                assert {**sent, "headers": 0} == {**got, "headers": 0}, messages
            else:
                assert sent is got, messages
    assert [(b"a", b"b")] == START["headers"]


async def test_headers_of_the_application_may_be_any_iterable() -> None:
    """ASGI asks for an iterable of pairs, and they may be missing. Fields of these names are told too: they are lists."""
    own = [(b"RateLimit-Policy", b'"day";q=100;w=86400'), (b"RateLimit", b'"day";r=7;t=500')]
    for headers in (None, (), iter([(b"a", b"b")]), ((b"a", b"b"),), [[b"a", b"b"]], [(b"\xff\x00", b"\n")] * 3, own):
        start = {"type": "http.response.start", "status": 204} | ({} if headers is None else {"headers": headers})
        answer = await ask(limited(sending(start)))

        assert FIELDS == [bytes(name).decode("latin-1") for name, _ in answer.start["headers"][-2:]], headers
    assert answer.feedback is not None
    assert [("day", 7), ("default", 9)] == [(quota.name, quota.remaining) for quota in answer.feedback.quotas]


ADDRESSES: list[tuple[dict[str, Any], str]] = [
    ({}, "192.0.2.1"),
    ({"client": None}, ""),
    ({"client": ()}, ""),
    ({"client": ["192.0.2.7", 1]}, "192.0.2.7"),
    ({"client": (None, 0)}, ""),
    ({"client": (b"192.0.2.7", 0)}, ""),
    ({"client": ("", 0)}, ""),
    ({"client": ("testclient", 50_000)}, "testclient"),
    ({"client": ("2001:db8:1:2:3:4:5:6", 1)}, "2001:db8:1:2::/64"),
    ({"client": ("2001:db8:1:2::ffff", 1)}, "2001:db8:1:2::/64"),
    ({"client": ("::ffff:192.0.2.7", 1)}, "192.0.2.7"),
    ({"client": ("::1", 1)}, "::1"),
    ({"client": ("fe80::1%eth0", 1)}, "fe80::1%eth0"),
    ({"client": (":" * 9, 1)}, ":::::::::"),
    ({"headers": [(b"x-forwarded-for", b"203.0.113.9")]}, "192.0.2.1"),
]


async def test_address_of_the_client() -> None:
    """What a client sends in headers is not believed; one network of IPv6 is one client; unknown ones have one limit, not none."""
    for more, key in ADDRESSES:
        assert key == client_address(scope_of(**more)), more
    app = RateLimitMiddleware(ok, KeyedLimiter(lambda client: Limiter(TokenBucket("1/min", 1), clock=ManualClock())))
    assert [200, 429] == [(await ask(app, {"type": "http"})).status for _ in range(2)]
    assert [200, 429] == [(await ask(app, scope_of() | {"client": ("192.0.2.1", port)})).status for port in (1, 2)]


async def test_refusal_does_not_depend_on_the_method() -> None:
    """Only HEAD has no body, and the length of that which GET would have; "head" is another method."""
    app = limited(ok, burst=1)
    await ask(app)
    for method in ("GET", "get", "", "HEAD", "head", "BREW", None, 7):
        refused = await ask(app, scope_of(method=method))
        assert (429, (await ask(app)).headers) == (refused.status, refused.headers), method
        assert (b"" == refused.body) is (method == "HEAD"), method


async def test_refused_request_is_not_read() -> None:
    """Its body may be endless, or never come."""

    async def never() -> Any:
        raise AssertionError("the body was asked for")

    app, answer = limited(ok, burst=1), Answer()
    await ask(app)
    await app(scope_of(method="POST"), never, answer.send)

    assert 429 == answer.status


async def test_application_that_raises_has_spent_its_permit() -> None:
    """Its error passes through, and the next request is counted from there."""

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    app = limited(broken, burst=1)

    with pytest.raises(ZeroDivisionError):
        await ask(app)
    assert 429 == (await ask(app)).status


async def test_server_that_is_gone_is_the_applications_to_notice() -> None:
    """An error of send() in the middle of an answer passes through, also in the middle of a refusal."""

    async def gone(message: Any) -> None:
        raise OSError("disconnected")

    app = limited(ok, burst=1)
    for _ in range(2):
        with pytest.raises(OSError, match="disconnected"):
            await app(scope_of(), nothing, gone)


async def test_thousands_at_once_get_what_the_limit_allows() -> None:
    """No more and no fewer, whatever the order in which their applications go on."""

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0)
        await ok(scope, receive, send)

    answers = await asyncio.gather(*(ask(limited_app) for limited_app in [limited(slow, burst=123)] * 2_000))

    assert 123 == sum(answer.status == 200 for answer in answers)
    assert 0 == min(int(answer.headers["ratelimit"].partition("r=")[2].partition(";")[0]) for answer in answers)


async def test_addresses_are_kept_within_bounds() -> None:
    """A client that uses a new one for each request costs no memory in the end."""
    clock = ManualClock()
    limiters = KeyedLimiter(lambda client: Limiter(TokenBucket("1/s", 1), clock=clock), max_keys=100)
    app = RateLimitMiddleware(ok, limiters)

    for number in range(500):
        clock.advance(0.1)
        assert 200 == (await ask(app, scope_of(f"2001:db8:{number >> 8:x}:{number & 0xFF:x}::1"))).status

    assert len(limiters) <= 100


async def test_large_answer_passes_chunk_by_chunk() -> None:
    """Each chunk is with the server before the application makes the next, and none is kept."""
    count = 1 << 6
    sent = made = 0

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        nonlocal made
        await send(START)
        for _ in range(count):
            assert sent == made
            made += 1
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        await send({"type": "http.response.body"})

    async def take(message: Any) -> None:
        nonlocal sent
        await asyncio.sleep(0)
        sent += len(message.get("body", b"")) >> 20

    await limited(stream)(scope_of(), nothing, take)

    assert count == sent == made
