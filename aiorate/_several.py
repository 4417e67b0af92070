"""What users write for a limit: a rate, a strategy, or a list of these, all of which hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aiorate._errors import kind_of
from aiorate._schedulers.interface import Scheduler
from aiorate._schedulers.token_pool import PlainPool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeGuard

    from aiorate._rate import Number, Rate

    Limit = Scheduler | Rate | str | Number
    Limits = Limit | Sequence[Limit]  # a list or a tuple

__all__ = ["each_of", "is_list", "strategy_of"]

T = TypeVar("T")
_WRITE = "Write one list of rates and strategies: ['10/s', '500/min']."


def is_list(limits: object) -> TypeGuard[Sequence[object]]:
    """Whether several limits were given: a list or a tuple."""
    return isinstance(limits, (list, tuple))


def strategy_of(call: str, limit: object) -> Scheduler:
    """The strategy of a rate, a strategy, or a list of these.

    Raises TypeError or ValueError that begins with ``call``.
    """
    if isinstance(limit, Scheduler):
        return limit
    if is_list(limit):
        from aiorate._schedulers.all_of import AllOf

        return AllOf(*each_of(call, limit, lambda each: strategy_of(call, each)))
    try:
        return PlainPool(limit)  # type: ignore[arg-type]  # which says what is wrong
    except TypeError:
        raise TypeError(f"{call} takes a rate such as '100/s', a strategy, or a list of these, not {kind_of(limit)}.") from None


def each_of(call: str, limits: Sequence[object], read: Callable[[object], T]) -> list[T]:
    """What ``read`` makes of each limit. Raises TypeError or ValueError, for an empty list and for what it refuses."""
    if not limits:
        raise ValueError(f"{call} takes one limit, or a list of one or more. {_WRITE}")
    if len(limits) == 2 and all(type(limit) in (int, float) for limit in limits):
        permits, period = limits
        raise TypeError(
            f"{call}: {limits!r} would be two rates per second. For {permits} per {period} seconds, write Rate({permits}, {period})"
            " or text such as '100/60s'."
        )
    return [_read(f"{call}: in the list of limits, number {number}", limit, read) for number, limit in enumerate(limits, 1)]


def _read(what: str, limit: object, read: Callable[[object], T]) -> T:
    if is_list(limit):
        raise TypeError(f"{what} is a {kind_of(limit)}. {_WRITE}")
    try:
        return read(limit)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from error
