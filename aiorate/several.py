"""Limits written as a list, all of which hold: the same list wherever a rate or a strategy is taken. Knows no clock and no loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from aiorate.errors import kind_of
from aiorate.schedulers.all_of import AllOf
from aiorate.schedulers.interface import Scheduler
from aiorate.schedulers.token_pool import TokenPool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiorate.rate import Number, Rate

    Limit = Scheduler | Rate | str | Number
    Limits = Limit | Sequence[Limit]  # a list or a tuple

__all__ = ["all_of", "each_of", "is_list"]

T = TypeVar("T")
_WRITE = "Write one list of rates and strategies: ['10/s', '500/min']."


@runtime_checkable
class _Limiting(Protocol):
    """A Limiter or a Budget, which hold what a list is to hold."""

    @property
    def dispatcher(self) -> object:
        """What decides."""
        ...


def is_list(limits: object) -> bool:
    """Whether several limits were given: a list or a tuple."""
    return isinstance(limits, (list, tuple))


def all_of(call: str, limits: Sequence[object]) -> AllOf:
    """The strategy of a list of rates and strategies. A rate is a `TokenPool`, as it is alone.

    Raises TypeError or ValueError that begins with ``call`` and names the limit that is wrong.
    """
    return AllOf(*each_of(call, limits, _strategy))


def each_of(call: str, limits: Sequence[object], read: Callable[[object], T]) -> list[T]:
    """What ``read`` makes of each limit. Raises TypeError or ValueError, as `all_of` does, for an empty list and for what it refuses."""
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
    if not isinstance(limit, (str, Scheduler)) and isinstance(limit, _Limiting):
        raise TypeError(
            f"{what} is a {kind_of(limit)}. {_WRITE} To take from two limiters that stand elsewhere too, write `async with one, other:`,"
            " or let one share the other: KeyedLimiter(lambda key: '10/s', shared=other)."
        )
    try:
        return read(limit)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from error


def _strategy(limit: object) -> Scheduler:
    if isinstance(limit, Scheduler):
        return limit
    if isinstance(limit, type):
        raise TypeError(f"pass a strategy with its rate, such as {limit.__name__}('10/s'), not the class.")
    try:
        return TokenPool(limit)  # type: ignore[arg-type]  # which says what is wrong
    except TypeError:
        raise TypeError(f"a limit is a rate such as '100/s', or a strategy, not {kind_of(limit)}.") from None
