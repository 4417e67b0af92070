"""The progress of a run, on stderr: one changing line on a terminal, otherwise line after line."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["progress"]


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that shows a line."""
    begin = time.monotonic()

    def stamped(line: str) -> str:
        seconds = int(time.monotonic() - begin)
        return f"{seconds // 60:3}:{seconds % 60:02} {line}"

    if not sys.stderr.isatty():
        yield lambda line: print(stamped(line), file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # Drawn only when there is a new line. A thread that draws in between would be measured too.
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield lambda line: live.update(Text(stamped(line), style="cyan", no_wrap=True, overflow="ellipsis"), refresh=True)
