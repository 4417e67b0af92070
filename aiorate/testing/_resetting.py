"""Limits that begin each test as new, although a module made them once."""

from __future__ import annotations

import gc
from functools import cache, partial
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
    nodes: dict[Node, None] = {}  # shared ones first: requests in line take from these at once
    for limit in limits:
        parts = [limit.shared, *(limit[key] for key in limit)] if isinstance(limit, Keyed) else [limit]
        for part in filter(None, parts):
            levels: list[Node] = [part._node if isinstance(part, Budget) else part._lowest]
            while (above := levels[-1].above) is not None:
                levels.append(above)
            nodes |= dict.fromkeys(reversed(levels))
    for node in nodes:
        _reset(node)
    for limit in limits:
        if isinstance(limit, Keyed):
            limit.forget()


def _reset(node: Node) -> None:
    tree = node.tree
    tree.run(node.look_now)
    if isinstance(node.scheduler, Places) and node.scheduler.used:
        if tree.loop is not None:
            return  # who is inside will leave
        gc.collect()  # and so do holders of a closed loop, which are garbage
    if tree.loop is not None or tree.clock is not None:
        tree.run(node.reset)
        return
    start = tree.read()
    tree.read = partial(int, start)  # all parts begin at one instant
    try:
        tree.run(node.reset)
    finally:
        first = cache(monotonic_ns)  # read at the next use: real time until then must not count in virtual time
        tree.read = lambda: start - first() + monotonic_ns()
