"""Methods that run in the critical section of their dispatcher, where it has one: callers of many threads, one at a time."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.waiting.dispatcher import Dispatcher

__all__ = ["HasDispatcher", "changing", "deciding", "looking"]


class HasDispatcher(Protocol):
    """A limiter or a budget."""

    @property
    def _dispatcher(self) -> Dispatcher: ...


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=HasDispatcher)


def changing(method: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """A method that changes the limiter. Called by a finalizer or signal handler in the middle of a decision, it runs after that."""

    @wraps(method)
    def change(self: S, /, *args: P.args, **options: P.kwargs) -> None:
        section = self._dispatcher.section
        if section is None:
            method(self, *args, **options)
        else:
            section.command(partial(method, self, *args, **options))

    return change


def deciding(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method that decides about those in line, too. RuntimeError in the middle of a decision of this thread."""

    @wraps(method)
    def decide(self: S, /, *args: P.args, **options: P.kwargs) -> T:
        section = self._dispatcher.section
        return method(self, *args, **options) if section is None else section.run(method, self, *args, **options)

    return decide


def looking(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method that looks at the limiter and decides nothing, which is allowed in the middle of a decision too."""

    @wraps(method)
    def look(self: S, /, *args: P.args, **options: P.kwargs) -> T:
        section = self._dispatcher.section
        if section is None:
            return method(self, *args, **options)
        return section.look(partial(method, self, *args, **options))

    return look
