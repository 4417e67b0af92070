"""Event hooks of the client: every request waits for its permits, and the limiter heeds every response."""

from __future__ import annotations

from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, currentframe
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from aiorate._loops.table import running_loop
from aiorate.http._requests import RequestLimit, origin_of, overrides_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

    from aiorate import Budget, Limiter
    from aiorate._rate import Duration
    from aiorate.adaptive import AdaptiveRate
    from aiorate.http._requests import Limiters, Observe


def hooks(
    limiter: Limiter | AdaptiveRate | Limiters | Budget,
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
    limit: RequestLimit[Any] = RequestLimit("hooks()", limiter, key, cost, max_wait, origin_of, feedback)
    observers = _Observers()

    async def enter(request: Any) -> None:
        observers.of[request] = await limit.enter(request, overrides_of(request))

    def wait_for_permits(request: Any) -> Coroutine[Any, Any, None]:
        # A plain function, because a synchronous client would not await a coroutine, and would send without a limit.
        if running_loop() is None or _called_by_a_synchronous_client():
            raise RuntimeError(
                "hooks() need an AsyncClient under asyncio or trio: a synchronous client cannot wait in line. For that, write"
                " blocking_hooks(limiter), with a limiter of scope='process'."
            )
        return enter(request)

    async def observe(response: Any) -> None:
        observers.tell(response)

    return {"request": [wait_for_permits], "response": [observe]} if feedback else {"request": [wait_for_permits]}


def blocking_hooks(
    limiter: Limiter | AdaptiveRate | Limiters | Budget,
    key: Callable[[Any], Hashable] | None = None,
    cost: Callable[[Any], int] | None = None,
    *,
    max_wait: Duration | None = None,
    feedback: bool = True,
) -> dict[str, list[Callable[..., Any]]]:
    """Return the ``event_hooks=`` of a synchronous ``httpx.Client`` or ``httpx2.Client``, which threads can share.

    The limiter needs ``scope="process"``. A request in a thread whose event loop is running raises RuntimeError.

    Args:
        limiter: A `Limiter`, an `aiorate.adaptive.AdaptiveRate`, or one for each key: a `KeyedLimiter` or a dict. A `Budget` only reads the
            responses.
        key: A function of the request that returns its key. By default its origin, such as ``"https://api.example.com:443"``.
        cost: A function of the request that returns its permits. 1 by default; a request that costs 0 is sent at once.
        max_wait: The longest time a request may wait, in seconds or as a timedelta. `WaitTooLong` if it would be longer.
        feedback: Whether to apply what responses say about the limit.
    """
    limit: RequestLimit[Any] = RequestLimit("blocking_hooks()", limiter, key, cost, max_wait, origin_of, feedback)
    limit.check_blocking()
    observers = _Observers()

    def wait_for_permits(request: Any) -> None:
        if running_loop() is not None:
            raise RuntimeError(
                "blocking_hooks() would block the event loop that runs in this thread. Use an AsyncClient with hooks(limiter), or another"
                " thread."
            )
        observers.of[request] = limit.enter_blocking(request, overrides_of(request))

    return {"request": [wait_for_permits], "response": [observers.tell]} if feedback else {"request": [wait_for_permits]}


class _Observers:
    """What hears of the responses to the requests that were let through."""

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[Any, Observe | None] = WeakKeyDictionary()

    def tell(self, response: Any) -> None:
        """Have the limiter of the request heed the response."""
        tell = self.of.get(response.request)
        if tell is not None:
            tell(response.status_code, response.headers)


def _called_by_a_synchronous_client() -> bool:
    # Only the caller tells the two clients apart, and a loop may run around a synchronous one, as it does in a notebook.
    frame = currentframe()
    while frame is not None and not frame.f_code.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR):
        if frame.f_code.co_qualname.startswith("Client.") and "AsyncClient" in frame.f_globals:
            return True
        frame = frame.f_back
    return False
