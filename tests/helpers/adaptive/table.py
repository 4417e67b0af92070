"""Runs policies against kinds of server, over round trips and starts: the figures of each run, and means and worsts of several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any, NamedTuple
from zlib import crc32

from helpers.adaptive.network import BIN, Client, Record, run
from helpers.adaptive.policies import POLICIES, Options
from helpers.adaptive.servers import SECOND, Kind, build

_ENOUGH = 0.85  # of a new limit: then it counts as found
_LOOK_BACK = 2 * SECOND // BIN  # parts over which the answers are counted for that
_LEAST = 20  # answers that say something


class Figures(NamedTuple):
    """What one simulation showed."""

    share: float  # requests served, over what an asker of unlimited speed could have had (of several clients: all together)
    refused: float  # requests refused, in % of all
    fall: float | None  # seconds from a fall of the limit until 0.85 of the new one is served, at a rate at most a fifth above it
    rise: float | None  # seconds from a rise of the limit until 0.85 of the new one is served; None: it never rose
    jain: float | None  # Jain's index of fairness; None: one client
    top: float  # the highest rate in the second half of the time, per second
    end: float  # the rate at the end
    reached: float | None  # seconds until the rate was 0.95 of the limit; None: never


class Cell(NamedTuple):
    """One simulation: a policy against a kind of server, at a round trip (seconds), from a start (a multiple of the limit)."""

    policy: str
    kind: str
    round_trip: float
    start: float
    changed: Mapping[str, float]  # parameters of the kind
    jitter: str = "even"
    lowest: float | None = None
    highest: float | None = None
    options: Mapping[str, Any] = {}  # of the policy


def cells(
    policies: Iterable[str],
    kinds: Iterable[str],
    round_trips: Sequence[float] = (0.005, 0.05, 0.3),
    starts: Sequence[float] | None = None,
    changed: Mapping[str, float] = {},
    **options: Any,
) -> list[Cell]:
    """All combinations. ``starts``: None: those of the kind."""
    own = {name: options.pop(name) for name in ("jitter", "lowest", "highest") if name in options}
    return [
        Cell(policy, kind, round_trip, start, changed, **own, options=options)
        for policy, kind, round_trip in product(policies, kinds, round_trips)
        for start in starts or build(kind, **changed).starts
    ]


def simulate(cell: Cell, kind: Kind | None = None) -> tuple[Figures, Record]:
    """Run one cell. ``kind`` is another, fresh, instead of the one that the cell names."""
    kind = kind or build(cell.kind, **cell.changed)
    lowest, highest = cell.lowest or kind.lowest or kind.limit / 50, cell.highest or kind.highest or kind.limit * 20
    start = min(highest, max(lowest, kind.limit * cell.start / len(kind.clients)))
    clients = [
        Client(
            POLICIES[cell.policy](Options(start, lowest, highest, **cell.options)),
            cell.round_trip * spec.distance,
            spec.begins,
            spec.demand,
            cell.jitter,
        )
        for spec in kind.clients
    ]
    record = run(kind.server, clients, kind.seconds, crc32(f"{cell.kind} {cell.round_trip} {cell.start} 0".encode()))
    return _figures(kind, record), record


class Summary(NamedTuple):
    """Means and worsts over the cells of one policy and one kind."""

    share: float
    share_worst: float
    refused: float
    refused_worst: float
    fall: float | None
    rise: float | None
    jain: float | None
    top: float
    reached: float


def summary(seen: Sequence[Figures]) -> Summary:
    share, refused, fall, rise, jain, top, _, reached = zip(*seen, strict=True)
    return Summary(
        mean(share),
        min(share),
        mean(refused),
        max(refused),
        max((each for each in fall if each is not None), default=None),
        max((each for each in rise if each is not None), default=None),
        None if None in jain else mean(jain),
        max(top),
        max(float("inf") if each is None else each for each in reached),
    )


def _figures(kind: Kind, record: Record) -> Figures:
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
