"""Arguments that hooks, transport and middleware refuse, the names of origins, and the type of a limiting transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import httpx
import httpx2
import pytest
import yarl

import aiorate.aiohttp
import aiorate.http
from aiorate import Budget, KeyedLimiter, Limiter, TokenBucket
from aiorate.http import hooks, limit_transport

PACKAGES = pytest.mark.parametrize("package", [httpx2, httpx], ids=["httpx2", "httpx"])
WAYS: list[Callable[..., object]] = [
    aiorate.http.hooks,
    lambda *args, **options: limit_transport(httpx2.AsyncHTTPTransport(verify=False), *args, **options),
    aiorate.aiohttp.middleware,
]
REQUEST = httpx2.Request("GET", "https://EXAMPLE.com/path")


def test_wrong_arguments_are_refused_at_once() -> None:
    """Where the client is made, not at its first request in the night."""
    table: list[tuple[list[Any], dict[str, Any], type[Exception], str]] = [
        (["10/s"], {}, TypeError, r"not str. Write Limiter\('100/s'\)"),
        ([10], {}, TypeError, "takes a Limiter, a KeyedLimiter"),
        ([None], {}, TypeError, "not NoneType"),
        ([Limiter], {}, TypeError, "not the class Limiter"),
        ([[Limiter("1/s")]], {}, TypeError, "not list"),
        ([asyncio.Semaphore()], {}, TypeError, "not Semaphore"),
        ([Limiter("1/s")], {"key": str}, TypeError, "Leave key= out, or pass one limiter for each key"),
        *(
            ([Budget(requests="1/s")], option, TypeError, "only observes")
            for option in ({"cost": len}, {"max_wait": 1}, {"feedback": False})
        ),
        *(([Limiter("1/s")], {"max_wait": wait}, ValueError, r"\(max_wait=.*0 seconds or more") for wait in (-1, timedelta(-1))),
        *(
            ([Limiter("1/s")], {"max_wait": wait}, ValueError, "max_wait=")
            for wait in (float("inf"), float("nan"), 10**400, Decimal("sNaN"))
        ),
        *(([Limiter("1/s")], {"max_wait": wait}, TypeError, "a number of seconds") for wait in (True, "1")),
    ]
    for limit in WAYS:
        for args, options, error, hint in table:
            with pytest.raises(error, match=hint):
                limit(*args, **options)
        for limiters in (Limiter("1/s"), {}):
            assert limit(limiters, max_wait=timedelta(seconds=2)) is not None


@pytest.mark.asyncio
async def test_a_key_without_a_limiter_says_so() -> None:
    """Nothing is sent."""
    table: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ({"https://example.com": Limiter("1/s")}, {}, LookupError, "'https://example.com:443'"),
        ({}, {"key": lambda request: 7}, LookupError, "7"),
        (KeyedLimiter(lambda key: "1/s"), {"key": lambda request: None}, TypeError, "key must return text, .* not None"),
        (KeyedLimiter(lambda key: "1/s"), {"key": lambda request: []}, TypeError, "unhashable.*'list'"),
        (KeyedLimiter(lambda key: "1/s"), {"key": lambda request: asyncio.sleep(0)}, TypeError, "a coroutine cannot be a key"),
        ({}, {"key": lambda request: ([],)}, TypeError, "unhashable.*'list'"),
        ({"x": "10/s"}, {"key": lambda request: "x"}, TypeError, r"limiter for 'x' must be a Limiter, not str. Write Limiter\('100/s'\)"),
    ]
    for limiters, options, error, hint in table:
        with pytest.raises(error, match=hint):
            await hooks(limiters, **options)["request"][0](REQUEST)


@pytest.mark.asyncio
async def test_any_hashable_value_may_be_a_key() -> None:
    """Users and tenants have numbers, and pairs of numbers."""
    for key in (("acme", "gpt"), 7, b"x"):
        keyed: KeyedLimiter[Any] = KeyedLimiter(lambda key: TokenBucket("1/h", burst=2))
        one = {key: Limiter(TokenBucket("1/h", burst=2))}
        for limiters in (keyed, one):
            await hooks(limiters, key=lambda request, key=key: key)["request"][0](REQUEST)  # type: ignore[misc]

        assert [1, 1] == [keyed[key].statistics().granted, one[key].statistics().granted], key


@pytest.mark.asyncio
async def test_wrong_costs_and_extensions_are_refused_before_sending() -> None:
    """A misspelt cost must not count as a cost of one, and a function may compute nonsense."""
    limiter = Limiter(TokenBucket("10/s", burst=10))
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200)

    table: list[tuple[Any, type[Exception], str]] = [
        (7, TypeError, "not a mapping"),
        ({"costs": 7}, TypeError, "'costs'"),
        ({"cost": -1}, ValueError, "0: not limited"),
        ({"cost": True}, TypeError, "not bool"),
        ({"cost": 1.5}, TypeError, "not float"),
        ({"cost": 11}, ValueError, "never grants more than 10"),
        ({"max_wait": -1}, ValueError, "0 seconds or more"),
        ({"max_wait": "2"}, TypeError, "a number of seconds"),
        ({"max_wait": float("nan")}, ValueError, "finite"),
    ]
    async with httpx2.AsyncClient(transport=limit_transport(httpx2.MockTransport(answer), limiter)) as client:
        for wishes, error, hint in table:
            with pytest.raises(error, match=hint):
                await client.get("https://example.com", extensions={"aiorate": wishes})
    for cost, wrong in ((-1, ValueError), (True, TypeError), (1.0, TypeError), (None, TypeError), (11, ValueError)):
        with pytest.raises(wrong):
            await hooks(limiter, cost=lambda request, cost=cost: cost)["request"][0](REQUEST)  # type: ignore[misc]

    assert sent == []
    assert limiter.statistics().granted == 0


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_every_client_names_an_origin_the_same() -> None:
    """One budget serves one server, whichever client is used and however the address is spelt."""
    seen: list[str] = []

    class Noting(dict[str, Limiter]):
        def __missing__(self, key: str) -> Limiter:
            seen.append(key)
            return Limiter("1/s")

    class Request:
        def __init__(self, url: Any) -> None:
            self.url = url

    async def handler(request: object) -> Any:
        return SimpleNamespace(status=200, headers={})

    table = [
        ("http://example.com", "http://example.com:80"),
        ("HTTPS://Api.EXAMPLE.com/path?query", "https://api.example.com:443"),
        ("https://user:secret@example.com:8443/", "https://example.com:8443"),
        ("https://[::1]:8443/", "https://[::1]:8443"),
        ("https://bücher.example/", "https://xn--bcher-kva.example:443"),
        ("wss://example.com/socket", "https://example.com:443"),
        ("ws://example.com/socket", "http://example.com:80"),
    ]
    for url, key in table:
        seen.clear()
        for package in (httpx2, httpx):
            await hooks(Noting())["request"][0](package.Request("GET", url))
        await aiorate.aiohttp.middleware(Noting())(Request(yarl.URL(url)), handler)  # type: ignore[arg-type]
        assert [key] * 3 == seen, url


@PACKAGES
def test_a_limiting_transport_is_one_of_the_same_package(package: Any) -> None:
    """Libraries check isinstance(), and the two packages must not be mixed."""
    limited = limit_transport(package.AsyncHTTPTransport(), Limiter("1/s"))

    other = httpx if package is httpx2 else httpx2
    assert isinstance(limited, package.AsyncBaseTransport)
    assert not isinstance(limited, other.AsyncBaseTransport)


@PACKAGES
@pytest.mark.asyncio
async def test_opening_and_closing_reach_the_inner_transport(package: Any) -> None:
    """Otherwise its connections would be left open."""
    calls: list[object] = []

    class Inner(package.AsyncBaseTransport):  # type: ignore[misc]
        async def __aenter__(self) -> Inner:
            calls.append("enter")
            return self

        async def __aexit__(self, kind: Any = None, error: Any = None, trace: Any = None) -> None:
            calls.append(kind)

        async def aclose(self) -> None:
            calls.append("close")

    limited = limit_transport(Inner(), Limiter("1/s"))
    await limited.aclose()
    async with limited as opened:
        assert opened is limited
    with pytest.raises(ZeroDivisionError):
        async with package.AsyncClient(transport=limited):
            raise ZeroDivisionError

    assert ["close", "enter", None, "enter", ZeroDivisionError] == calls


@PACKAGES
def test_what_is_not_a_transport_is_refused(package: Any) -> None:
    """The error says what to write."""
    table: list[tuple[Callable[[Any], Any], str]] = [
        (lambda package: object(), "takes a transport.*not object"),
        (lambda package: package.AsyncHTTPTransport, "not the class AsyncHTTPTransport"),
        (lambda package: package.Client(), "not Client"),
        (lambda package: None, "not NoneType"),
    ]
    for inner, hint in table:
        with pytest.raises(TypeError, match=hint):
            limit_transport(inner(package), Limiter("1/s"))


@PACKAGES
def test_hooks_in_a_synchronous_client_fail(package: Any) -> None:
    """It would call the hook, drop the coroutine and send without a limit."""
    transport = package.MockTransport(lambda request: package.Response(200))
    with (
        package.Client(transport=transport, event_hooks=hooks(Limiter("1/s"))) as client,
        pytest.raises(RuntimeError, match=r"need an AsyncClient .* For a synchronous client, pass blocking_hooks"),
    ):
        client.get("https://example.com")


@PACKAGES
@pytest.mark.asyncio
async def test_a_request_that_is_sent_twice_is_heard_twice(package: Any) -> None:
    """The second response raised, because -1 requests were in flight."""
    transport = package.MockTransport(lambda request: package.Response(200, headers={"RateLimit": "limit=9, remaining=5, reset=9"}))
    async with package.AsyncClient(transport=transport, event_hooks=hooks(Limiter("100/s"))) as client:
        request = client.build_request("GET", "https://example.com")
        assert [each.status_code for each in await asyncio.gather(client.send(request), client.send(request))] == [200, 200]


@PACKAGES
@pytest.mark.asyncio
async def test_custom_hooks_may_be_added(package: Any) -> None:
    """The mapping is a new one each time, and belongs to the client alone."""
    limiter = Limiter("1/s")
    seen: list[int] = []

    async def before(request: object) -> None:
        seen.append(limiter.statistics().granted)

    mapping = hooks(limiter)
    mapping["request"] = [before, *mapping["request"], before]
    transport = package.MockTransport(lambda request: package.Response(200))
    async with package.AsyncClient(transport=transport, event_hooks=mapping) as client:
        await client.get("https://example.com")

    assert seen == [0, 1]
    assert len(hooks(limiter)["request"]) == 1
