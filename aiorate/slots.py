"""Open-loop pacing: a schedule that does not wait for what is done with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorate.rate import ns_to_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aiorate.limiter import Limiter

__all__ = ["Slot", "slots"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One step of an open-loop schedule."""

    index: int
    """Counts from 0, skipped slots included."""
    scheduled_at: float
    """Clock reading in seconds at which it was meant to start: measure response times from here."""
    lag: float
    """Seconds by which it starts late."""


async def slots(limiter: Limiter) -> AsyncGenerator[Slot, None]:
    """See `aiorate.Limiter.slots`."""
    index = 0
    since: int | None = None
    while True:
        asked, skipped = limiter._enter(), limiter._skipped
        # In line since the slot before: a slow body is made up for, as far as the limiter allows.
        since = asked if since is None else max(since, asked - limiter._catch_up)
        at = await limiter._slot(since, bool(index))
        if index:
            index += limiter._skipped - skipped
        now = limiter._enter()
        reading = limiter._timeline.clock_at(at)
        yield Slot(index, ns_to_seconds(at if reading is None else reading), ns_to_seconds(max(0, now - at)))
        index += 1
        since = at
