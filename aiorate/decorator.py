"""Decorated functions, and blocks of several permits, built on `aiorate.Limiter.acquire`."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import TracebackType
    from typing import NoReturn

    from aiorate.limiter import Limiter

__all__ = ["Weighted", "limited"]

F = TypeVar("F", bound="Callable[..., Any]")


def limited(weighted: Weighted, function: F) -> F:
    """The function, with permits acquired before each call; of an async generator, before its first step.

    Raises TypeError for a plain function, which cannot wait.
    """
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def steps(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            await weighted.__aenter__()
            generator = None
            try:
                generator = function(*args, **kwargs)
                value = await anext(generator)
                while True:
                    # Pass on to the generator whatever the caller sends or throws, as `yield from` would.
                    try:
                        sent = yield value
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        value = await generator.athrow(error)
                    else:
                        value = await generator.asend(sent)
            except StopAsyncIteration:
                return
            finally:
                try:
                    if generator is not None:
                        await generator.aclose()
                finally:
                    weighted.leave()

        return cast("F", steps)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with weighted:
                return await function(*args, **kwargs)

        return cast("F", call)
    raise TypeError(
        f"@limiter decorates coroutine functions and async generator functions, not {getattr(function, '__name__', function)!r}:"
        " a plain function cannot wait. Write `async def`."
    )


class Weighted:
    """Several permits at a time; see `aiorate.Limiter.of`."""

    __slots__ = ("_limiter", "_permits", "leave")

    def __init__(self, limiter: Limiter, permits: int) -> None:
        self._limiter = limiter
        self._permits = permits
        self.leave: Callable[[], None] = limiter.leave

    async def __aenter__(self) -> float:
        """Acquire the permits; the target is the seconds waited."""
        return await self._limiter.enter(self._permits)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the place, if there is a limit of concurrency. Permits are used up by starting."""
        self.leave()

    def __await__(self) -> NoReturn:
        from aiorate.mistakes import NOT_AWAITED

        raise TypeError(NOT_AWAITED)

    def __call__(self, function: F) -> F:
        """Decorate a coroutine function or an async generator function: each call acquires the permits first."""
        return limited(self, function)
