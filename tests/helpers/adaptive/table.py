"""Runs policies against kinds of server, over round trips and starts, and sums up means and worsts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from statistics import mean
from typing import TYPE_CHECKING
from zlib import crc32

from helpers.adaptive.figures import Figures, figures
from helpers.adaptive.kinds import Kind, build
from helpers.adaptive.network import Client, Record, run
from helpers.adaptive.policies import POLICIES, PolicyOptions
from helpers.adaptive.servers import Steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["ROUND_TRIPS", "Cell", "Result", "cells", "simulate", "summarise", "summary"]

ROUND_TRIPS = (0.005, 0.05, 0.3)


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation: a policy against a kind of server, at a round trip (seconds), from a start (a multiple of the limit)."""

    policy: str
    kind: str
    round_trip: float
    start: float
    seed: int = 0
    changed: tuple[tuple[str, float], ...] = ()
    """Parameters of the kind."""
    jitter: str = "even"
    strategy: str = "pool"
    took: bool = True
    lowest: float | None = None
    highest: float | None = None
    refused: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A cell and its figures."""

    cell: Cell
    figures: Figures


def cells(
    policies: Iterable[str],
    kinds: Iterable[str],
    round_trips: Sequence[float] = ROUND_TRIPS,
    starts: Sequence[float] | None = None,
    seeds: Sequence[int] = (0,),
    changed: Mapping[str, float] | None = None,
    **options: object,
) -> list[Cell]:
    """All combinations. ``starts``: None: those of the kind."""
    own = tuple((changed or {}).items())
    return [
        Cell(policy, kind, round_trip, start, seed, own, **options)  # type: ignore[arg-type]
        for policy, kind, round_trip, seed in product(policies, kinds, round_trips, seeds)
        for start in starts or build(kind, **dict(own)).starts
    ]


def simulate(cell: Cell, kind: Kind | None = None) -> tuple[Result, Record]:
    """Run one cell. ``kind`` is another, fresh, instead of the one that the cell names."""
    if kind is None:
        kind = build(cell.kind, **dict(cell.changed))
    lowest = cell.lowest or kind.lowest or kind.limit / 50
    highest = cell.highest or kind.highest or kind.limit * 20
    seed = crc32(f"{cell.kind} {cell.round_trip} {cell.start} {cell.seed}".encode())
    clients = []
    for number, spec in enumerate(kind.clients):
        start = min(highest, max(lowest, kind.limit * cell.start / len(kind.clients)))
        options = PolicyOptions(start, lowest, highest, strategy=cell.strategy, took=cell.took, refused=cell.refused, seed=seed + number)
        wants = spec.demand
        clients.append(
            Client(
                POLICIES[cell.policy](options),
                cell.round_trip * spec.distance,
                spec.begins,
                None if wants is None else Steps.of(wants),
                cell.jitter,
            )
        )
    record = run(kind.server, clients, kind.seconds, seed)
    return Result(cell, figures(kind, record)), record


def _result(cell: Cell) -> Result:
    return simulate(cell)[0]


def run_all(chosen: Sequence[Cell], jobs: int = 1) -> list[Result]:
    """The results of all cells, in their order, by one process or several."""
    if jobs == 1:
        return [_result(cell) for cell in chosen]
    with get_context("fork").Pool(jobs) as pool:
        return pool.map(_result, chosen, chunksize=1)


@dataclass(frozen=True, slots=True)
class Summary:
    """Means and worsts over the cells of one policy and one kind."""

    share: float
    share_worst: float
    refused: float
    refused_worst: float
    fall: float | None
    rise: float | None
    jain: float | None
    jain_worst: float | None
    top: float
    reached: float


def summary(results: Sequence[Result]) -> Summary:
    """Summarise the results of one policy and one kind."""
    return summarise([result.figures for result in results])


def summarise(all_figures: Sequence[Figures]) -> Summary:
    """The same of their figures."""
    fair = [each.jain for each in all_figures if each.jain is not None]
    return Summary(
        mean(each.share for each in all_figures),
        min(each.share for each in all_figures),
        mean(each.refused for each in all_figures),
        max(each.refused for each in all_figures),
        max((each.fall for each in all_figures if each.fall is not None), default=None),
        max((each.rise for each in all_figures if each.rise is not None), default=None),
        mean(fair) if fair else None,
        min(fair, default=None),
        max(each.top for each in all_figures),
        max(float("inf") if each.reached is None else each.reached for each in all_figures),
    )
