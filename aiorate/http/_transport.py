"""A transport around another transport: every request that reaches it waits for its permits, each attempt of a retry too."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from aiorate.http._requests import RequestLimit, origin_of, overrides_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import TracebackType

    import httpx
    import httpx2

    from aiorate import Budget, Limiter
    from aiorate._rate import Duration
    from aiorate.adaptive import AdaptiveRate
    from aiorate.http._requests import Limiters


# For type checkers: neither package is imported at run time. httpx2 comes last, so a checker that finds only httpx2 knows its type.
AnyTransport = TypeVar(
    "AnyTransport", "httpx.AsyncBaseTransport", "httpx.BaseTransport", "httpx2.AsyncBaseTransport", "httpx2.BaseTransport"
)


def limit_transport(
    inner: AnyTransport,
    limiter: Limiter | AdaptiveRate | Limiters | Budget,
    key: Callable[[Any], Hashable] | None = None,
    cost: Callable[[Any], int] | None = None,
    *,
    max_wait: Duration | None = None,
    feedback: bool = True,
) -> AnyTransport:
    """Return a transport that waits for permits before it passes a request to ``inner``.

    Put it below a transport that retries, so that every attempt takes a permit:
    ``RetryTransport(limit_transport(AsyncHTTPTransport(), limiter))``. A client with its own transport ignores its ``limits=``,
    ``http2=`` and proxies, so pass those to ``inner``. With a synchronous ``inner``, the limiter needs ``scope="process"``.

    Args:
        inner: A transport of httpx or httpx2. It is opened and closed together with the result.
        limiter: A `Limiter`, an `aiorate.adaptive.AdaptiveRate`, or one for each key: a `KeyedLimiter` or a dict. A `Budget` only reads the
            responses.
        key: A function of the request that returns its key. By default its origin, such as ``"https://api.example.com:443"``.
        cost: A function of the request that returns its permits. 1 by default; a request that costs 0 is sent at once.
        max_wait: The longest time a request may wait, in seconds or as a timedelta. `WaitTooLong` if it would be longer.
        feedback: Whether to apply what responses say about the limit.
    """
    if isinstance(inner, type):
        raise TypeError(f"limit_transport() takes a transport, not the class {inner.__name__}. Write {inner.__name__}().")
    bases = tuple(kind for kind in type(inner).__mro__ if kind.__name__ in ("AsyncBaseTransport", "BaseTransport"))
    if not bases:
        raise TypeError(
            f"limit_transport() takes a transport, such as httpx2.AsyncHTTPTransport() or httpx2.HTTPTransport(), not"
            f" {type(inner).__name__}. To limit a client, pass hooks(limiter), or blocking_hooks(limiter), as its event_hooks=."
        )
    limit: RequestLimit[Any] = RequestLimit("limit_transport()", limiter, key, cost, max_wait, origin_of, feedback)
    if all(kind.__name__ == "BaseTransport" for kind in bases):
        limit.check_blocking()
    limited: AnyTransport = _limited_kind(bases)(inner, limit)
    return limited


class _LimitedTransport:
    """The part that both packages share, for asynchronous and for synchronous clients."""

    def __init__(self, inner: Any, limit: RequestLimit[Any]) -> None:
        self._inner = inner
        self._limit = limit

    async def handle_async_request(self, request: Any) -> Any:
        observe = await self._limit.enter(request, overrides_of(request))
        response = await self._inner.handle_async_request(request)
        if observe is not None:
            observe(response.status_code, response.headers)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Any:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None = None, error: BaseException | None = None, trace: TracebackType | None = None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)

    def handle_request(self, request: Any) -> Any:
        observe = self._limit.enter_blocking(request, overrides_of(request))
        response = self._inner.handle_request(request)
        if observe is not None:
            observe(response.status_code, response.headers)
        return response

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> Any:
        self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None = None, error: BaseException | None = None, trace: TracebackType | None = None
    ) -> None:
        self._inner.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"limit_transport({self._inner!r})"


@cache
def _limited_kind(bases: tuple[type, ...]) -> type[Any]:
    # Derived from the package's classes, because httpx-retries and the packages' types ask for these classes by name.
    return type("LimitedTransport", (_LimitedTransport, *bases), {"__module__": __name__})
