"""The options of ``simulate --arrivals``: adds them to a parser, and checks them together."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from aiorate._simulate.arrivals import SPREADS
from aiorate._simulate.command import POISSON, Asked
from aiorate._simulate.csv_times import UNITS
from aiorate._simulate.goals import parse_goals
from aiorate._simulate.play import Admission
from aiorate._simulate.source import FORMATS
from aiorate._simulate.words import duration_to_ns

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from aiorate import Rate

    T = TypeVar("T")

__all__ = ["add_options", "needs_arrivals", "read_options"]

_FLAGS = {
    "form": "--format",
    "column": "--column",
    "unit": "--unit",
    "key": "--key",
    "spread": "--spread",
    "skip_broken": "--skip-broken",
    "duration": "--duration",
    "seed": "--seed",
    "burst": "--burst",
    "max_wait": "--max-wait",
    "max_waiting": "--max-waiting",
    "suggest": "--suggest",
    "json": "--json",
    "no_plot": "--no-plot",
}


def add_options(parser: argparse.ArgumentParser, count: Callable[[str], float]) -> None:
    """Add them. ``count`` reads a whole number of 1 or more, or raises ArgumentTypeError."""
    gone = argparse.SUPPRESS

    def add(group: Any, name: str, about: str, **more: Any) -> None:
        group.add_argument(_FLAGS[name], dest=name, default=gone, help=about, **more)

    group = parser.add_argument_group("your own traffic", "With --arrivals, requests come when the file says, and the result is a summary.")
    group.add_argument(
        "--arrivals",
        metavar="FILE",
        default=gone,
        help=f"an access log (combined or common format), or a CSV file of times, either compressed by gzip or not; - for standard input;"
        f" {POISSON}50/s to make arrivals at random",
    )
    add(group, "form", "the format of the file: auto looks at its first line (default: auto)", choices=FORMATS)
    add(group, "column", "CSV: the column of the times, by its name in the header or its number from 1", metavar="COLUMN")
    add(group, "unit", "CSV: what numbers count since 1970 (default: s)", choices=tuple(UNITS))
    add(group, "spread", "how to spread requests whose times are whole seconds (default: even for a log, none for CSV)", choices=SPREADS)
    add(group, "skip_broken", "leave out lines without a time, and count them; otherwise they are errors", action="store_true")
    add(
        group,
        "duration",
        "how long to make arrivals at random, such as 10min, in place of --requests",
        metavar="TIME",
        type=_read(duration_to_ns),
    )
    add(group, "seed", "the seed of arrivals and spreads at random (default: 0)", type=_read(_seed), metavar="NUMBER")

    group = parser.add_argument_group("the limit, and what to ask of it (with --arrivals)")
    add(group, "burst", "the burst of a TokenBucket, which is then the default strategy", type=count, metavar="PERMITS")
    add(group, "key", "a limit for each client: 'address' for a log, a column for CSV", metavar="KEY")
    add(group, "max_wait", "refuse requests that would wait longer, such as 500ms", metavar="TIME", type=_read(duration_to_ns))
    add(group, "max_waiting", "refuse requests that find this number of others waiting", metavar="NUMBER", type=_read(_from_0))
    add(group, "suggest", "find the smallest burst and rate that keep p99=1s, max=5s or, with --max-wait, refused=1%%", metavar="GOALS")
    add(group, "json", "print the result as JSON", action="store_true")
    add(group, "no_plot", "print no plot", action="store_true")


def read_options(
    rate: Rate,
    strategy: str | None,
    requests: int | None,
    permits: int,
    arrivals: str | None = None,
    burst: int | None = None,
    max_wait: int | None = None,
    max_waiting: int | None = None,
    suggest: str | None = None,
    form: str = "auto",
    column: str | None = None,
    unit: str = "s",
    key: str | None = None,
    spread: str | None = None,
    skip_broken: bool = False,
    duration: int | None = None,
    seed: int = 0,
    json: bool = False,
    no_plot: bool = False,
) -> Asked:
    """What was asked for. Raises ValueError if options do not fit together."""
    assert arrivals is not None
    if burst is not None and strategy not in (None, "TokenBucket"):
        raise ValueError(f"--burst is that of a TokenBucket; {strategy} has none.")
    strategy = strategy or ("TokenPool" if burst is None else "TokenBucket")
    if burst is not None and burst < permits:
        raise ValueError(f"--permits {permits} can never be granted at once by --burst {burst}.")
    goals = () if suggest is None else parse_goals(suggest)
    if max_wait is None and max_waiting is None and any(goal.wait is None for goal in goals):
        raise ValueError("--suggest refused=... needs --max-wait or --max-waiting: without them nothing is refused.")
    if requests is not None and duration is not None:
        raise ValueError("--requests and --duration exclude each other: give one of them.")
    admission = Admission(permits, max_wait, max_waiting)
    return Asked(
        arrivals,
        rate,
        strategy,
        burst,
        admission,
        form,
        column,
        unit,
        key,
        spread,
        skip_broken,
        requests,
        duration,
        seed,
        goals,
        json,
        not no_plot,
    )


def needs_arrivals(options: dict[str, object]) -> str | None:
    """The first option that needs ``--arrivals``; None: there is none."""
    return next((flag for name, flag in _FLAGS.items() if name in options), None)


def _read(convert: Callable[[str], T]) -> Callable[[str], T]:
    def read(text: str) -> T:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValueError(f"{text[:80]!r} is not a whole number of at most 18 digits")
    return int(text)


def _from_0(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(f"{text[:80]!r} is not a whole number from 0 to 999999999")
    return int(text)
