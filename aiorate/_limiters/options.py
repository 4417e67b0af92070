"""What users write for a limit: a rate, a strategy, or a list of these, and the options that limiters and budgets have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._errors import called, check_count, kind_of
from aiorate._loops.loop import Clock
from aiorate._schedulers.interface import Scheduler
from aiorate._schedulers.token_pool import PlainPool
from aiorate._tree.limit import Limit
from aiorate._tree.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Number, Rate

    _One = Scheduler | Rate | str | Number
    Limits = _One | Sequence[_One]  # a list or a tuple


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


def kinds_of(of: str, scope: object) -> tuple[type[Limit], type[Tree]]:
    """What a limit of that scope is made of. Raises ValueError, which names the class ``of``, for a scope that is none."""
    if scope == "loop":
        return Limit, Tree
    if scope != "process":
        raise ValueError(f"{called(f'{of}(scope)', scope)} must be 'loop' or 'process'.")
    from aiorate._tree.threads import ThreadLimit, ThreadTree

    return ThreadLimit, ThreadTree


def check_callback(what: str, function: object, told: str) -> None:
    """Raise TypeError that begins with ``what`` for anything but a plain function: nobody would await an async one."""
    from inspect import iscoroutinefunction

    if not callable(function) or any(map(iscoroutinefunction, (function, type(function).__call__))) or isinstance(function, type):
        raise TypeError(f"{what} must be a plain function of an aiorate.{told}, such as print, not {kind_of(function)}.")


def strategy_of(call: str, limit: object) -> Scheduler:
    """The strategy of a rate, a strategy, or a list of these.

    Raises TypeError or ValueError that begins with ``call``.
    """
    if type(limit) is str:  # nearly always, and the question below takes longer than the others together
        return PlainPool(limit)
    if isinstance(limit, Scheduler):
        return limit
    if isinstance(limit, (list, tuple)):
        from aiorate._schedulers.all_of import AllOf

        return AllOf(*[strategy_of(call, each) for each in limit])
    try:
        return PlainPool(limit)  # type: ignore[arg-type]  # which says what is wrong
    except TypeError:
        raise TypeError(f"{call} takes a rate such as '100/s', a strategy, or a list of these, not {kind_of(limit)}.") from None
