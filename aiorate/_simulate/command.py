"""The command ``simulate --arrivals``: reads, runs, searches and prints."""

from __future__ import annotations

import json
import os
import shutil
import sys
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorate._demo import strategies
from aiorate._simulate.arrivals import arrange
from aiorate._simulate.errors import ArrivalsError
from aiorate._simulate.play import Admission, play
from aiorate._simulate.poisson import poisson
from aiorate._simulate.progress import Bar, bar
from aiorate._simulate.report import Limit, Suggestion, as_json, as_text
from aiorate._simulate.source import read_arrivals
from aiorate._simulate.suggest import Search
from aiorate._simulate.summary import grants, summarise
from aiorate.rate import Rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate import Scheduler
    from aiorate._simulate.arrivals import Arrivals
    from aiorate._simulate.goals import Goal

__all__ = ["Asked", "run"]

POISSON = "poisson:"
_MOST_MADE = 10_000_000
_MADE = 10_000  # requests, unless said otherwise
_WITH_BURST = ("TokenPool", "TokenBucket")  # whose users may want a bucket with another burst


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command line. Durations are ns."""

    arrivals: str
    rate: Rate
    strategy: str
    burst: int | None
    admission: Admission
    form: str
    column: str | None
    unit: str
    key: str | None
    spread: str | None
    skip_broken: bool
    requests: int | None
    duration: int | None
    seed: int
    goals: tuple[Goal, ...]
    as_json: bool
    plot: bool


def run(asked: Asked) -> int:
    """Run the command; returns its exit code: 0, or 2 if the arrivals or the limit cannot be used."""
    try:
        with bar() as progress:
            progress.begin("reading")
            arrivals = _made(asked) if asked.arrivals.startswith(POISSON) else _read(asked, progress)
            waits = array("q")
            progress.begin("simulating")
            for part in play(lambda: _make(asked, asked.rate, asked.burst, arrivals), arrivals, asked.admission):
                waits.extend(part)
                progress.add(len(part), len(arrivals.instants))
            summary = summarise(arrivals, waits, asked.rate.period_ns)
            progress.begin("searching")
            suggestions = _suggest(asked, arrivals, progress) if asked.goals else []
    except ValueError as error:
        print(f"aiorate simulate: {error}", file=sys.stderr)
        return 2
    limit = Limit(
        strategies.code(asked.strategy, asked.rate, asked.burst), str(asked.rate), asked.rate.per_second, asked.admission, asked.key
    )
    goals = ", ".join(goal.text for goal in asked.goals) or None
    if asked.as_json:
        print(json.dumps(as_json(arrivals, limit, summary, goals, suggestions), indent=2))
        return 0
    print(_encodable(as_text(arrivals, limit, summary, goals, suggestions)))
    if asked.plot and (arrivals.span or summary.longest):
        print()
        print(_plot(arrivals, waits, asked))
    return 0


def _encodable(text: str) -> str:
    """The text, with escapes for what standard output cannot encode, such as letters of a file's name."""
    encoding = _encoding()
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _encoding() -> str:
    return (sys.stdout and sys.stdout.encoding) or "utf-8"


def _read(asked: Asked, progress: Bar) -> Arrivals:
    for value, option in ((asked.requests, "--requests"), (asked.duration, "--duration")):
        if value is not None:
            raise ArrivalsError(f"{option} is for arrivals that are made, such as --arrivals {POISSON}50/s.")
    return read_arrivals(
        asked.arrivals,
        form=asked.form,
        column=asked.column,
        unit=asked.unit,
        key=asked.key,
        spread=asked.spread,
        skip_broken=asked.skip_broken,
        seed=asked.seed,
        watch=progress.at,
    )


