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

from aiorate.http._requests import Limiters, RequestLimit, check_cost, origin

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable
    from contextlib import AbstractContextManager
    from typing import NoReturn

    from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse

    from aiorate import Budget, Limiter
    from aiorate._rate import Duration
    from aiorate.adaptive import AdaptiveRate

__all__ = ["Limiters", "cost", "middleware"]

_cost: ContextVar[int] = ContextVar("aiorate.aiohttp.cost")


def middleware(
    limiter: Limiter | AdaptiveRate | Limiters | Budget,
    key: Callable[[ClientRequest], Hashable] | None = None,
    cost: Callable[[ClientRequest], int] | None = None,
    *,
    max_wait: Duration | None = None,
    feedback: bool = True,
) -> ClientMiddlewareType:
    """Return a client middleware. List it last in the ``middlewares=`` of a ``ClientSession``.

    Args:
        limiter: A `Limiter`, an `aiorate.adaptive.AdaptiveRate`, or one for each key: a `KeyedLimiter` or a dict. A `Budget` only reads the
            responses.
        key: A function of the request that returns its key. By default its origin, such as ``"https://api.example.com:443"``.
        cost: A function of the request that returns its permits. 1 by default; a request that costs 0 is sent at once.
        max_wait: The longest time a request may wait, in seconds or as a timedelta. `WaitTooLong` if it would be longer.
        feedback: Whether to apply what responses say about the limit.
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
    """Let each request inside the block take that many permits: ``with cost(7): await session.get(url)``.

    Each hop of a redirect takes as many. With 0, requests are sent at once. Tasks that start inside the block inherit the cost.
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
