"""Limits for httpx2 and httpx: event hooks of the client, or a transport around another transport. Imports neither package.

>>> client = httpx2.AsyncClient(event_hooks=hooks(Limiter("100/s")))
>>> client = httpx2.Client(event_hooks=blocking_hooks(Limiter("100/s", scope="process")))  # synchronous, in any threads

Hooks leave the client's own options (``limits=``, ``http2=``, proxies) in force, but count all attempts of a retry transport as one
request. There, use `limit_transport`. A redirect and an authentication challenge are requests too.

A request may bring its own cost and wait: ``client.get(url, extensions={"aiorate": {"cost": 7, "max_wait": 2}})``. No timeout of the client
covers the wait. An error of the limiter reaches the caller as it is, and is not an ``httpx2.HTTPError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from aiorate._errors import kind_of
from aiorate._feedback import Feedback, Quota
from aiorate._loops.table import running_loop
from aiorate.http._feedback import read_feedback
from aiorate.http._way import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

    import httpx
    import httpx2

    from aiorate._rate import Duration
    from aiorate.http._way import AnyLimiter

__all__ = ["Feedback", "Quota", "blocking_hooks", "hooks", "limit_transport", "read_feedback"]

# For type checkers. httpx2 comes last, so a checker that finds only httpx2 knows its type.
AnyTransport = TypeVar(
    "AnyTransport", "httpx.AsyncBaseTransport", "httpx.BaseTransport", "httpx2.AsyncBaseTransport", "httpx2.BaseTransport"
)


def hooks(
    limiter: AnyLimiter,
    key: Callable[[Any], Hashable] | None = None,
    cost: Callable[[Any], int] | None = None,
    *,
    max_wait: Duration | None = None,
    feedback: bool = True,
) -> dict[str, list[Callable[..., Any]]]:
    """Return the ``event_hooks=`` of an ``httpx.AsyncClient`` or ``httpx2.AsyncClient``.

    Every request waits for its permits before it takes a connection. Each call returns a new dict, so you can append hooks of your own.

    Args:
        limiter: A `Limiter`, an `aiorate.adaptive.AdaptiveRate`, or one for each key: a `KeyedLimiter` or a dict. A `Budget` only reads the
            responses.
        key: A function of the request that returns its key. By default its origin, such as ``"https://api.example.com:443"``.
        cost: A function of the request that returns its permits. 1 by default; a request that costs 0 is sent at once.
        max_wait: The longest time a request may wait, in seconds or as a timedelta. `WaitTooLong` if it would be longer.
        feedback: Whether to apply what responses say about the limit.
    """
    way = Way("hooks()", limiter, key, cost, max_wait, feedback)

    def wait_for_permits(request: Any) -> Coroutine[Any, Any, object]:
        if running_loop() is None:  # a synchronous client would not await a coroutine, and would send without a limit
            raise RuntimeError("hooks() need an AsyncClient under asyncio or trio. For a synchronous client, pass blocking_hooks(limiter).")
        return way.enter(request)

    async def hear(response: Any) -> None:
        way.hear(response)

    return {"request": [wait_for_permits], "response": [hear]}


def blocking_hooks(
    limiter: AnyLimiter,
    key: Callable[[Any], Hashable] | None = None,
    cost: Callable[[Any], int] | None = None,
    *,
    max_wait: Duration | None = None,
    feedback: bool = True,
) -> dict[str, list[Callable[..., Any]]]:
    """Return the ``event_hooks=`` of a synchronous ``httpx.Client`` or ``httpx2.Client``, which threads can share.

    The arguments are those of `hooks`. The limiter needs ``scope="process"``. A request in a thread whose event loop is running raises
    RuntimeError.
    """
    way = Way("blocking_hooks()", limiter, key, cost, max_wait, feedback)
    return {"request": [way.enter_blocking], "response": [way.hear]}


def limit_transport(
    inner: AnyTransport,
    limiter: AnyLimiter,
    key: Callable[[Any], Hashable] | None = None,
    cost: Callable[[Any], int] | None = None,
    *,
    max_wait: Duration | None = None,
    feedback: bool = True,
) -> AnyTransport:
    """Return a transport that waits for permits before it passes a request to ``inner``.

    Put it below a transport that retries, so that every attempt takes a permit:
    ``RetryTransport(limit_transport(AsyncHTTPTransport(), limiter))``. A client with its own transport ignores its ``limits=``,
    ``http2=`` and proxies, so pass those to ``inner``, a transport of httpx or httpx2, which is opened and closed together with the
    result. The other arguments are those of `hooks`. With a synchronous ``inner``, the limiter needs ``scope="process"``.
    """
    bases: tuple[type, ...] = tuple(base for base in type(inner).__mro__ if base.__name__ in ("AsyncBaseTransport", "BaseTransport"))
    if not bases:
        raise TypeError(f"limit_transport() takes a transport, such as httpx2.AsyncHTTPTransport(), not {kind_of(inner)}.")
    # Derived from the package's classes, because httpx-retries and the packages' types ask for these classes by name.
    kind: Any = type("LimitedTransport", (_LimitedTransport, *bases), {"__module__": __name__})
    limited: AnyTransport = kind(inner, Way("limit_transport()", limiter, key, cost, max_wait, feedback))
    return limited


def _passed_on(name: str) -> Callable[..., Any]:
    return lambda self, *args: getattr(self._inner, name)(*args)


class _LimitedTransport:
    """The part that both packages share, for clients of both kinds."""

    def __init__(self, inner: Any, way: Way) -> None:
        self._inner = inner
        self._way = way

    async def handle_async_request(self, request: Any) -> Any:
        with await self._way.enter(request) as sent:
            response = await self._inner.handle_async_request(request)
            sent.hear(response.status_code, response.headers)
        return response

    def handle_request(self, request: Any) -> Any:
        with self._way.enter_blocking(request) as sent:
            response = self._inner.handle_request(request)
            sent.hear(response.status_code, response.headers)
        return response

    async def __aenter__(self) -> Any:
        await self._inner.__aenter__()
        return self

    def __enter__(self) -> Any:
        self._inner.__enter__()
        return self

    aclose, close, __aexit__, __exit__ = map(_passed_on, ("aclose", "close", "__aexit__", "__exit__"))
