"""Applications, servers and clients that do what they should not: the middleware changes nothing for them, and refuses all the same."""

from __future__ import annotations

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
]


async def test_all_messages_but_starts_are_the_applications() -> None:
    """They reach the server as the same objects."""
    for messages in MESSAGES:
        answer = Answer()
        await limited(sending(*messages))(scope_of(), nothing, answer.send)

        for sent, got in zip(messages, answer.messages, strict=True):
            if sent == START:
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
    ({"client": ("64:ff9b::192.0.2.7", 1)}, "192.0.2.7"),
    ({"client": ("::ffff:0:192.0.2.7", 1)}, "192.0.2.7"),
    ({"client": ("64:ff9b:1::c000:207", 1)}, "64:ff9b:1::/64"),
    ({"client": ("::1", 1)}, "::1"),
    ({"client": ("fe80::1%eth0", 1)}, "fe80::1%eth0"),
    ({"client": (":" * 9, 1)}, ":::::::::"),
    ({"headers": [(b"x-forwarded-for", b"203.0.113.9")]}, "192.0.2.1"),
]


async def test_address_of_the_client() -> None:
    """What a client sends in headers is not believed; one network of IPv6 is one client, but an IPv4 inside IPv6 (mapped, NAT64, SIIT) is
    that IPv4; unknown ones have one limit, not none."""
    for more, key in ADDRESSES:
        assert key == client_address(scope_of(**more)), more
    app = RateLimitMiddleware(ok, KeyedLimiter(lambda client: Limiter(TokenBucket("1/min", 1), clock=ManualClock())))
    assert [200, 429] == [(await ask(app, {"type": "http"})).status for _ in range(2)]
    assert [200, 429] == [(await ask(app, scope_of() | {"client": ("192.0.2.1", port)})).status for port in (1, 2)]


async def test_refusal_does_not_depend_on_the_method() -> None:
    app = limited(ok, burst=1)
    await ask(app)
    for method in ("GET", "get", "", "HEAD", "head", "BREW", None, 7):
        refused = await ask(app, scope_of(method=method))
        assert (429, (await ask(app)).headers) == (refused.status, refused.headers), method


async def test_refused_request_is_not_read() -> None:
    async def never() -> Any:
        raise AssertionError("the body was asked for")

    app, answer = limited(ok, burst=1), Answer()
    await ask(app)
    await app(scope_of(method="POST"), never, answer.send)

    assert 429 == answer.status
