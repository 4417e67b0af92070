"""Limiting httpx2 and httpx: as event hooks of the client, or as a transport around another. Imports neither.

>>> client = httpx2.AsyncClient(event_hooks=hooks(Limiter("100/s")))

Every request waits for its permits before it takes a connection: redirects and authentication challenges too. Hooks leave the
client's own settings (``limits=``, ``http2=``, proxies) in force. Where a retry transport is in use, hooks would count
its retries as one request: use `limit_transport`, innermost.

* ``limiter`` is a `aiorate.Limiter`, or one limiter for each key (`Limiters`), such as a dict.
* ``key(request)`` chooses among those; the default is the origin, such as ``"https://api.example.com:443"``.
* ``cost(request)`` is how many permits a request takes, 1 by default; 0: it is not limited at all.
* ``max_wait`` is how many seconds a request may wait: longer, and it fails at once with `aiorate.WaitTooLong`.

A request may bring its own: ``client.get(url, extensions={"aiorate": {"cost": 7, "max_wait": 2}})``. None of the client's
timeouts covers the wait. What the limiter raises reaches the caller as it is, and is not an ``httpx2.HTTPError``.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from aiorate.gate import Gate, Limiters, origin, read_wishes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from aiorate import Limiter

__all__ = ["Limiters", "hooks", "limit_transport"]

T = TypeVar("T")


def hooks(
    limiter: Limiter | Limiters,
    key: Callable[[Any], str] | None = None,
    cost: Callable[[Any], int] | None = None,
    *,
    max_wait: float | None = None,
) -> dict[str, list[Callable[..., Any]]]:
    """What to pass as ``event_hooks=`` to an ``AsyncClient`` of httpx2 or httpx.

    A new mapping each time, to which hooks of your own may be added; those before the limiter's run before the wait.
    Raises TypeError for wrong arguments.
    """
    gate: Gate[Any] = Gate("hooks()", limiter, key, cost, max_wait, _origin)

    def wait_for_permits(request: Any) -> Coroutine[Any, Any, None]:
        # A plain function, because a synchronous client would never await a coroutine, and send without a limit.
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("hooks() are for an AsyncClient under asyncio: a synchronous client cannot wait in line.") from None
        return gate.enter(request, _wishes(request))

    return {"request": [wait_for_permits]}


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
    gate: Gate[Any] = Gate("limit_transport()", limiter, key, cost, max_wait, _origin)
    limited: T = _limited_kind(base)(inner, gate)
    return limited


class _LimitedTransport:
    """What is the same whichever package the transport is from."""

    def __init__(self, inner: Any, gate: Gate[Any]) -> None:
        self._inner = inner
        self._gate = gate

    async def handle_async_request(self, request: Any) -> Any:
        await self._gate.enter(request, _wishes(request))
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


def _origin(request: Any) -> str:
    url = request.url
    return origin(url.scheme, url.raw_host.decode("ascii"), url.port)


def _wishes(request: Any) -> Any:
    wishes = request.extensions.get("aiorate")
    return {} if wishes is None else read_wishes('extensions={"aiorate": ...}', wishes)
