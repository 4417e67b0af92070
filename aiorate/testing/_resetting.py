"""Limits that begin each test as new, although a module made them once. Knows nothing of pytest."""

from __future__ import annotations

import gc
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from aiorate._errors import kind_of
from aiorate._limiters.budget import Budget
from aiorate._limiters.keyed import Keyed
from aiorate._limiters.limiter import Limiter
from aiorate._schedulers.places import Places

if TYPE_CHECKING:
    from aiorate._limiters.budget import KeyedBudget
    from aiorate._limiters.keyed import KeyedLimiter
    from aiorate._loops.loop import ReadClock
    from aiorate._tree.limit import Limit as Node

    Limit = Limiter | Budget | KeyedLimiter[Any] | KeyedBudget[Any]


def reset_limiters(*limits: Limit) -> None:
    """Reset limits, and all that they share: as full or empty as they start, no debt, no pause, counters at 0, keys forgotten.

    Places that were taken in a loop that is closed are free. A rate that was changed stays, and so does a limit that was closed. Requests
    that wait in a loop which is still open stay in line. Raises TypeError for anything else, and nothing is reset then. RuntimeError for
    limits in Redis, which other processes share, for a strategy without the method ``reset``, and for a limiter of ``scope="loop"`` in use
    by a running event loop of another thread.
    """
    for limit in limits:
        if not isinstance(limit, (Limiter, Budget, Keyed)):
            raise TypeError(f"reset_limiters() takes limiters and budgets, each as an argument of its own, not {kind_of(limit)}.")
    done: set[Node] = set()
    for limit in limits:
        if isinstance(limit, Keyed):
            for part in [limit.shared, *(limit[key] for key in limit)]:
                _reset(part, done)
            limit.forget()
        else:
            _reset(limit, done)


def _reset(limit: Limiter | Budget | None, done: set[Node]) -> None:
    """Reset a limit, after those that it shares: requests in line take from these at once."""
    if limit is None:
        return
    levels = [limit._node if isinstance(limit, Budget) else limit._lowest]
    while levels[-1].above is not None:
        levels.append(levels[-1].above)
    for node in reversed([each for each in levels if each not in done]):  # thousands of keys may share one
        done.add(node)
        node.tree.run(node.look_now)
        if isinstance(node.scheduler, Places) and node.scheduler.used:
            if node.tree.loop is not None:
                continue  # who is inside will leave
            gc.collect()  # and so do holders that are garbage, of a loop that is closed
        start, real = node.read(), node.tree.loop is None and node.tree.clock is None
        if real:
            node.read = partial(int, start)  # all parts begin at one instant
        try:
            if isinstance(limit, Limiter) and node is limit._node:
                limit.reset()
            else:
                node.tree.run(node.reset)
        finally:
            if real:
                node.read = _from_first_reading(start)


def _from_first_reading(start: int) -> ReadClock:
    """A clock that stands still until it is read: no real time since the reset counts in a test in virtual time."""
    begun = 0

    def read() -> int:
        nonlocal begun
        now = monotonic_ns()
        begun = begun or now
        return start + now - begun

    return read
