"""Limits for aiohttp (3.12 or later): a client middleware. Does not import aiohttp.

>>> session = aiohttp.ClientSession(middlewares=[middleware(Limiter("100/s"))])

Every request waits for its permits before it takes a connection. Each hop of a redirect and the handshake of a WebSocket are
requests too. List the limiter last: a request that an earlier middleware sends again then takes permits again.

aiohttp's ``ClientTimeout(total=...)``, 300 s by default, includes the wait. Its other timeouts do not. Pass
``ClientTimeout(total=None, sock_connect=10, sock_read=60)``, or wait outside: ``async with limiter, session.get(url) as r:``.
An error of the limiter reaches the caller as it is, and is not an ``aiohttp.ClientError``.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from aiorate.explained import explained, names_explained
from aiorate.http.requests import Limiters, RequestLimit, check_cost, origin

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable
    from contextlib import AbstractContextManager
    from typing import NoReturn

    from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse

    from aiorate import Budget, Limiter
    from aiorate.adaptive import AdaptiveRate
    from aiorate.rate import Duration

__all__ = ["Limiters", "cost", "middleware"]

_cost: ContextVar[int] = ContextVar("aiorate.aiohttp.cost")


@explained
def middleware(
    limiter: Limiter | AdaptiveRate | Limiters | Budget,
    key: Callable[[ClientRequest], Hashable] | None = None,
    cost: Callable[[ClientRequest], int] | None = None,
    *,
    max_wait: Duration | None = None,
    feedback: bool = True,
) -> ClientMiddlewareType:
    """A client middleware: the last of ``middlewares=`` of a ``ClientSession``, or of one request, where it replaces the session's.

    * ``limiter`` is an `aiorate.Limiter`, an `aiorate.adaptive.AdaptiveRate`, or one of them for each key: an `aiorate.KeyedLimiter` or
      a dict (`Limiters`). An `aiorate.Budget` only observes the responses.
    * ``key(request)`` names the key. The default is the origin, such as ``"https://api.example.com:443"``.
    * ``cost(request)`` is the number of permits that a request takes, 1 by default. A request with a cost of 0 is not limited.
    * ``max_wait`` is the longest wait (seconds or a timedelta). A request that would wait longer fails at once: `aiorate.WaitTooLong`.
    * ``feedback`` has the limiter observe every response; False turns that off.

    Raises TypeError for an argument of a wrong type, and ValueError for a negative ``max_wait``.
    """
    limit: RequestLimit[ClientRequest] = RequestLimit("middleware()", limiter, key, cost, max_wait, _origin, feedback)

    return _Middleware(limit)


class _Middleware:
    """Called by aiohttp for each request. Passed as the list itself, it raises an error that says so."""

    __slots__ = ("_limit",)

    def __init__(self, limit: RequestLimit[ClientRequest]) -> None:
        self._limit = limit

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        permits = _cost.get(None)
        observe = await self._limit.enter(request, {} if permits is None else {"cost": permits})
        response = await handler(request)
        if observe is not None:
            observe(response.status, response.headers)
        return response

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> NoReturn:
        raise TypeError("middlewares= must be a list: write ClientSession(middlewares=[middleware(limiter)]).")

    __iter__ = __len__


def cost(permits: int) -> AbstractContextManager[None]:
    """Requests inside the block take that many permits, whatever the middleware's ``cost=`` says. With 0 they are not limited.

    ``with cost(7): response = await session.get(url)``. Each hop of a redirect takes as many. Tasks that start inside the
    block inherit the cost. Raises TypeError unless it is an int, and ValueError if it is below 0.
    """
    check_cost("cost()", permits)
    return _costing(permits)


@contextmanager
def _costing(permits: int) -> Generator[None, None, None]:
    token = _cost.set(permits)
    try:
        yield
    finally:
        _cost.reset(token)


def _origin(request: ClientRequest) -> str:
    return origin(request.url.scheme, request.url.raw_host or "", request.url.port)


if not TYPE_CHECKING:
    __getattr__ = names_explained(__name__)
