"""Processes that share one limit through a store, beside what the machine makes of processes that share nothing: the floor.

Where other programs keep the machine busy, the two do not see the same machine, so the best of a few rounds counts. What must hold on
any machine, errors above all, must hold in each of them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from helpers.driving import LONG
from helpers.fleet import RATE, Order, Shares, together

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.local_store import Store


ROUNDS = 4

Figures = dict[str, tuple[float, float]]
"""By name: a figure, and the most that it may be."""


def orders(count: int = 4, **changes: Any) -> list[Order]:
    return [Order(**{"url": "", "rate": RATE, "seconds": 5.0, **changes})] * count


def floor(store: Store, seconds: float = 5.0, count: int = 4, **changes: Any) -> Shares:
    """What the machine makes of the same processes where they share nothing."""
    return together(orders(count, subject="floor", options={"processes": count}, seconds=seconds, **changes), store)


def slack(machine: Shares, window: float) -> float:
    """By how much the machine alone closes grants up."""
    return max(0.0, machine.fullest(window) - 1.0)


def missing(shares: float, machine: float, part: float) -> tuple[float, float]:
    """What is missing of the floor's figure, and the most that may be."""
    return 1.0 - shares / min(machine, 1.0), 1.0 - part


def in_one_round(measured: Callable[[], Figures]) -> None:
    """All figures must hold in one round of a few."""
    rounds: list[Figures] = []
    for _ in range(ROUNDS):
        rounds.append(measured())
        print({name: f"{figure:.4f} of {most:.4f}" for name, (figure, most) in rounds[-1].items()})  # shown by pytest -rP
        if all(figure <= most for figure, most in rounds[-1].values()):
            return
    shown = [", ".join(f"{name} {figure:.4f} > {most:.4f}" for name, (figure, most) in each.items() if figure > most) for each in rounds]
    pytest.fail(f"figures that exceeded their limits, by round: {shown}")


def until_true(condition: Callable[[], bool]) -> None:
    """Sleep until it holds."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def check(
    store: Store,
    workers: list[Order],
    *events: Any,
    part: float = 0.97,
    most: float = 1.01,
    tenth: float | None = None,
    calls: float | None = None,
    even: float | None = None,
    since: float | None = None,
    machine: dict[str, Any] | None = None,
) -> None:
    """The processes have no error, at least that part of what the machine can do (from an instant on), and at most that in any second.

    ``tenth`` is the most in any tenth of a second, ``calls`` the most of the store for each permit, and ``even`` the least evenness.
    """

    def measured() -> Figures:
        shares, alone = together(workers, store, *events), floor(store, **(machine or {}))
        assert shares.errors == {}
        delivered = shares.delivered() if since is None else shares.delivered(since)
        figures = {
            "missing": missing(delivered, alone.delivered(), part),
            "any 1 s": (shares.fullest(1.0), most + slack(alone, 1.0)),
        }
        if tenth is not None:
            figures["any 0.1 s"] = shares.fullest(0.1), tenth + slack(alone, 0.1)
        if calls is not None:
            figures["calls per permit"] = shares.calls / len(shares.all), calls
        if even is not None:
            figures["unevenness"] = missing(shares.evenness, alone.evenness, even)
        return figures

    in_one_round(measured)
