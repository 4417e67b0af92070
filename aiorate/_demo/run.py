"""Runs the demo: measures without and with a limiter, shows both, and decides the exit code."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from aiorate._demo import report
from aiorate._demo.load import Load, WatchedLimiter, run_load
from aiorate._demo.server import ServerError, fetch_arrivals, server
from aiorate._demo.strategies import make
from aiorate._demo.verdict import judge, percentile
from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from aiorate import Rate
    from aiorate._demo.verdict import Verdict

__all__ = ["Outcome", "run", "show"]

_FREE_SECONDS = 1.5  # the longest run without the limiter
_WINDOWS = (50_000_000, 100_000_000, 500_000_000, NS_PER_SECOND)  # ns


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of both runs. Instants are ns since the start of their run."""

    rate: Rate
    limiter: WatchedLimiter
    free: Load
    free_arrivals: Sequence[int]
    load: Load
    arrivals: Sequence[int]
    verdict: Verdict


def run(rate: Rate, strategy: str, seconds: float, clients: int, port: int) -> int:
    """Run the demo and show its results; returns the exit code: 0, 1 if the guarantee was broken, 2 if the demo could not run."""
    console = report.new_console()
    try:
        limiter = WatchedLimiter(make(strategy, rate))
    except ValueError as error:
        return _refuse(str(error))
    half = clients // 2
    console.print(Text(f"{strategy} at {rate}: one limiter for {clients - half} httpx2 and {half} aiohttp clients"))
    try:
        return asyncio.run(_run(console, rate, limiter, seconds, clients, port))
    except ServerError as error:
        return _refuse(str(error))


async def _run(console: Console, rate: Rate, limiter: WatchedLimiter, seconds: float, clients: int, port: int) -> int:
    outcome = await _measure(console, rate, limiter, seconds, clients, port)
    errors = [*outcome.free.errors, *outcome.load.errors]
    if errors:
        return _refuse(f"{len(errors)} requests failed, so this measured something else; the first: {errors[0]}")
    show(console, outcome)
    return 0 if outcome.verdict.kept else 1


async def _measure(console: Console, rate: Rate, limiter: WatchedLimiter, seconds: float, clients: int, port: int) -> Outcome:
    free, load = Load(min(_FREE_SECONDS, seconds)), Load(seconds)
    async with server(port) as url:
        async with report.progress(console, "without", free):
            await run_load(url, free, clients)
        free_arrivals = await fetch_arrivals(url)

        async with report.progress(console, "with the limiter", load):
            await run_load(url, load, clients, limiter)
        arrivals = await fetch_arrivals(url)
    windows = {window for window in (*_WINDOWS, rate.period_ns) if window <= seconds * NS_PER_SECOND}
    verdict = judge(limiter.bound_ns, limiter.grants, arrivals, windows or {round(seconds * NS_PER_SECOND)})
    return Outcome(rate, limiter, free, _since(free, free_arrivals), load, _since(load, arrivals), verdict)


def show(console: Console, outcome: Outcome) -> None:
    """Print tables, plot and verdict."""
    free, load, limiter = outcome.free, outcome.load, outcome.limiter
    asked = outcome.rate.per_second
    free_rate, delivered = _per_second(outcome.free_arrivals, free), _per_second(outcome.arrivals, load)
    waits = [wait * 1_000 for wait in limiter.waits]
    rows = [
        ("asked rate", "none", f"{asked:.1f}/s"),
        ("delivered rate", f"{free_rate:.1f}/s", f"{delivered:.1f}/s ({delivered / asked:.1%})"),
        ("requests by httpx2", str(free.answered["httpx2"]), str(load.answered["httpx2"])),
        ("requests by aiohttp", str(free.answered["aiohttp"]), str(load.answered["aiohttp"])),
        ("waits p50", "-", f"{percentile(waits, 50):.1f} ms"),
        ("waits p99", "-", f"{percentile(waits, 99):.1f} ms"),
        ("skipped permits", "-", str(limiter.statistics().skipped)),
    ]
    console.print(report.figures_table(rows))
    seconds = free.seconds + load.seconds
    limited = [instant + round(free.seconds * NS_PER_SECOND) for instant in outcome.arrivals]
    console.print(report.plot(console, outcome.free_arrivals, limited, asked, free.seconds, seconds))
    console.print(report.windows_table(outcome.verdict))
    console.print(
        Text(
            "Granted: the limiter's own grants, to the nanosecond, against its guarantee (catch_up included). Arrived: the requests"
            f" that the server saw. Their transit times differed by {outcome.verdict.jitter / 1e6:.1f} ms (the jitter), so arrivals"
            " may be closer together than grants. The last column is the guarantee for a window longer by that much.\n"
        )
    )
    console.print(report.verdict_text(outcome.verdict))
    if delivered < 0.95 * asked and free_rate < 1.1 * asked:
        console.print(Text(f"This machine makes {free_rate:.0f} requests/s without any limiter. Ask for less to see the limiter at work."))


def _since(load: Load, instants: Sequence[int]) -> list[int]:
    return [instant - load.began for instant in instants]


def _per_second(arrivals: Sequence[int], load: Load) -> float:
    """Arrivals during the run, divided by its length."""
    return sum(instant < load.seconds * NS_PER_SECOND for instant in arrivals) / load.seconds


def _refuse(why: str) -> int:
    print(f"aiorate demo: {why}", file=sys.stderr)
    return 2
