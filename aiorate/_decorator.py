"""Decorated functions, and blocks of several permits, built on `aiorate.Limiter`."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from types import TracebackType

    from aiorate._tree.node import Node

__all__ = ["Weighted", "limited"]

F = TypeVar("F", bound="Callable[..., Any]")


class Entered(Protocol):
    """What a block enters and leaves: an `aiorate.Limiter`."""

    @property
    def _node(self) -> Node: ...
    async def _enter(self, permits: int) -> float: ...
    def _enter_blocking(self, permits: int) -> float: ...
    def _leave(self) -> None: ...


def limited(weighted: Weighted, function: F) -> F:
    """The function, with permits acquired before each call; of a generator, before its first step. A plain function blocks.

    Raises RuntimeError for a plain function if the limiter is for one event loop, and TypeError for anything but a function.
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
    kinds = (type, staticmethod)  # a static method of a coroutine function does not look like one
    if not callable(function) or isinstance(function, kinds) or inspect.iscoroutinefunction(type(function).__call__):
        named = getattr(function, "__name__", None) or type(function).__name__
        raise TypeError(f"@limiter decorates functions, not {named!r}: put it right above `async def` or `def`.")
    return _plain(weighted, function)


def _plain(weighted: Weighted, function: F) -> F:
    if not weighted.blocks:
        raise RuntimeError(
            f"@limiter: {getattr(function, '__name__', function)!r} is a plain function, which would block its thread, and this limiter is"
            " for one event loop. Write `async def`, or create the limiter with scope='process'."
        )
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def steps(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with weighted:
                return (yield from function(*args, **kwargs))

        return cast("F", steps)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with weighted:
            return function(*args, **kwargs)

    return cast("F", call)


class Weighted:
    """Several permits at a time; see `aiorate.Limiter.of`."""

    __slots__ = ("_limiter", "_permits", "leave")

    def __init__(self, limiter: Entered, permits: int) -> None:
        self._limiter = limiter
        self._permits = permits
        self.leave: Callable[[], None] = limiter._leave

    async def __aenter__(self) -> float:
        """Acquire the permits; the target is the seconds waited."""
        return await self._limiter._enter(self._permits)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the place, if there is a limit of concurrency. Permits are used up by starting."""
        self.leave()

    def __enter__(self) -> float:
        """As ``async with``, for synchronous code: blocks. Needs ``scope="process"``, and raises as `aiorate.Limiter.__enter__` does."""
        return self._limiter._enter_blocking(self._permits)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the place, if there is a limit of concurrency, in any thread."""
        self.leave()

    @property
    def blocks(self) -> bool:
        """Whether synchronous code may use it."""
        return self._limiter._node.tree.threads

    def __call__(self, function: F) -> F:
        """Decorate a function, as `aiorate.Limiter.__call__` does: each call acquires the permits first."""
        return limited(self, function)
