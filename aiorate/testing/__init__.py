"""Tests without waiting: a loop in virtual time, a clock moved by hand, limits made as new, and the laws of schedulers.

``pytest_plugins = ["aiorate.testing"]`` in the ``conftest.py`` at the root of the tests adds the fixtures `virtual_loop` and
`reset_limiters`. Nothing in aiorate imports this package. PYTEST_DONT_REWRITE: it may be imported before.
"""

from __future__ import annotations

from aiorate.testing._laws import check_scheduler, simulate
from aiorate.testing._resetting import reset_limiters
from aiorate.testing._time import ManualClock, VirtualLoop

__all__ = ["ManualClock", "VirtualLoop", "check_scheduler", "reset_limiters", "simulate"]

pytest_plugins: list[str] = ["aiorate.testing._fixtures"]  # which needs pytest, and is imported by it alone
