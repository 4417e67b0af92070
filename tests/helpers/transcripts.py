"""Short names for the transcripts that tests of schedulers compare."""

from __future__ import annotations

import aiorate
from aiorate.testing import simulate
from aiorate.testing import transcript as waits

__all__ = ["S", "grants", "waits"]

S = 1_000_000_000


def grants(scheduler: aiorate.Scheduler, count: int, begin: float = 0) -> str:
    """The instants, in seconds, of ``count`` grants of one permit each to a line that forms at ``begin``."""
    return " ".join(f"{at / S:.9g}" for at in simulate(scheduler, [round(begin * S)] * count))