def _made(asked: Asked) -> Arrivals:
    text = asked.arrivals.removeprefix(POISSON)
    rate = Rate.parse(text)
    if asked.key is not None or asked.column is not None:
        raise ArrivalsError(f"--key and --column are for files; {asked.arrivals} has no columns.")
    if asked.requests is None and asked.duration is not None and rate.permits_in(asked.duration) > _MOST_MADE:
        raise ArrivalsError(
            f"{asked.arrivals} makes {rate.permits_in(asked.duration):.3g} requests in that time; at most {_MOST_MADE} are allowed."
        )
    requests = _MADE if asked.requests is None and asked.duration is None else asked.requests
    instants = poisson(rate, requests, asked.duration, asked.seed)
    return arrange(asked.arrivals, f"seed {asked.seed}", instants, None, None, whole=False, skipped=0, seed=0)


def _make(asked: Asked, rate: Rate, burst: int | None, arrivals: Arrivals, strategy: str | None = None) -> Scheduler:
    return strategies.make(strategy or asked.strategy, rate, origin=arrivals.start, burst=burst)


def _suggest(asked: Asked, arrivals: Arrivals, progress: Bar) -> Sequence[Suggestion]:
    search = Search(arrivals, asked.admission, asked.goals, progress.add)
    found = []
    too_slow = _too_slow(asked, arrivals)
    if asked.strategy in _WITH_BURST:
        burst = search.smallest_burst(lambda burst: _make(asked, asked.rate, burst, arrivals, "TokenBucket"))
        about = f"the smallest burst at {asked.rate}"
        assert burst is not None  # a bucket that holds the permits of all requests keeps every goal
        found.append(Suggestion("burst", about, strategies.code("TokenBucket", asked.rate, burst), too_slow))
    burst = asked.burst
    if asked.strategy == "TokenBucket" and burst is None:
        burst = strategies.default_burst(asked.rate)
    with_permits = asked.rate.with_permits  # of a month too
    rate = search.smallest_rate(lambda rate: _make(asked, with_permits(rate.permits), burst, arrivals), asked.rate.period_ns)
    about = f"the smallest rate{'' if burst is None else f' with a burst of {burst}'}"
    if rate is None:
        why = "No rate up to 1000000000/s is enough: too many requests come at one instant, or the strategy begins too slowly."
        found.append(Suggestion("rate", about, None, why))
    else:
        found.append(Suggestion("rate", about, strategies.code(asked.strategy, with_permits(rate.permits), burst), None))
    if too_slow and len(found) > 1:
        found.reverse()
    return found


def _too_slow(asked: Asked, arrivals: Arrivals) -> str | None:
    """The reservation about a burst where more arrives than the rate grants."""
    mean = arrivals.per_second
    if mean is None or asked.key is not None or asked.admission.refuses:
        return None
    mean *= asked.admission.permits
    if mean <= asked.rate.per_second:
        return None
    return (
        f"It is enough for these arrivals only: {mean:.4g} permits/s are asked for on average, more than the rate, so no burst is"
        " enough for long."
    )


def _plot(arrivals: Arrivals, waits: array[int], asked: Asked) -> str:
    terminal = sys.stdout is not None and sys.stdout.isatty()
    try:
        from aiorate._simulate.plot import draw
    except ModuleNotFoundError as error:
        if error.name != "plotext":
            raise
        return 'For a plot: pip install "aiorate[demo]"'
    width = min(shutil.get_terminal_size((80, 24)).columns, 100) if terminal else 80
    limit = asked.rate.per_second / asked.admission.permits if asked.key is None else None
    colours = terminal and "NO_COLOR" not in os.environ
    arrived, granted = arrivals.instants, grants(arrivals.instants, waits)
    if asked.key is not None:
        arrived, granted = array("q", sorted(arrived)), array("q", sorted(granted))
    drawing = draw(arrived, granted, limit, width, colours=colours)
    try:
        drawing.encode(_encoding())
    except UnicodeEncodeError:
        return "For a plot: PYTHONIOENCODING=utf-8"  # question marks would show nothing
    return drawing
