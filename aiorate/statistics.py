"""What a limiter and its slots tell: value objects, imported only when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate.rate import Rate

__all__ = ["Slot", "Statistics"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts since the limiter was made."""

    granted: int
    """Permits granted and kept: neither given back by a cancellation nor refunded."""
    refused: int
    """Requests refused at once: by `try_acquire`, `max_wait` or `max_waiting`."""
    cancelled: int
    """Requests cancelled while in line or before they could run."""
    refunded: int
    """Permits refunded."""
    waiting: int
    """Requests in line."""
    waited_total: float
    """Seconds that granted requests waited in all."""
    waited_max: float
    """Seconds that the longest wait of a granted request took."""
    skipped: int
    """Permits that fell due while somebody waited and the loop was late by more than `catch_up`, and are given up."""
    rate: Rate
    """The rate in force."""
    paused_until: float | None
    """Clock reading in seconds at which the pause ends; None: not paused; infinite: stopped."""
    next_at: float | None
    """Clock reading in seconds for when the first in line is scheduled; None: nobody waits; infinite: stopped."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One step of an open-loop schedule."""

    index: int
    """Counts from 0, skipped slots included."""
    scheduled_at: float
    """Clock reading in seconds at which it was meant to start: measure response times from here."""
    lag: float
    """Seconds by which it starts late."""
