"""Which trio run, and which of its tasks, runs in this thread."""

from __future__ import annotations

import trio

__all__ = ["TrioToken", "running_trio", "running_trio_task"]

TrioToken = trio.lowlevel.TrioToken


def running_trio(hosted: bool = False) -> TrioToken | None:
    """The token of the trio run in this thread; None: there is none, or another loop hosts it and no trio task runs now."""
    if hosted and not trio.lowlevel.in_trio_task():
        return None
    try:
        return trio.lowlevel.current_trio_token()
    except RuntimeError:
        return None


def running_trio_task() -> object:
    """The task that runs here."""
    return trio.lowlevel.current_task()
