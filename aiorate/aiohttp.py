"""Limits for aiohttp (3.12 or later): a client middleware. Does not import aiohttp.

>>> session = aiohttp.ClientSession(middlewares=[middleware(Limiter("100/s"))])

Every request waits for its permits before it takes a connection. Each hop of a redirect and the handshake of a WebSocket are requests too.

Of aiohttp's timeouts, only ``total``, 300 s by default, includes the wait: ``ClientTimeout(total=None, sock_connect=10, sock_read=60)`` has
none. An error of the limiter reaches the caller as it is, and is not an ``aiohttp.ClientError``.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from aiorate._errors import check_count
from aiorate.http._way import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable

    from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse

    from aiorate._rate import Duration
    from aiorate.http._way import AnyLimiter

__all__ = ["cost", "middleware"]

_cost: ContextVar[int | None] = ContextVar("aiorate.aiohttp.cost", default=None)


def middleware(
    limiter: AnyLimiter,
    key: Callable[[ClientRequest], Hashable] | None = None,
    cost: Callable[[ClientRequest], int] | None = None,
    *,
    max_wait: Duration | None = None,
    feedback: bool = True,
) -> ClientMiddlewareType:
    """Return a client middleware. List it last in ``middlewares=``: what an earlier one sends again then takes permits again.

    The arguments are those of `aiorate.http.hooks`; ``key`` and ``cost`` are functions of aiohttp's request.
    """
    way = Way("middleware()", limiter, key, cost, max_wait, feedback)

    async def limit(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        with await way.enter(request, cost=_cost.get()) as sent:
            response = await handler(request)
            sent.hear(response.status, response.headers)
        return response

    return limit


@contextmanager
def cost(permits: int) -> Generator[None, None, None]:
    """Let each request inside the block take that many permits: ``with cost(7): await session.get(url)``.

    Each hop of a redirect takes as many. With 0, requests are sent at once. Tasks that start inside the block inherit the cost.
    """
    check_count("cost()", permits, " (0: not limited)")
    token = _cost.set(permits)
    try:
        yield
    finally:
        _cost.reset(token)
