"""Runs policies against kinds of server, over round trips and starts, and prints means and worsts.

``python tests/benchmarks/adaptive`` is its command.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from statistics import mean
from typing import TYPE_CHECKING
from zlib import crc32

from benchmarks.adaptive.figures import Figures, figures
from benchmarks.adaptive.kinds import KINDS, Kind, build
from benchmarks.adaptive.network import JITTERS, Client, Record, run
from benchmarks.adaptive.policies import POLICIES, STRATEGIES, PolicyOptions
from benchmarks.adaptive.servers import Steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["ROUND_TRIPS", "Cell", "Result", "cells", "main", "simulate", "summarise", "summary"]

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    policies = [name for name in POLICIES if any(word.lower() in name.lower() for word in options.policies)]
    try:
        changed = dict(_number(text) for text in options.set)
        chosen = cells(
            policies,
            options.kinds,
            [each / 1000 for each in options.round_trips],
            options.starts,
            options.seeds,
            changed,
            jitter=options.jitter,
            strategy=options.strategy,
            took=not options.no_took,
            lowest=options.lowest,
            highest=options.highest,
            refused=options.refused,
        )
    except ValueError as error:
        print(f"adaptive: {error}", file=sys.stderr)
        return 2
    if options.trace:
        for cell in chosen:
            _trace(cell)
        return 0
    results = run_all(chosen, options.jobs)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
        return 0
    if options.each:
        for result in results:
            cell = result.cell
            where = f"{cell.policy}, {cell.kind}, {cell.round_trip * 1000:g} ms, start {cell.start:g}, seed {cell.seed}"
            print(f"{where:60} {_words(summary([result]), worst=False)}")
        print()
    for policy in policies:
        print(f"{policy}: mean; worst")
        for kind in options.kinds:
            some = [result for result in results if (result.cell.policy, result.cell.kind) == (policy, kind)]
            print(f"  {KINDS[kind][0]:46} {_words(summary(some))}")
    return 0


def _words(each: Summary, *, worst: bool = True) -> str:
    words = [f"share {each.share:.3f}", f"refused {each.refused:5.2f} %"]
    if worst:
        words = [f"share {each.share:.3f}; {each.share_worst:.3f}", f"refused {each.refused:5.2f}; {each.refused_worst:5.2f} %"]
    words += [f"{name} {value:.1f} s" for name, value in (("fall", each.fall), ("rise", each.rise)) if value is not None]
    if each.jain is not None:
        words.append(f"Jain {each.jain:.3f}" + (f"; {each.jain_worst:.3f}" if worst else ""))
    words.append(f"top {each.top:.4g}/s")
    if each.reached != float("inf"):
        words.append(f"at 0.95 after {each.reached:.1f} s")
    return ", ".join(words)


def _trace(cell: Cell) -> None:
    """Print what was served and refused, and the rate, second by second."""
    _, record = simulate(cell)
    print(f"{cell}: second, limit, then for each client rate, served, refused")
    for second in range(int(record.seconds)):
        parts = slice(4 * second, 4 * second + 4)
        row = [f"{second:5}", f"{record.server.limit(second * 1_000_000_000):8.1f}"]
        row += [f"{each.rates[parts][-1]:10.2f} {sum(each.served[parts]):6} {sum(each.refused[parts]):5}" for each in record.clients]
        print(" ".join(row))


def _number(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    number = float(value)
    return name, int(number) if number == int(number) else number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python tests/benchmarks/adaptive", description="Policies that look for the limit of a server, against models of servers."
    )
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=list(KINDS), metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--policies", nargs="+", default=["AdaptiveRate"], metavar="WORD", help=f"whose name has it: {', '.join(POLICIES)}")
    parser.add_argument("--round-trips", nargs="+", type=float, default=[5, 50, 300], metavar="MS", help="least round trips in ms")
    parser.add_argument("--starts", nargs="+", type=float, metavar="FACTOR", help="multiples of the true limit (default: 0.1 1 10)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="N", help="the seeds (default: 0)")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=NUMBER", help="parameters of the kind (see kinds.py)")
    parser.add_argument("--jitter", choices=tuple(JITTERS), default="even", help="of the network")
    parser.add_argument("--strategy", choices=tuple(STRATEGIES), default="pool", help="of the limiter")
    parser.add_argument("--no-took", action="store_true", help="do not tell how long an answer took")
    parser.add_argument("--lowest", type=float, help="the lowest rate (default: a fiftieth of the limit)")
    parser.add_argument("--highest", type=float, help="the highest rate (default: 20 times the limit)")
    parser.add_argument("--refused", type=float, help="AdaptiveRate's refused=")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--each", action="store_true", help="print each cell too")
    parser.add_argument("--trace", action="store_true", help="print each cell second by second, and no table")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    return parser
