"""Checks of what a Budget is given: its dimensions, and the budget that it shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.errors import kind_of
from aiorate.keyed_base import refuse_keyed
from aiorate.limiter import Limiter
from aiorate.schedulers.interface import Scheduler
from aiorate.schedulers.token_pool import TokenPool
from aiorate.several import all_of

if TYPE_CHECKING:
    from aiorate.several import Limits
    from aiorate.waiting.deciding import HasDispatcher

__all__ = [
    "by_name",
    "cannot_be_full",
    "check_dimensions",
    "check_on_error",
    "check_same_scope",
    "not_a_budget",
    "shared_twice",
    "strategy_of",
]


def strategy_of(place: str, limit: Limits) -> Scheduler:
    """The strategy of a dimension that is not shared."""
    if isinstance(limit, Scheduler):
        return limit
    if isinstance(limit, (list, tuple)):
        return all_of(f"Budget({place})", limit)
    try:
        return TokenPool(limit)  # type: ignore[arg-type]  # which says what is wrong
    except TypeError as error:
        from aiorate.mistakes import dimension_meant

        raise TypeError(
            f"Budget({place}) must be a rate such as '500/min', a strategy, a list of these or a Limiter, not"
            f" {kind_of(limit)}.{dimension_meant(kind_of(limit))}"
        ) from error
    except ValueError as error:
        raise ValueError(f"Budget({place}): {error}") from None


def by_name(limits: object) -> str:
    """What to write in place of limits that have no names."""
    if isinstance(limits, dict) and limits:
        return "Budget(**limits)"
    return f"Budget(requests={limits!r})" if isinstance(limits, str) else "Budget(requests=...)"


def check_dimensions(dimensions: dict[str, Limiter | Limits]) -> None:
    """Raise TypeError or ValueError for dimensions that a budget cannot have."""
    if not dimensions:
        raise TypeError("Budget() needs at least one dimension, such as Budget(requests='500/min', tokens='200_000/min').")
    for place in ("max_wait", "on_error"):
        if place in dimensions:
            raise TypeError(f"Budget(): a dimension cannot be named {place!r}, which is an option of reserve(). Choose another name.")
    for place in ("burst", "timeout", "max_concurrency", "precise"):
        if place in dimensions:
            from aiorate.mistakes import NOT_DIMENSIONS

            raise TypeError(f"Budget({place}): {NOT_DIMENSIONS[place]}. If it is a dimension, give it another name.")
    limiters = [place for place, limit in dimensions.items() if isinstance(limit, Limiter)]
    if len(limiters) > 1:
        raise ValueError(
            f"Budget(): only one dimension may be a shared Limiter; {' and '.join(limiters)} are."
            " Give the others as rates or strategies, or share one Budget among all callers."
        )
    for place in limiters:
        limit = dimensions[place]
        if isinstance(limit, Limiter):
            limit.check_shared(f"Budget({place})", "the Budget")
    if len(limiters) == len(dimensions):
        raise ValueError("Budget(): with a shared Limiter as its only dimension, a budget adds nothing. Use the Limiter itself.")


def check_on_error(what: str, on_error: object) -> None:
    """Raise ValueError for anything but the two words."""
    if on_error not in ("keep", "refund"):
        raise ValueError(f"{what} must be 'keep' or 'refund'; {on_error!r} was given.")


def check_same_scope(what: str, process: bool, shared: HasDispatcher) -> None:
    """Raise ValueError, which names it ``what``, unless what is shared has the scope of the budget, which is that of the ``process``."""
    if process and shared.dispatcher.section is None:
        raise ValueError(f"{what}: this has scope='loop', and the budget has scope='process'. Create this with scope='process' too.")
    if not process and shared.dispatcher.section is not None:
        raise ValueError(f"{what}: this has scope='process', and the budget is for one event loop. Create the budget with scope='process'.")


def not_a_budget(what: str, shared: object) -> TypeError:
    """The error for what is given as the argument ``what``, a budget that is shared."""
    refuse_keyed(what, shared)
    if isinstance(shared, Limiter):
        hint = "Give a Limiter that is shared as a dimension, such as Budget(tokens=limiter, requests='500/min')."
    elif isinstance(shared, dict):
        hint = "For a dict of budgets, write KeyedBudget(factory, shared=budgets.get)."
    elif callable(shared):
        hint = "A function of the key belongs to KeyedBudget(factory, shared=...)."
    else:
        hint = "If it is a dimension, give it another name."
    return TypeError(f"{what} takes a Budget, which others share too, not {kind_of(shared)}. {hint}")


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
