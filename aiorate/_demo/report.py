"""The output of the demo: progress, tables and a plot. In colours on a terminal, as plain text in a pipe."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import plotext  # type: ignore[import-untyped]
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from aiorate.rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aiorate._demo.load import Load
    from aiorate._demo.verdict import Verdict

__all__ = ["arrivals_per_bin", "figures_table", "new_console", "plot", "progress", "verdict_text", "windows_table"]

_PLOT_HEIGHT = 15
_BINS = 110  # about 50 ms each in a run of default length
_STEPS = 4


def new_console() -> Console:
    """Standard output: as wide as the terminal, up to 100 columns. In a pipe 80 columns, without escape codes."""
    console = _Console(highlight=False)
    console.width = min(console.width, 100) if console.is_terminal else 80
    return console


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Pass the error on to the command line. rich would end the process with 1, which here means a broken guarantee."""
        raise  # rich calls this method while it handles the BrokenPipeError


@asynccontextmanager
async def progress(console: Console, what: str, load: Load) -> AsyncIterator[None]:
    """Show the progress of the body: a bar on a terminal, otherwise a line each second."""
    watch = _bar if console.is_terminal else _lines
    task = asyncio.create_task(watch(console, what, load))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()  # the task ends by itself only when it cannot write
    console.print(Text(f"  {what}: {load.total} requests answered in {load.seconds:g} s"))


async def _bar(console: Console, what: str, load: Load) -> None:
    columns = (TextColumn("  {task.description}"), BarColumn(), TextColumn("{task.fields[answered]} answered"), TimeRemainingColumn())
    # Drawn from the event loop. A thread for it would disturb the measurement.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(what, total=load.seconds, answered=0)
        now = asyncio.get_running_loop().time
        began = now()
        while True:
            bar.update(task, completed=min(now() - began, load.seconds), answered=load.total, refresh=True)
            await asyncio.sleep(0.1)


async def _lines(console: Console, what: str, load: Load) -> None:
    now = asyncio.get_running_loop().time
    began = now()
    while True:
        await asyncio.sleep(1)
        console.print(Text(f"  {what}: {now() - began:.0f} s, {load.total} answered"))


def figures_table(rows: Sequence[tuple[str, str, str]]) -> Table:
    """A row for each figure: its name, its value without the limiter, its value with the limiter."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("without", justify="right", style="yellow")
    table.add_column("with the limiter", justify="right", style="green")
    for row in rows:
        table.add_row(*row)
    return table


def windows_table(verdict: Verdict) -> Table:
    """The fullest window of each length beside the guarantee."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("any window of", "granted", "guarantee", "arrived", "guarantee + jitter"):
        table.add_column(name, justify="right")
    table.add_column("")
    for count in verdict.windows:
        limits = ["none" if most is None else str(most) for most in (count.granted_at_most, count.arrived_at_most)]
        mark = Text("-") if count.granted_at_most is None else Text("kept", "green") if count.kept else Text("BROKEN", "bold red")
        length = f"{count.window / NS_PER_SECOND:g} s"
        table.add_row(length, str(count.granted), limits[0], str(count.arrived), limits[1], mark)
    return table


def verdict_text(verdict: Verdict) -> Text:
    """The outcome in a sentence."""
    if verdict.unpaid:
        return Text(f"BROKEN: the server saw {verdict.unpaid} requests more than the limiter granted.", "bold red")
    if not verdict.kept:
        return Text("BROKEN: some window holds more than the guarantee allows.", "bold red")
    if not verdict.bounded:
        return Text("Every request had its permit. This strategy bounds no window, because it makes up for all missed time.")
    return Text("Kept: no window of any of these lengths holds more than the guarantee allows.", "bold green")


def plot(
    console: Console,
    without: Sequence[int],
    with_limiter: Sequence[int],
    asked: float,
    switch: float,
    seconds: float,
    title: str = "arrivals per second at the server: first without, then with the limiter",
) -> Text:
    """Arrivals per second over time: without the limiter until ``switch``, then with it. Instants are ns since the beginning."""
    width = seconds / _BINS
    edge = round(switch / width)
    counts = arrivals_per_bin(without, width)[:edge] + arrivals_per_bin(with_limiter, width)[edge:]
    top = max(max(counts) / width, asked)
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    for color, numbers in (("yellow", range(edge)), ("green", range(edge, _BINS))):
        # Steps, each of several points, so that no column of the terminal falls between two points.
        points = [(number + part / _STEPS, counts[number] / width) for number in numbers for part in range(_STEPS)]
        signal = figure.signal([x * width for x, _ in points], [y for _, y in points], marker=plotext.marker("hd", color))
        figure.draw(signal.fillx())
    figure.line(asked, style="dotted")
    ticks = sorted({0.0, asked, top})
    figure.ruler("y").lim(0, top).ticks(ticks, [f"{tick:.4g}" for tick in ticks])
    step = -(-seconds // 10)
    marks = [step * number for number in range(int(seconds // step) + 1)]
    figure.ruler("x").lim(0, seconds).ticks(marks, [f"{mark:g} s" for mark in marks])
    figure.title(title)
    figure.plot_size(console.width - 2, _PLOT_HEIGHT)
    drawing: str = figure.build().string(colorless=not console.is_terminal)
    return Text.from_ansi(drawing.encode(console.encoding, "replace").decode(console.encoding))


def arrivals_per_bin(instants: Sequence[int], width: float, bins: int = _BINS) -> list[int]:
    """The number of instants (ns) in each bin of ``width`` seconds. Instants after the last bin are left out."""
    counts = [0] * bins
    for instant in instants:
        number = int(instant / NS_PER_SECOND / width)
        if 0 <= number < bins:
            counts[number] += 1
    return counts
