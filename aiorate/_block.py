"""A block that is entered and left, by ``async with``, ``with``, or a call of a decorated function."""

from __future__ import annotations

import functools
import inspect
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from types import TracebackType

    F = TypeVar("F", bound=Callable[..., Any])


T = TypeVar("T")


class Block(Generic[T]):
    """Entered, it gives T. A class says how to enter and to leave it."""

    __slots__ = ()

    def _enter(self) -> Coroutine[Any, Any, T]:
        """Wait until the block may begin. `_leave` must follow."""
        raise NotImplementedError

    def _enter_blocking(self) -> T:
        """As `_enter`, in a thread without an event loop, which it blocks."""
        raise NotImplementedError

    def _leave(self, error: BaseException | None = None) -> None:
        """The block has ended, perhaps by that error. Never waits."""
        raise NotImplementedError

    @property
    def _may_block(self) -> bool:
        """Whether synchronous code may enter it."""
        raise NotImplementedError

    def __aenter__(self) -> Coroutine[Any, Any, T]:
        """Wait until it is your turn."""
        return self._enter()  # not a coroutine around it

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the block."""
        self._leave(error)

    def __enter__(self) -> T:
        """Wait in synchronous code, which needs ``scope="process"``."""
        if not self._may_block:
            raise RuntimeError(
                "`with` blocks its thread, and this is for one event loop: write `async with`, or create it with scope='process'."
            )
        return self._enter_blocking()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the block, in any thread."""
        self._leave(error)


def limited(block: Block[Any], function: F) -> F:
    """The function, with each call inside the block; of a generator, all of its steps. A plain function blocks.

    Raises RuntimeError for a plain function if the block is for one event loop, and TypeError for anything but a function.
    """
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def steps(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            generator = function(*args, **kwargs)
            async with block, aclosing(generator):
                try:
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

        return cast("F", steps)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with block:
                return await function(*args, **kwargs)

        return cast("F", call)
    if not callable(function) or isinstance(function, (type, staticmethod)):
        raise TypeError(f"@limiter decorates functions, not {function!r:.80}: put it right above `async def` or `def`.")
    return _plain(block, function)


def _plain(block: Block[Any], function: F) -> F:
    if not block._may_block:
        raise RuntimeError(
            f"@limiter: {function!r:.80} is a plain function, which would block its thread, and this limiter is for one event loop. Write"
            " `async def`, or create the limiter with scope='process'."
        )
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def steps(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with block:
                return (yield from function(*args, **kwargs))

        return cast("F", steps)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with block:
            return function(*args, **kwargs)

    return cast("F", call)
