"""Rate limits for servers: an ASGI middleware that answers 429, and tells every client what it has left. Imports no framework.

>>> app.add_middleware(RateLimitMiddleware, limiter=KeyedLimiter(lambda client: TokenBucket("5/s", burst=10)))

Nothing waits: a request is let through or refused at once. The limiter decides; here is only what is told of it:

* RateLimit and RateLimit-Policy: https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11, sections 3 to 5
* structured fields: RFC 9651, https://www.rfc-editor.org/rfc/rfc9651#section-4.1
* problem details: RFC 9457, https://www.rfc-editor.org/rfc/rfc9457
"""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from inspect import isawaitable
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from aiorate._errors import LimiterError, LineFull, WaitTooLong, kind_of
from aiorate._keyed import KeyedLimiter
from aiorate._limiter import Limiter
from aiorate._rate import NS_PER_SECOND, ceil_div
from aiorate._schedulers.interface import NOBODY_KNOWS
from aiorate._tree.limit import OWN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, MutableMapping

    from aiorate._rate import Rate

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

__all__ = ["RateLimitMiddleware", "client_address", "rate_limit_headers"]

_logger = logging.getLogger("aiorate")


# The key of a request by default.

_NETWORK = 64  # bits: a provider gives all the rest to one customer
_IPV4_INSIDE = [IPv6Network(net) for net in ("::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")]  # mapped, SIIT, NAT64


def client_address(scope: Mapping[str, Any]) -> str:
    """Return the client's address, as the server saw it: ``"192.0.2.7"``, or the network ``"2001:db8:1:2::/64"`` for IPv6.

    A customer of a provider has 2**64 addresses of IPv6 or more, so a limit for each of them would not be a limit. An IPv4 address inside
    an IPv6 address (mapped, SIIT or NAT64) counts as the IPv4 address. Headers of proxies are not read, because any client can send them.
    Without an address, as behind a Unix socket, the key is ``""``.
    """
    client = scope.get("client")
    host: object = client[0] if client else ""
    if not isinstance(host, str):
        return ""
    return _network(host) if ":" in host else host


@lru_cache(1024)
def _network(host: str) -> str:
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    if any(address in network for network in _IPV4_INSIDE):
        return str(IPv4Address(int(address) & 0xFFFF_FFFF))
    if address.is_loopback or address.is_link_local:
        return host
    return str(IPv6Network((int(address), _NETWORK), strict=False))


# What clients are told.

_MOST = 999_999_999_999_999  # the largest integer of a structured field: RFC 9651, section 3.3.1
_LONGEST_NAME = 64  # characters: aiorate reads fields of up to 1024
_PRINTABLE = bytes(range(0x20, 0x7F)).decode()
_UNKNOWN = NOBODY_KNOWS >> 1  # ns: no wait is that long


def rate_limit_headers(limiter: Limiter, name: str = "default", *, refused: bool = False) -> dict[str, str]:
    """The headers RateLimit-Policy and RateLimit for a limiter as it stands now, as the middleware sends them.

    Args:
        limiter: The limiter that was asked. For a key of a `KeyedLimiter`, ``keyed[key]``.
        name: The name of the policy. Clients see it, so it should not be a key.
        refused: Whether the answer is a 429, and has Retry-After as well.
    """
    return _standing(limiter, name).headers(refused)


class _Standing(NamedTuple):
    """How the policies of a limiter stand: its own, those of limits that it shares, and its places."""

    policy: str
    left: str
    violated: tuple[str, ...]
    """The names of the policies with nothing left; of all, if each has something now."""
    seconds: int
    """Until these have something; 1 if that is unknown."""

    def headers(self, refused: bool) -> dict[str, str]:
        told = {"RateLimit-Policy": self.policy, "RateLimit": self.left}
        return {"Retry-After": str(self.seconds), **told} if refused else told


