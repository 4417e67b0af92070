"""Tests without waiting: a clock moved by hand, a loop in virtual time, and the laws that every scheduler obeys.

Nothing in aiorate imports this package. `check_scheduler` needs hypothesis, and `aiorate.testing.fixtures`, which is not imported here,
needs pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate.testing.clock import ManualClock
from aiorate.testing.loop import VirtualLoop
from aiorate.testing.resetting import ResetLimiters, reset_limiters
from aiorate.testing.simulation import simulate
from aiorate.testing.transcript import transcript

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.schedulers.interface import Scheduler

__all__ = ["ManualClock", "ResetLimiters", "VirtualLoop", "check_scheduler", "reset_limiters", "simulate", "transcript"]


def check_scheduler(factory: Callable[[], Scheduler], *, examples: int = 100) -> None:
    """Try the laws of `aiorate.schedulers.interface` on schedulers that the factory makes.

    Needs hypothesis. ``examples`` is the number of histories for each law. The factory makes a new scheduler at each call, whose
    schedule runs from the first instant that it is given, because the laws choose their own instants.

    Raises AssertionError, which names the law and shows the shortest history that breaks it.
    """
    if not callable(factory) or (isinstance(factory, type) and _needs_arguments(factory)):
        raise TypeError("check_scheduler() takes a function that makes a strategy: check_scheduler(lambda: TokenBucket('10/s', burst=5)).")
    from aiorate.testing.laws import LAWS, run_law

    for law in LAWS:
        run_law(law, factory, examples)


def _needs_arguments(kind: type) -> bool:
    from inspect import signature

    try:
        signature(kind).bind()
    except TypeError:
        return True
    return False
