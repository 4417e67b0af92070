"""Event hooks of the client: every request waits for its permits, and the limiter heeds every response."""

from __future__ import annotations

from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, currentframe
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from aiorate.explained import explained
from aiorate.http.requests import RequestLimit, origin_of, overrides_of
from aiorate.waiting.loops import running_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

    from aiorate import Budget, Limiter
    from aiorate.adaptive import AdaptiveRate
    from aiorate.http.requests import Limiters, Observe
    from aiorate.rate import Duration

__all__ = ["blocking_hooks", "hooks"]


@explained
def hooks(
    limiter: Limiter | AdaptiveRate | Limiters | Budget,
    key: Callable[[Any], Hashable] | None = None,
    cost: Callable[[Any], int] | None = None,
    *,
    max_wait: Duration | None = None,
    feedback: bool = True,
) -> dict[str, list[Callable[..., Any]]]:
    """The ``event_hooks=`` of an ``AsyncClient`` of httpx2 or httpx.

    Each call returns a new dict, so you may add other hooks. A hook before the limiter's runs before the wait. The limiter observes
    every response, unless ``feedback`` is False; a hook after the limiter's sees it already paused, if the response asks for that.
    Raises TypeError for an argument of a wrong type, and ValueError for a negative ``max_wait``.
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


@explained
def blocking_hooks(
    limiter: Limiter | AdaptiveRate | Limiters | Budget,
    key: Callable[[Any], Hashable] | None = None,
    cost: Callable[[Any], int] | None = None,
    *,
    max_wait: Duration | None = None,
    feedback: bool = True,
) -> dict[str, list[Callable[..., Any]]]:
    """The ``event_hooks=`` of a synchronous ``Client`` of httpx2 or httpx, which any number of threads may share.

    As `hooks`, but the thread of a request blocks until the permits are granted. Each limiter has ``scope="process"``; RuntimeError for
    one of a loop, and for a request in a thread whose event loop is running.
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
