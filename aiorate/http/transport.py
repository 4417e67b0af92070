"""A transport around another: every request that reaches it waits for its permits, each attempt of a retry too."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from aiorate.http.requests import RequestLimit, origin_of, overrides_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from aiorate import Limiter
    from aiorate.http.requests import Limiters

__all__ = ["limit_transport"]

T = TypeVar("T")


def limit_transport(
    inner: T,
    limiter: Limiter | Limiters,
    key: Callable[[Any], str] | None = None,
    cost: Callable[[Any], int] | None = None,
    *,
    max_wait: float | None = None,
) -> T:
    """A transport that waits for permits before each request it hands to ``inner``, which it also opens and closes.

    Put the limiter innermost, ``RetryTransport(limit_transport(AsyncHTTPTransport(), limiter))``: each attempt is then
    paid for. A client that is given a transport ignores its own ``limits=``, ``http2=`` and proxies; give them to ``inner``.

    The result is an ``AsyncBaseTransport`` of whichever package ``inner`` is from. Raises TypeError if it is from neither.
    """
    if isinstance(inner, type):
        raise TypeError(f"limit_transport() takes a transport, not the class {inner.__name__}. Write {inner.__name__}().")
    base = next((kind for kind in type(inner).__mro__ if kind.__name__ == "AsyncBaseTransport"), None)
    if base is None:
        raise TypeError(
            f"limit_transport() takes an asynchronous transport, such as httpx2.AsyncHTTPTransport(), not {type(inner).__name__}."
            " To limit a client, pass hooks(limiter) as its event_hooks=."
        )
    limit: RequestLimit[Any] = RequestLimit("limit_transport()", limiter, key, cost, max_wait, origin_of)
    limited: T = _limited_kind(base)(inner, limit)
    return limited


class _LimitedTransport:
    """What is the same whichever package the transport is from."""

    def __init__(self, inner: Any, limit: RequestLimit[Any]) -> None:
        self._inner = inner
        self._limit = limit

    async def handle_async_request(self, request: Any) -> Any:
        await self._limit.enter(request, overrides_of(request))
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Any:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None = None, error: BaseException | None = None, trace: TracebackType | None = None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"limit_transport({self._inner!r})"


@cache
def _limited_kind(base: type) -> type[Any]:
    # Derived from the package's own class, because httpx-retries asks isinstance() and duck typing would not do.
    return type("LimitedTransport", (_LimitedTransport, base), {"__module__": __name__})