def _standing(limiter: Limiter, name: str) -> _Standing:
    quotas, lefts = limiter._node.tree.run(_read, limiter, name)
    policy, policies = _written(tuple(quotas))
    told, violated, longest = [], [], 1
    for (title, start, window), (left, wait) in zip(policies, lefts, strict=True):
        if wait is None:
            delay = limiter.delay()
            seconds = min(ceil(delay), _MOST) if isfinite(delay) else 0
        else:
            seconds = 0 if wait >= _UNKNOWN else _seconds(wait) if wait > 0 else window
        told.append(f"{start}{left};t={seconds}" if seconds else f"{start}{left}")
        if not left:
            violated.append(title)
            longest = max(longest, seconds)
    return _Standing(policy, ", ".join(told), tuple(violated or [title for title, _, _ in policies]), longest)


def _read(limiter: Limiter, name: str) -> tuple[list[tuple[str, int, Rate | None]], list[tuple[int, int | None]]]:
    """The policies; and of each what is left, and in how many ns there is more. None: it is held up, and the limiter says for how long."""
    quotas: list[tuple[str, int, Rate | None]] = []
    lefts: list[tuple[int, int | None]] = []
    title, level = name, limiter._node
    while True:
        now = level.now()  # which ends a pause that is over
        held = level.is_held
        for (most, rate), (left, at) in zip(level.scheduler._quotas(), level.permitted._standings(now), strict=True):
            quotas.append((title, most, rate))
            lefts.append((0, None) if held else (left if left < _MOST else _MOST, at - now))
        if level.above is None:
            break
        level = level.above
        title = level.name or "shared"
    for places in limiter._all_places:
        title = name if places is limiter._places else (places.above and places.above.name) or "shared"
        quotas.append((f"{title}-concurrent", places.scheduler.size, None))  # type: ignore[attr-defined]  # Places
        lefts.append((0 if places.line.is_waited_in else places.scheduler.available(0), _UNKNOWN))
    return quotas, lefts


@lru_cache(256)  # limits: those of all keys are mostly the same
def _written(quotas: tuple[tuple[str, int, Rate | None], ...]) -> tuple[str, list[tuple[str, str, int]]]:
    """RateLimit-Policy; and of each quota its name, how RateLimit begins, and its window in seconds."""
    policies: list[tuple[str, str, int]] = []
    items = []
    names = set[str]()
    for name, most, rate in quotas:
        # All different, of characters that a structured field may hold.
        plain = quote(name, safe=_PRINTABLE, errors="surrogatepass")[:_LONGEST_NAME] or "default"
        numbered = (f"{plain}-{count}" if count > 1 else plain for count in range(1, len(quotas) + 1))
        title = next(each for each in numbered if each not in names)
        names.add(title)
        window = 0 if rate is None else _seconds(ceil_div(most * rate.period_ns, rate.permits))
        policies.append((title, f"{json.dumps(title)};r=", window))
        items.append(f"{json.dumps(title)};q={min(most, _MOST)};" + (f"w={window}" if window else 'qu="concurrent-requests"'))
    return ", ".join(items), policies


def _seconds(ns: int) -> int:
    """Whole seconds, rounded up, at least 1: a client that comes back after them is not early."""
    return min(max(ceil_div(ns, NS_PER_SECOND), 1), _MOST)


