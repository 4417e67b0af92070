"""Slots: the steps of an open-loop schedule, which does not wait for what is done with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorate.rate import ns_to_seconds

if TYPE_CHECKING:
    from aiorate.waiting.timeline import Timeline

__all__ = ["Slot", "slot_of"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One step of an open-loop schedule."""

    index: int
    """Counts from 0, skipped slots included."""
    scheduled_at: float
    """Clock reading in seconds at which it was meant to start: measure response times from here."""
    lag: float
    """Seconds by which it starts late."""


def slot_of(index: int, at: int, now: int, timeline: Timeline) -> Slot:
    """The slot that was scheduled for one instant and starts at another."""
    reading = timeline.reading_at(at)
    return Slot(index, ns_to_seconds(at if reading is None else reading), ns_to_seconds(max(0, now - at)))
