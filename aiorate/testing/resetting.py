"""Limits that begin each test as new, although a module made them once. Knows nothing of pytest."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol

from aiorate.adaptive import AdaptiveRate
from aiorate.budget import Budget
from aiorate.errors import kind_of
from aiorate.keyed_base import Keyed
from aiorate.limiter import Limiter
from aiorate.waiting import changes
from aiorate.waiting.dispatcher import Dispatcher
from aiorate.waiting.loops import running_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiorate.keyed import KeyedLimiter
    from aiorate.keyed_budget import KeyedBudget
    from aiorate.waiting.clock import ReadClock

    Limit = Limiter | Budget | KeyedLimiter[Any] | KeyedBudget[Any]

__all__ = ["ResetLimiters", "reset_limiters"]


class ResetLimiters(Protocol):
    """The type of `reset_limiters`, and of the fixture of that name in `aiorate.testing.fixtures`."""

    def __call__(self, *limits: Limit) -> None:
        """Reset the limits."""
        ...


def reset_limiters(*limits: Limit) -> None:
    """Reset limits, and all that they share, as `Limiter.reset` does: as full or empty as they start, no debt, no pause, counters at 0.

    A KeyedLimiter and a KeyedBudget also forget their keys. The rate of a Limiter that was changed stays, and so does a limit that was
    closed. Requests that wait in an event loop which is still open stay in line. Raises TypeError for anything else, and nothing is reset
    then. RuntimeError for limits in Redis, which other processes share, for a strategy without the method ``reset``,
    and for a limiter of ``scope="loop"`` in use by a running event loop of another thread.
    """
    for limit in limits:
        _check(limit)
    done = set[Dispatcher]()
    for limit in limits:
        try:
            if isinstance(limit, Keyed):
                _reset_keys(limit, done)
            else:
                _reset(limit, done)
        except RuntimeError as error:
            error.add_note(f"reset_limiters() was given {limit!r}.")
            raise


def _check(limit: object) -> None:
    if isinstance(limit, (Limiter, Budget, Keyed)):
        return
    if isinstance(limit, dict):
        hint = "For the values of a dict, write reset_limiters(*limits.values())."
    elif isinstance(limit, (list, tuple, set, frozenset)):
        hint = "For the members of a collection, write reset_limiters(*limits)."
    elif isinstance(limit, AdaptiveRate):
        hint = "Give it adaptive.limiter, whose rate stays as it is, or make the AdaptiveRate in each test."
    else:
        hint = "Give it the limits that the application uses, such as reset_limiters(app.limiter)."
    raise TypeError(f"reset_limiters() takes a Limiter, Budget, KeyedLimiter or KeyedBudget, not {kind_of(limit)}. {hint}")


def _reset_keys(keyed: KeyedLimiter[Any] | KeyedBudget[Any], done: set[Dispatcher]) -> None:
    if keyed.shared is not None:
        _reset(keyed.shared, done)
    for key in keyed:
        _reset(keyed[key], done)
    keyed.forget()


def _reset(limit: Limiter | Budget, done: set[Dispatcher]) -> None:
    """Reset a limit, after those that it shares: requests in line take from these at once."""
    # A Limiter resets the counters of its places too.
    _reset_line(limit._dispatcher, limit.reset if isinstance(limit, Limiter) else partial(_start_over, limit._dispatcher), done)


def _reset_line(dispatcher: Dispatcher, reset: Callable[[], None], done: set[Dispatcher]) -> None:
    if dispatcher in done:  # thousands of keys may share it
        return
    done.add(dispatcher)
    if dispatcher.gate is not None:
        shared = dispatcher.gate.shared
        _reset_line(shared, partial(_start_over, shared), done)
    with _standing_still(dispatcher):
        reset()


def _start_over(dispatcher: Dispatcher) -> None:
    dispatcher.run(changes.reset, dispatcher)


@contextmanager
def _standing_still(dispatcher: Dispatcher) -> Iterator[None]:
    """Without a loop, all parts of a limiter begin at one instant, and go on from there once it is used."""
    dispatcher.run(dispatcher.look)
    if dispatcher.loop is not None or dispatcher.extras.clock is not None:
        yield
        return
    timeline, start = dispatcher.timeline, dispatcher.timeline.read()
    timeline.read = partial(int, start)
    try:
        yield
    finally:
        timeline.read = _from_first_reading(start)


def _from_first_reading(start: int) -> ReadClock:
    """A clock for callers without a loop, which stands still until one of them reads it, and while a loop runs.

    The limiter follows the loop from there. So no real time since the reset counts in a test in virtual time.
    """
    begun: int | None = None
    latest = start

    def read() -> int:
        nonlocal begun, latest
        if running_loop() is None:
            now = monotonic_ns()
            if begun is None:
                begun = now
            latest = start + now - begun
        return latest

    return read
