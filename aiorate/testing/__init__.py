"""Tests without waiting: a clock by hand, a loop in virtual time, and the laws that every scheduler obeys.

Nothing in aiorate imports this package, and only `check_scheduler` needs more than the standard library: hypothesis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.testing.clock import ManualClock
from aiorate.testing.loop import VirtualLoop
from aiorate.testing.simulation import simulate
from aiorate.testing.transcript import transcript

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.schedulers.interface import Scheduler

__all__ = ["ManualClock", "VirtualLoop", "check_scheduler", "simulate", "transcript"]


def check_scheduler(factory: Callable[[], Scheduler], *, examples: int = 100) -> None:
    """Try the laws of `aiorate.schedulers.interface` on schedulers that the factory makes; AssertionError names the law.

    Needs hypothesis. ``examples`` is how many histories are tried for each law. Schedules must run from the first instant
    given, as ours do without ``start``: the laws begin at instants of their own.
    """
    from aiorate.testing.laws import LAWS, run_law

    for law in LAWS:
        run_law(law, factory, examples)
