"""Checks of what a Budget is given: its dimensions, and the budget that it shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._errors import called, kind_of
from aiorate._keyed_base import refuse_keyed
from aiorate._limiter import Limiter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiorate._keyed_base import Member
    from aiorate._several import Limits

__all__ = [
    "cannot_be_full",
    "check_dimensions",
    "check_names",
    "check_on_error",
    "check_same_scope",
    "not_a_budget",
    "shared_twice",
]


def check_names(of: str, dimensions: Iterable[str]) -> None:
    """Raise TypeError, which names the class ``of``, for options of other calls, which would be limits that nobody asked for."""
    for name in dimensions:
        if name in ("burst", "catch_up", "max_concurrency", "max_wait", "on_error", "precise"):
            raise TypeError(f"{of}({name}): this is an option of other calls, and cannot be the name of a dimension. Choose another name.")


def check_dimensions(dimensions: dict[str, Limiter | Limits]) -> None:
    """Raise TypeError or ValueError for dimensions that a budget cannot have."""
    if not dimensions:
        raise TypeError("Budget() needs at least one dimension, such as Budget(requests='500/min', tokens='200_000/min').")
    check_names("Budget", dimensions)
    limiters = [place for place, limit in dimensions.items() if isinstance(limit, Limiter)]
    if len(limiters) > 1:
        raise ValueError(
            f"Budget(): only one dimension may be a shared Limiter; {' and '.join(limiters)} are."
            " Give the others as rates or strategies, or share one Budget among all callers."
        )
    for place in limiters:
        limit = dimensions[place]
        if isinstance(limit, Limiter):
            limit._check_as_shared(f"Budget({place})", "the Budget")
    if len(limiters) == len(dimensions):
        raise ValueError("Budget(): with a shared Limiter as its only dimension, a budget adds nothing. Use the Limiter itself.")


def check_on_error(what: str, on_error: object) -> None:
    """Raise ValueError for anything but the two words."""
    if on_error not in ("keep", "refund"):
        raise ValueError(f"{called(what, on_error)} must be 'keep' or 'refund'.")


def check_same_scope(what: str, process: bool, shared: Member) -> None:
    """Raise ValueError, which names it ``what``, unless what is shared has the scope of the budget, which is that of the ``process``."""
    if process and shared._node.tree.threads is False:
        raise ValueError(f"{what}: this has scope='loop', and the budget has scope='process'. Create this with scope='process' too.")
    if not process and shared._node.tree.threads:
        raise ValueError(f"{what}: this has scope='process', and the budget is for one event loop. Create the budget with scope='process'.")


def not_a_budget(what: str, shared: object) -> TypeError:
    """The error for what is given as the argument ``what``, a budget that is shared."""
    refuse_keyed(what, shared)
    return TypeError(f"{what} must be a Budget, not {kind_of(shared)}. A shared Limiter is a dimension: Budget(tokens=limiter, ...).")


def shared_twice(what: str, place: str, limit: object) -> ValueError:
    """The error for a budget that shares ``limit`` already, which is its dimension ``place`` if it is a Limiter."""
    if isinstance(limit, Limiter):
        return ValueError(f"{what}: the dimension {place!r} is a shared Limiter. Make it a dimension of the shared budget instead.")
    return ValueError(f"{what}: the budget shares {limit!r} already. Let that one share this one.")


def cannot_be_full(what: str, most: int) -> ValueError:
    """The error for max_waiting of a budget that is shared."""
    return ValueError(
        f"{what}: a shared budget cannot have max_waiting={most}; at most one reservation of each line waits in it. Leave it out, and give"
        " max_waiting to the budgets that share it."
    )
