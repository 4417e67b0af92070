"""RateLimitMiddleware: limits the HTTP requests of an ASGI 3 application. Pure ASGI, for any framework and server, asyncio and trio.

Nothing waits: a request is let through or refused at once. The limiter decides; here is only what ASGI asks for.
"""

from __future__ import annotations

import logging
from inspect import isawaitable
from math import isnan
from types import CoroutineType
from typing import TYPE_CHECKING, Any
from weakref import ref

from aiorate._errors import LimiterError, LineFull, WaitTooLong, kind_of
from aiorate._keyed import KeyedLimiter
from aiorate._limiter import Limiter
from aiorate._tree.limit import OWN
from aiorate.asgi._address import client_address
from aiorate.asgi._fields import refused
from aiorate.asgi._policies import Policies

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, MutableMapping

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

__all__ = ["RateLimitMiddleware"]

_logger = logging.getLogger("aiorate")

_PLAIN = frozenset({str, int, tuple, bytes, type(None)})  # types of keys that are not awaitable
_SECOND = 1_000_000_000  # ns
_OF_THE_SCOPE = (
    "RateLimitMiddleware(key) is called with the ASGI scope, a dict: write key=lambda scope: scope['path'], or leave it out, for the"
    " client's address. A request object can be made of it: starlette.requests.Request(scope)."
)


class RateLimitMiddleware:
    """Let HTTP requests through to an ASGI application, or answer 429.

    A refused request gets 429 with Retry-After and a body of application/problem+json. Every answer gets RateLimit-Policy and RateLimit, so
    clients can slow down before they are refused. No request ever waits. Web sockets and lifespan events pass untouched.

    Args:
        app: The application.
        limiter: A `KeyedLimiter`, a `Limiter` for all clients together, or a `RedisLimiter`.
        key: A function of the ASGI scope, plain or async, that names the client; None means that the request is not limited. By default
            `client_address`.
        dry_run: Let everything through, and count in `would_refuse` what would have been refused.

    Errors of the key function and of the limiter are errors of the application: the request is not let through.
    """

    __slots__ = (
        "__weakref__",
        "_forget",
        "_has_keys",
        "_key",
        "_limiter_of",
        "_logged_at",
        "_name",
        "_policies",
        "app",
        "dry_run",
        "would_refuse",
    )

    def __init__(
        self,
        app: App,
        limiter: Limiter | KeyedLimiter[Any],
        *,
        key: Callable[[Scope], Hashable | Awaitable[Hashable]] = client_address,
        dry_run: bool = False,
    ) -> None:
        _check(app, limiter, key, dry_run)
        self.app: App = app
        """The application."""
        self.dry_run: bool = dry_run
        """Whether requests are only counted."""
        self.would_refuse: int = 0
        """With ``dry_run``: how many requests would have been refused."""
        self._key = key
        self._has_keys: bool = isinstance(limiter, KeyedLimiter)
        self._name: str | None = limiter.name
        self._limiter_of: Callable[[Any], Limiter] = limiter.__getitem__ if isinstance(limiter, KeyedLimiter) else lambda key: limiter
        self._policies: dict[ref[Limiter], Policies] = {}
        self._forget: Callable[[ref[Limiter]], object] = self._policies.pop  # one for all limiters
        self._logged_at: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI 3 defines it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            key: Any = self._key(scope)
        except (AttributeError, TypeError) as error:
            error.add_note(_OF_THE_SCOPE)
            raise
        if type(key) not in _PLAIN:
            key = await _settled(key)
        if key is None:
            await self.app(scope, receive, send)
            return
        limiter = self._limiter_of(key)
        policies = self._policies.get(ref(limiter)) or self._describe(limiter, key)
        grab = policies.grab
        if (grab is None or not grab()) and not await self._enter(limiter):
            await self._refuse(scope, receive, send, limiter, policies)
            return
        if not self.dry_run:
            send = _with_fields(send, limiter, policies)
        if grab is not None:
            await self.app(scope, receive, send)
            return
        try:
            await self.app(scope, receive, send)
        finally:
            limiter._leave()

    async def _enter(self, limiter: Limiter) -> bool:
        try:
            return await _enter_at_once(limiter)
        except LimiterError:  # closed, or without its store
            if not self.dry_run:
                raise
            return False

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, limiter: Limiter, policies: Policies) -> None:
        if self.dry_run:
            self._count(limiter)
            await self.app(scope, receive, send)
            return
        fields, violated, seconds = policies.refusal(limiter)
        headers, body = refused(seconds, violated)
        await send({"type": "http.response.start", "status": 429, "headers": [*headers, *fields]})
        if scope.get("method") == "HEAD":  # in capitals: "head" is another method, whose answer has a body (RFC 9110, section 9.1)
            body = b""
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _describe(self, limiter: Limiter, key: Hashable) -> Policies:
        # Dropped with the limiter, which a KeyedLimiter evicts.
        policies = self._policies[ref(limiter, self._forget)] = Policies(limiter, self._name_of(limiter, key))
        return policies

    def _name_of(self, limiter: Limiter, key: Hashable) -> str:
        if not self._has_keys:
            return limiter.name or "default"
        # A name with the key in it, as limiters of a store need, differs for each client, and a key may be secret.
        return self._name or (limiter.name if limiter.name and str(key) not in limiter.name else "default")

    def _count(self, limiter: Limiter) -> None:
        self.would_refuse += 1
        now = limiter._node.read()
        if self._logged_at is None or not 0 <= now - self._logged_at < _SECOND:
            self._logged_at = now
            _logger.warning("dry run: requests that would have been refused until now: %d", self.would_refuse)


