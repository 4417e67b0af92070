"""Limits that begin each test as new, although a module made them once. Knows nothing of pytest."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from aiorate._budget import Budget
from aiorate._errors import kind_of
from aiorate._keyed_base import Keyed
from aiorate._limiter import Limiter
from aiorate._loops.table import running_loop
from aiorate._tree import changes
from aiorate._tree.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiorate._keyed import KeyedLimiter
    from aiorate._keyed_budget import KeyedBudget
    from aiorate._loops.loop import ReadClock

    Limit = Limiter | Budget | KeyedLimiter[Any] | KeyedBudget[Any]


def reset_limiters(*limits: Limit) -> None:
    """Reset limits, and all that they share: as full or empty as they start, no debt, no pause, counters at 0, keys forgotten.

    A rate that was changed stays, and so does a limit that was closed. Requests that wait in a loop which is still open stay in line.
    Raises TypeError for anything else, and nothing is reset then. RuntimeError for limits in Redis, which other processes share, for a
    strategy without the method ``reset``, and for a limiter of ``scope="loop"`` in use by a running event loop of another thread.
    """
    for limit in limits:
        if not isinstance(limit, (Limiter, Budget, Keyed)):
            hint = "write reset_limiters(*limits)" if isinstance(limit, (list, tuple, set)) else "such as reset_limiters(app.limiter)"
            raise TypeError(f"reset_limiters() takes a Limiter, Budget, KeyedLimiter or KeyedBudget, not {kind_of(limit)}: {hint}.")
    done = set[Node]()
    for limit in limits:
        try:
            if isinstance(limit, Keyed):
                for part in [limit.shared, *(limit[key] for key in limit)]:
                    _reset(part, done)
                limit.forget()
            else:
                _reset(limit, done)
        except RuntimeError as error:
            error.add_note(f"reset_limiters() was given {limit!r}.")
            raise


def _reset(limit: Limiter | Budget | None, done: set[Node]) -> None:
    """Reset a limit, after those that it shares: requests in line take from these at once."""
    if limit is not None:
        line = limit._node  # and a Limiter resets the counters of its places too
        _reset_line(line, limit.reset if isinstance(limit, Limiter) else lambda: line.tree.run(changes.reset, line), done)


def _reset_line(node: Node, reset: Callable[[], None], done: set[Node]) -> None:
    if node in done:  # thousands of keys may share it
        return
    done.add(node)
    if node.above is not None:
        shared = node.above
        _reset_line(shared, lambda: shared.tree.run(changes.reset, shared), done)
    with _standing_still(node):
        reset()


@contextmanager
def _standing_still(node: Node) -> Iterator[None]:
    """Without a loop, all parts of a limiter begin at one instant, and go on from there once it is used."""
    node.tree.run(node.look_now)
    if node.loop is not None or node.tree.clock is not None:
        yield
        return
    start = node.read()
    node.read = partial(int, start)
    try:
        yield
    finally:
        node.read = _from_first_reading(start)


def _from_first_reading(start: int) -> ReadClock:
    """A clock for callers without a loop, which stands still until one of them reads it, and while a loop runs.

    The limiter follows the loop from there. So no real time since the reset counts in a test in virtual time.
    """
    begun = passed = 0

    def read() -> int:
        nonlocal begun, passed
        if running_loop() is None:
            now = monotonic_ns()
            begun = begun or now
            passed = now - begun
        return start + passed

    return read
