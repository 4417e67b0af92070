"""Rate limits for servers: an ASGI middleware that answers 429, and tells every client what it has left. Imports no framework.

>>> app.add_middleware(RateLimitMiddleware, limiter=KeyedLimiter(lambda client: TokenBucket("5/s", burst=10)))

Nothing waits: a request is let through or refused at once. The sources of what clients are told:

* RateLimit and RateLimit-Policy: https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11, sections 3 to 5
* structured fields: RFC 9651, https://www.rfc-editor.org/rfc/rfc9651#section-4.1
* problem details: RFC 9457, https://www.rfc-editor.org/rfc/rfc9457
"""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from functools import lru_cache
from inspect import isawaitable
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aiorate._errors import LimiterError, LineFull, WaitTooLong, kind_of
from aiorate._limiters.keyed import KeyedLimiter
from aiorate._limiters.limiter import Limiter, leave_place, take_place
from aiorate._rate import NS_PER_SECOND, ceil_div
from aiorate._tree.provider import OWN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, MutableMapping

    from aiorate._tree.node import Node

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]
    _Told = tuple[list[tuple[bytes, bytes]], tuple[str, ...], int]

__all__ = ["RateLimitMiddleware", "client_address", "rate_limit_headers"]

_logger = logging.getLogger("aiorate")


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


_MOST = 999_999_999_999_999  # the largest integer of a structured field: RFC 9651, section 3.3.1
_LONGEST_NAME = 64  # characters: aiorate reads fields of up to 1024
_PLAIN = bytes({*range(0x20, 0x7F)} - {*b'"\\'}).decode()  # what a string of a structured field may hold as it is
_UNKNOWN = _MOST * NS_PER_SECOND  # a longer wait, in ns, cannot be written


def rate_limit_headers(limiter: Limiter, name: str = "default", *, refused: bool = False) -> dict[str, str]:
    """The headers RateLimit-Policy and RateLimit for a limiter as it stands now, as the middleware sends them.

    Args:
        limiter: The limiter that was asked. For a key of a `KeyedLimiter`, ``keyed[key]``.
        name: The name of the policy. Clients see it, so it should not be a key.
        refused: Whether the answer is a 429, and has Retry-After as well.
    """
    if not isinstance(limiter, Limiter):
        raise TypeError(f"rate_limit_headers() takes a Limiter, such as keyed[key], not {kind_of(limiter)}.")
    fields, _, retry_after = limiter._node.tree.run(_tell, limiter, name)
    policy, left = [value.decode() for _, value in fields]
    headers = {"RateLimit-Policy": policy, "RateLimit": left}
    return {"Retry-After": str(retry_after), **headers} if refused else headers


def _tell(limiter: Limiter, name: str) -> _Told:
    """The fields for a limiter and those that it shares, the policies with nothing left, and the seconds until all of these have something,
    1 if that is unknown. Places are not a quota, and clients are not told of them."""
    names: list[str] = []
    policies: list[str] = []
    lefts: list[str] = []
    violated: list[str] = []
    retry_after = 1
    level: Node | None = limiter._node
    while level is not None:
        now = level.now()  # which ends a pause that is over
        held = None
        if level.is_held:  # in how many ns a request of now would be granted
            wait = limiter._node.wait_for(1, limiter._node.informed())
            held = _UNKNOWN if wait is None else max(wait, 1)
        for most, rate, left, at in level.permitted._standings(now):
            names.append(name)
            title, policy, window = _policy(name, names.count(name), most, rate.permits, rate.period_ns)
            if held is not None:
                left, at = 0, now + held
            seconds = window if at <= now else -((now - at) // NS_PER_SECOND) if at - now < _UNKNOWN else 0
            policies.append(policy)
            lefts.append(f'"{title}";r={min(left, _MOST)}' + (f";t={seconds}" if seconds else ""))
            if not left:
                violated.append(title)
                retry_after = max(retry_after, seconds)
        level = level.above
        name = (level and level.name) or "shared"
    fields = [(b"ratelimit-policy", ", ".join(policies).encode()), (b"ratelimit", ", ".join(lefts).encode())]
    return fields, tuple(violated), retry_after


@lru_cache(256)  # limits: those of all keys are mostly the same
def _policy(name: str, number: int, most: int, permits: int, period_ns: int) -> tuple[str, str, int]:
    """Its title, which ``number`` tells from others of that name; how it is written; and its window in seconds."""
    plain = quote(name, safe=_PLAIN, errors="surrogatepass")[:_LONGEST_NAME] or "default"
    title = f"{plain}-{number}" if number > 1 else plain
    window = min(max(ceil_div(most * period_ns, permits * NS_PER_SECOND), 1), _MOST)
    return title, f'"{title}";q={min(most, _MOST)};w={window}', window


@lru_cache(256)
def _problem(violated: tuple[str, ...], seconds: int) -> bytes:
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
            return await self.app(scope, receive, send)
        limiter = self._limiter[key] if isinstance(self._limiter, KeyedLimiter) else self._limiter
        entered = False
        try:
            simple = not limiter._places and limiter._node.provider is OWN
            entered = limiter.try_acquire() if simple else await _enter_at_once(limiter)
        except (WaitTooLong, LineFull):
            pass
        except LimiterError:  # closed, or without its store
            if not self.dry_run:
                raise
        if self.dry_run:
            if not entered:
                self._count(limiter)
        elif entered:
            send = _telling(send, limiter, self._name_of(limiter, key))
        else:
            return await _refuse(send, *limiter._node.tree.run(_tell, limiter, self._name_of(limiter, key)))
        try:
            await self.app(scope, receive, send)
        finally:
            if entered:
                limiter._leave()

    def _name_of(self, limiter: Limiter, key: Hashable) -> str:
        own = limiter.name  # may hold the key, as limiters of a store need, and a key may be secret
        return self._limiter.name or (own if own and isinstance(key, str) and key not in own else "default")

    def _count(self, limiter: Limiter) -> None:
        self.would_refuse += 1
        now = limiter._node.tree.now()
        if self._logged_at is None or not 0 <= now - self._logged_at < NS_PER_SECOND:
            self._logged_at = now
            _logger.warning("dry run: requests that would have been refused until now: %d", self.would_refuse)


async def _refuse(send: Send, fields: list[tuple[bytes, bytes]], violated: tuple[str, ...], retry_after: int) -> None:
    body = _problem(violated, retry_after)  # that of a HEAD request goes no further than the server
    headers = [
        (b"retry-after", str(retry_after).encode()),
        *fields,
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _enter_at_once(limiter: Limiter) -> bool:
    """Take a permit and its places if all are free now. ``limiter._leave()`` must follow True."""
    with ExitStack() as undo:
        for limit, places in limiter._places:
            if not take_place(limit, places):
                limiter._node.own_counters().refused += 1
                return False
            undo.callback(leave_place, limit, places)
        await limiter.acquire(max_wait=0)
        undo.pop_all()
    limiter._hold()
    return True


def _telling(send: Send, limiter: Limiter, name: str) -> Send:
    def send_with_headers(message: Message) -> Awaitable[None]:
        # Not a coroutine: each chunk of a stream goes straight to the server.
        if message["type"] == "http.response.start":
            headers: Iterable[tuple[bytes, bytes]] = message.get("headers") or ()
            # A copy: the application may use its own again.
            message = {**message, "headers": [*headers, *limiter._node.tree.run(_tell, limiter, name)[0]]}
        return send(message)

    return send_with_headers
