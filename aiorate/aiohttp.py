"""Limiting aiohttp (3.12 or later), as a client middleware. Does not import it.

>>> session = aiohttp.ClientSession(middlewares=[middleware(Limiter("100/s"))])

Every request waits for its permits before it takes a connection: each hop of a redirect and the handshake of a WebSocket too.
List the limiter last, so that what a middleware before it sends again is paid for again.

aiohttp's ``ClientTimeout(total=...)``, 300 s by default, includes the wait; its other timeouts do not. Pass
``ClientTimeout(total=None, sock_connect=10, sock_read=60)``, or wait outside: ``async with limiter, session.get(url) as r:``.
What the limiter raises reaches the caller as it is, and is not an ``aiohttp.ClientError``.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from aiorate.http.requests import Limiters, RequestLimit, check_cost, origin

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

    from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse

    from aiorate import Limiter

__all__ = ["Limiters", "cost", "middleware"]

_cost: ContextVar[int] = ContextVar("aiorate.aiohttp.cost")


def middleware(
    limiter: Limiter | Limiters,
    key: Callable[[ClientRequest], str] | None = None,
    cost: Callable[[ClientRequest], int] | None = None,
    *,
    max_wait: float | None = None,
) -> ClientMiddlewareType:
    """What to list, last, in ``middlewares=`` of a ``ClientSession``, or of one request, where it replaces the session's.

    ``limiter`` is a `aiorate.Limiter`, or one limiter for each key (`Limiters`), such as a dict. ``key(request)`` chooses among
    those; the default is the origin, such as ``"https://api.example.com:443"``. ``cost(request)`` is how many permits a
    request takes, 1 by default; 0: it is not limited at all. Longer than ``max_wait`` seconds, and a request fails at once with
    `aiorate.WaitTooLong`. Raises TypeError for wrong arguments.
    """
    limit: RequestLimit[ClientRequest] = RequestLimit("middleware()", limiter, key, cost, max_wait, _origin)

    async def wait_for_permits(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        permits = _cost.get(None)
        await limit.enter(request, {} if permits is None else {"cost": permits})
        return await handler(request)

    return wait_for_permits


def cost(permits: int) -> AbstractContextManager[None]:
    """Have the requests sent inside take so many permits, whatever the middleware's ``cost=`` says; 0: not limited.

    ``with cost(7): response = await session.get(url)``. Redirects take as many again. Tasks started inside inherit it.
    Raises TypeError unless given an int, ValueError if it is below 0.
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