@lru_cache(256)
def _problem(seconds: int, violated: tuple[str, ...]) -> bytes:
    """The body of the answer to a request that was refused."""
    problem = {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too many requests: a quota is exceeded",
        "status": 429,
        "detail": f"Send the request again in {seconds} second{'s' * (seconds > 1)}.",
        "violated-policies": violated,
    }
    return json.dumps(problem).encode()


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

    def __init__(
        self,
        app: App,
        limiter: Limiter | KeyedLimiter[Any],
        *,
        key: Callable[[Scope], Hashable | Awaitable[Hashable]] = client_address,
        dry_run: bool = False,
    ) -> None:
        if not callable(app) or isinstance(app, (Limiter, KeyedLimiter)):
            raise TypeError(f"RateLimitMiddleware(app) must be an ASGI application, not {kind_of(app)}.")
        if not isinstance(limiter, (Limiter, KeyedLimiter)):
            raise TypeError(f"RateLimitMiddleware(limiter) must be a KeyedLimiter or a Limiter, not {kind_of(limiter)}.")
        if not callable(key):
            raise TypeError(f"RateLimitMiddleware(key) must be a function of the scope, such as client_address, not {kind_of(key)}.")
        if not isinstance(dry_run, bool):
            raise TypeError(f"RateLimitMiddleware(dry_run) must be True or False, not {kind_of(dry_run)}.")
        self.app: App = app
        """The application."""
        self.dry_run: bool = dry_run
        """Whether requests are only counted."""
        self.would_refuse: int = 0
        """With ``dry_run``: how many requests would have been refused."""
        self._limiter = limiter
        self._key = key
        self._logged_at: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI 3 defines it."""
        key: Any = self._key(scope) if scope["type"] == "http" else None
        if not isinstance(key, str) and isawaitable(key):
            key = await key
        if key is None:
            await self.app(scope, receive, send)
            return
        try:
            limiter = self._limiter[key] if isinstance(self._limiter, KeyedLimiter) else self._limiter
        except LimiterError:  # closed
            if not self.dry_run:
                raise
            self.would_refuse += 1
            await self.app(scope, receive, send)
            return
        try:
            entered = await _enter_at_once(limiter)
        except LimiterError:  # closed, or without its store
            if not self.dry_run:
                raise
            entered = False
        if self.dry_run:
            if not entered:
                self._count(limiter)
        elif entered:
            send = _telling(send, limiter, self._name_of(limiter, key))
        else:
            await self._refuse(scope, send, _standing(limiter, self._name_of(limiter, key)))
            return
        try:
            await self.app(scope, receive, send)
        finally:
            if entered:
                limiter._leave()

    async def _refuse(self, scope: Scope, send: Send, standing: _Standing) -> None:
        body = _problem(standing.seconds, standing.violated)
        headers = _fields(standing.headers(True) | {"Content-Type": "application/problem+json", "Content-Length": str(len(body))})
        await send({"type": "http.response.start", "status": 429, "headers": headers})
        if scope.get("method") == "HEAD":  # in capitals: "head" is another method, whose answer has a body (RFC 9110, section 9.1)
            body = b""
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _name_of(self, limiter: Limiter, key: Hashable) -> str:
        if self._limiter.name or limiter is self._limiter:
            return self._limiter.name or "default"
        # A name with the key in it, as limiters of a store need, differs for each client, and a key may be secret.
        return limiter.name if limiter.name and str(key) not in limiter.name else "default"

    def _count(self, limiter: Limiter) -> None:
        self.would_refuse += 1
        now = limiter._node.read()
        if self._logged_at is None or not 0 <= now - self._logged_at < NS_PER_SECOND:
            self._logged_at = now
            _logger.warning("dry run: requests that would have been refused until now: %d", self.would_refuse)


async def _enter_at_once(limiter: Limiter) -> bool:
    """Take a permit, and a place where there is a limit of concurrency, if both are free now. A store is asked once.

    ``limiter._leave()`` must follow True.
    """
    for index, places in enumerate(limiter._all_places):
        if not places.take_place():
            for taken in limiter._all_places[:index]:
                taken.leave_place()
            return limiter._refuse_try()
    entered = False
    try:
        if limiter._node.provider is OWN:
            entered = limiter.try_acquire()
        else:
            await limiter.acquire(max_wait=0)
            entered = True
    except (WaitTooLong, LineFull):
        pass
    finally:
        if not entered:
            limiter._leave()
    if entered:
        limiter._hold(0)
    return entered


def _telling(send: Send, limiter: Limiter, name: str) -> Send:
    """Send the headers with the answer."""
    started = False

    def send_with_headers(message: Message) -> Awaitable[None]:
        # A plain function, so that each chunk of a stream goes straight to the server.
        nonlocal started
        if not started and message["type"] == "http.response.start":
            started = True
            headers: Iterable[tuple[bytes, bytes]] = message.get("headers") or ()
            # With a copy, because the application may use its own again.
            message = dict(message, headers=[*headers, *_fields(_standing(limiter, name).headers(False))])
        return send(message)

    return send_with_headers


def _fields(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]
