"""What users write for a limit: a rate, a strategy, or a list of these, and the options that limiters and budgets have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aiorate._errors import called, check_count, kind_of
from aiorate._loops.loop import Clock
from aiorate._schedulers.interface import Scheduler
from aiorate._schedulers.token_pool import PlainPool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeGuard

    from aiorate._rate import Number, Rate

    _One = Scheduler | Rate | str | Number
    Limits = _One | Sequence[_One]  # a list or a tuple


T = TypeVar("T")


def check_options(of: str, max_waiting: object, clock: object, name: object, on_event: object, on_wait: object) -> None:
    """Raise TypeError or ValueError, which names the class ``of``, for options that it cannot have."""
    if max_waiting is not None:
        check_count(f"{of}(max_waiting)", max_waiting, ", or None (no bound)")
    if clock is not None and not isinstance(clock, Clock):
        raise TypeError(f"{of}(clock) must have a method now() -> int, as aiorate.testing.ManualClock has; {clock!r} has none.")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{of}(name) must be text, not {kind_of(name)}.")
    if on_event is not None:
        check_callback(f"{of}(on_event)", on_event, "Event")
    if on_wait is not None:
        check_callback(f"{of}(on_wait)", on_wait, "Waited")


def check_scope(of: str, scope: object) -> None:
    """Raise ValueError, which names the class ``of``, for a scope that is none."""
    if scope not in ("loop", "process"):
        raise ValueError(f"{called(f'{of}(scope)', scope)} must be 'loop' or 'process'.")


def check_same_scope(what: str, of: str, process: bool, threads: bool) -> None:
    """Raise ValueError, which names it ``what``, for a limit for ``threads`` or not, as part of a class ``of`` for a ``process`` or not."""
    if process is not threads:
        own, other = ("loop", "process") if process else ("process", "loop")
        raise ValueError(f"{what}: this has scope={own!r}, and the {of} scope={other!r}. Create both with the same scope.")


def check_callback(what: str, function: object, told: str) -> None:
    """Raise TypeError that begins with ``what`` for anything but a plain function: nobody would await an async one."""
    from inspect import iscoroutinefunction

    if not callable(function) or any(map(iscoroutinefunction, (function, type(function).__call__))) or isinstance(function, type):
        raise TypeError(f"{what} must be a plain function of an aiorate.{told}, such as print, not {kind_of(function)}.")


def is_list(limits: object) -> TypeGuard[Sequence[object]]:
    """Whether several limits were given: a list or a tuple."""
    return isinstance(limits, (list, tuple))


def strategy_of(call: str, limit: object) -> Scheduler:
    """The strategy of a rate, a strategy, or a list of these.

    Raises TypeError or ValueError that begins with ``call``.
    """
    if type(limit) is str:  # nearly always, and the question below takes longer than the others together
        return PlainPool(limit)
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
        raise ValueError(f"{call} takes one limit, or a list of one or more, such as ['10/s', '500/min'].")
    made = []
    for number, limit in enumerate(limits, 1):
        what = f"{call}: in the list of limits, number {number}"
        if is_list(limit):
            raise TypeError(f"{what} is a {kind_of(limit)}. Write one list of rates and strategies.")
        try:
            made.append(read(limit))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{what}: {error}") from error
    return made
