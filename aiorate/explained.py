"""Errors for wrong arguments and for unknown names of a module say what to write. For what is not hot. Knows no limiter."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Never

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["explained", "names_explained"]


def explained(function: F) -> F:
    """The function, whose TypeError for unknown, missing or too many arguments says what to write.

    Its signature stays as it is, for type checkers and for `inspect`. Costs a call.
    """

    @wraps(function)
    def called(*given: Any, **options: Any) -> Any:
        try:
            return function(*given, **options)
        except TypeError:
            from aiorate.wrong_arguments import not_of_signature

            error = not_of_signature(function, given, options)
            if error is None:  # the arguments fit, and one of them is wrong
                raise
        raise error

    return cast("F", called)


def names_explained(module: str) -> Callable[[str], Never]:
    """Make the ``__getattr__`` of a module. Not for checkers, which would take any name for one that exists."""

    def missing(name: str) -> Never:
        from aiorate.misnamed import not_in_module

        raise not_in_module(module, name)

    return missing
