"""Tests without waiting: a loop in virtual time, a clock moved by hand, and the laws that every scheduler obeys.

Nothing in aiorate imports this package. `aiorate.testing.fixtures`, which is not imported here, needs pytest.
"""

from __future__ import annotations

from aiorate.testing._laws import check_scheduler
from aiorate.testing._resetting import reset_limiters
from aiorate.testing._simulation import simulate
from aiorate.testing._time import ManualClock, VirtualLoop

__all__ = ["ManualClock", "VirtualLoop", "check_scheduler", "reset_limiters", "simulate"]
