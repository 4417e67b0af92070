"""Checks of the options that limiters and budgets have in common."""

from __future__ import annotations

from aiorate._errors import check_count, kind_of
from aiorate._loops.clock import Clock

__all__ = ["check_on_wait", "check_options", "check_same_scope", "check_scope"]


def check_options(of: str, max_waiting: object, clock: object, name: object, on_event: object, on_wait: object) -> None:
    """Raise TypeError or ValueError, which names the class ``of``, for options that it cannot have."""
    if max_waiting is not None:
        check_count(f"{of}(max_waiting)", max_waiting, ", or None (no bound)")
    if clock is not None and not isinstance(clock, Clock):
        raise TypeError(f"{of}(clock) must have a method now() -> int, as aiorate.testing.ManualClock has; {clock!r} has none.")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{of}(name) must be text, not {kind_of(name)}.")
    if on_event is not None:
        _check_plain(f"{of}(on_event) must be a plain function of an aiorate.Event", on_event)
    if on_wait is not None:
        check_on_wait(of, on_wait)


def check_scope(of: str, scope: object) -> None:
    """Raise TypeError or ValueError, which names the class ``of``, for a scope that is none."""
    if not isinstance(scope, str):
        raise TypeError(f"{of}(scope) must be 'loop' or 'process', not {kind_of(scope)}.")
    if scope not in ("loop", "process"):
        raise ValueError(f"{of}(scope={scope!r}) must be 'loop' or 'process'.")


def check_same_scope(what: str, of: str, process: bool, threads: bool) -> None:
    """Raise ValueError, which names it ``what``, for a limit for ``threads`` or not, as part of a class ``of`` for a ``process`` or not."""
    if process and threads is False:
        raise ValueError(f"{what}: this has scope='loop', and the {of} scope='process'. Create this with scope='process' too.")
    if threads and not process:
        raise ValueError(
            f"{what}: this has scope='process', and the {of} is for one event loop. Create this with scope='loop', or the {of} with"
            " scope='process'."
        )


def check_on_wait(call: str, on_wait: object) -> None:
    """Raise TypeError, which names the ``call``, for anything but a plain function."""
    _check_plain(f"{call}(on_wait) must be a plain function of an aiorate.Waited", on_wait)


def _check_plain(must: str, function: object) -> None:
    from inspect import isasyncgenfunction, iscoroutinefunction

    call_of = type(function).__call__ if callable(function) else None  # that of an object with a method __call__
    given = kind_of(function)
    if any(map(iscoroutinefunction, (function, call_of))):
        given = "a coroutine function, which nobody would await"
    elif any(map(isasyncgenfunction, (function, call_of))):
        given = "an async generator, which nobody would iterate over"
    elif call_of is not None and not isinstance(function, type):
        return
    raise TypeError(f"{must}, such as print, not {given}.")
