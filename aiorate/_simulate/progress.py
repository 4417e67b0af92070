"""A progress bar on standard error, if that is a terminal and rich is installed."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

__all__ = ["Bar", "bar"]

_EVERY = 0.1  # seconds


class Bar:
    """Shows how far a step is. Without a terminal it does nothing."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._next = 0.0
        self._done = 0

    def begin(self, step: str) -> None:
        """Begin a step."""
        if self._progress is not None:
            for task in self._progress.task_ids:
                self._progress.remove_task(task)
            self._progress.add_task(step, total=None)
            self._next = 0.0
        self._done = 0

    def at(self, done: int, total: int | None) -> None:
        """Show how far it is; ``total`` None: unknown."""
        if self._progress is not None and monotonic() >= self._next:
            self._next = monotonic() + _EVERY
            self._progress.update(self._progress.task_ids[0], completed=done, total=total, refresh=True)

    def add(self, done: int, total: int | None = None) -> None:
        """Show that more is done."""
        self._done += done
        self.at(self._done, total)


@contextmanager
def bar() -> Iterator[Bar]:
    """A bar while the body runs. It is removed at the end."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield Bar(None)
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        yield Bar(None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        yield Bar(progress)