async def _settled(key: Any) -> Any:
    """The key, awaited if it must be. Raises TypeError and ValueError for what would be another client at each request."""
    if isawaitable(key):
        key = await key
        if isawaitable(key):
            if isinstance(key, CoroutineType):
                key.close()  # or Python would also warn that it was never awaited
            raise TypeError(
                "RateLimitMiddleware(key): the function returned an awaitable whose result is another one. Await it in the function:"
                " async def key(scope): return await lookup(scope)."
            )
    if isinstance(key, float) and isnan(key):
        raise ValueError("RateLimitMiddleware(key): the function returned NaN, which equals no other key. Return text, or None (no limit).")
    return key


def _with_fields(send: Send, limiter: Limiter, policies: Policies) -> Send:
    started = False

    def send_with_fields(message: Message) -> Awaitable[None]:
        # A plain function, so that each chunk of a stream goes straight to the server.
        nonlocal started
        if not started:
            try:
                started = message["type"] == "http.response.start"
            except (TypeError, KeyError):  # not a message: the server says so
                return send(message)
            if started:  # with a copy, because the application may use its own again
                message = dict(message, headers=policies.add(message.get("headers") or (), limiter))
        return send(message)

    return send_with_fields


def _check(app: object, limiter: object, key: object, dry_run: object) -> None:
    call = "RateLimitMiddleware(app, limiter)"
    if isinstance(app, (Limiter, KeyedLimiter)):
        raise TypeError(f"{call}: the application comes first, and then the limiter.")
    if not callable(app):
        raise TypeError(f"{call}: app must be an ASGI application, a callable of scope, receive and send, not {kind_of(app)}.")
    if not isinstance(limiter, (Limiter, KeyedLimiter)):
        raise TypeError(f"{call}: limiter must be a Limiter or a KeyedLimiter, not {kind_of(limiter)}.{_instead_of(limiter)}")
    if not callable(key):
        raise TypeError(f"{call}: key must be a function of the scope, such as aiorate.asgi.client_address, not {kind_of(key)}.")
    if not isinstance(dry_run, bool):
        raise TypeError(f"{call}: dry_run must be True or False, not {kind_of(dry_run)}.")


def _instead_of(limiter: object) -> str:
    from aiorate._budget import Budget
    from aiorate._keyed_budget import KeyedBudget
    from aiorate._rate import Rate
    from aiorate._schedulers.interface import Scheduler

    if isinstance(limiter, (Budget, KeyedBudget)):
        return (
            " A request takes one permit of each limit, and a budget has amounts that only the application knows: reserve them there."
            " For several limits of requests, write KeyedLimiter(lambda client: AllOf(TokenBucket('5/s', 10), SlidingWindow('100/min')))."
        )
    if isinstance(limiter, (Rate, Scheduler, str, int, float)):
        return " For one limit for each client, write KeyedLimiter(lambda client: TokenBucket('5/s', burst=10))."
    if isinstance(limiter, dict):
        return " For a dict of limiters, write KeyedLimiter(limiters.__getitem__)."
    if callable(limiter):
        return " For a limit for each client, write KeyedLimiter(function)."
    return ""


async def _enter_at_once(limiter: Limiter) -> bool:
    """Take a permit, and a place where there is a limit of concurrency, if both are free now. A store is asked once.

    ``limiter._leave()`` must follow True.
    """
    for index, places in enumerate(limiter._all_places):
        if not places.take_place():
            for taken in limiter._all_places[:index]:
                taken.leave_place()
            return limiter._refuse_try()
    granted = False
    try:
        if limiter._node.provider is OWN:
            granted = limiter.try_acquire()
        else:
            await limiter.acquire(max_wait=0)
            granted = True
    except (WaitTooLong, LineFull):
        return False
    finally:
        if not granted:
            limiter._leave()
    if granted:
        limiter._hold(0)
    return granted
