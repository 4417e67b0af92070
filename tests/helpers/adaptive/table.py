"""Runs policies against kinds of server, over round trips and starts: what each run shows, and means and worsts of several.

The figures are the share of what the server allowed, refusals, how soon a change is found, and fairness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean
from zlib import crc32

from helpers.adaptive.kinds import Kind, build
from helpers.adaptive.network import BIN, Client, Record, run
from helpers.adaptive.policies import POLICIES, Options
from helpers.adaptive.servers import SECOND, Steps

_ENOUGH = 0.85  # of a new limit: then it counts as found
_LOOK_BACK = 2 * SECOND // BIN  # parts over which the answers are counted for that
_LEAST = 20  # answers that say something


@dataclass(frozen=True, slots=True)
class Figures:
    """What one simulation showed."""

    share: float
    """Requests served, over what an asker of unlimited speed could have had (of several clients: all together)."""
    refused: float
    """Requests refused, in % of all."""
    fall: float | None
    """Seconds from a fall of the limit until 0.85 of the new one is served, at a rate at most a fifth above it; None: it never fell."""
    rise: float | None
    """Seconds from a rise of the limit until 0.85 of the new one is served; None: it never rose."""
    jain: float | None
    """Jain's index of fairness; None: one client."""
    top: float
    """The highest rate in the second half of the time, per second."""
    end: float
    """The rate at the end (of the first client)."""
    reached: float | None
    """Seconds until the rate was 0.95 of the ceiling; None: never."""


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
    for spec in kind.clients:
        start = min(highest, max(lowest, kind.limit * cell.start / len(kind.clients)))
        options = Options(start, lowest, highest, cell.strategy, cell.took, cell.refused)
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
    return Result(cell, _figures(kind, record)), record


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
    all_figures = [result.figures for result in results]
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


def _figures(kind: Kind, record: Record) -> Figures:
    """The figures of a record of that kind."""
    until = round(record.seconds * SECOND)
    served = [sum(parts) for parts in zip(*(client.served for client in record.clients), strict=True)]
    refused = sum(sum(client.refused) for client in record.clients)
    allowed = record.server.allowed(until)
    if all(client.demand is not None for client in record.clients):
        allowed = min(allowed, sum(client.wanted for client in record.clients))
    fair = [sum(client.served[round(kind.fair_from * SECOND) // BIN :]) for client in record.clients]
    rates = [sum(parts) for parts in zip(*(client.rates for client in record.clients), strict=True)]
    reached = next((part for part, rate in enumerate(rates) if rate >= 0.95 * kind.limit), None)
    return Figures(
        sum(served) / allowed,
        100 * refused / max(1, refused + sum(served)),
        max((_found(served, rates, instant, new, until) for instant, old, new in kind.changes if new < old), default=None),
        max((_found(served, None, instant, new, until) for instant, old, new in kind.changes if new > old), default=None),
        _jain(fair) if len(fair) > 1 else None,
        max(rates[len(rates) // 2 :]),
        rates[-1],
        None if reached is None else (reached + 1) * BIN / SECOND,
    )


def _found(served: Sequence[int], rates: Sequence[float] | None, change: int, limit: float, until: int) -> float:
    """Seconds from a change until 0.85 of the new limit was served for two seconds, or for as long as 20 requests take."""
    first = change // BIN
    back = max(_LOOK_BACK, round(_LEAST / limit * SECOND / BIN))
    enough = _ENOUGH * limit * back * BIN / SECOND
    for part in range(first + back, until // BIN + 1):
        if sum(served[part - back : part]) >= enough and (rates is None or rates[part - 1] <= 1.2 * limit):
            return (part - first) * BIN / SECOND
    return (until - change) / SECOND


def _jain(shares: list[int]) -> float:
    """1: all have the same; 1/n: one has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0
