"""Limits that share limits: whether anything is left of their requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiorate
    from aiorate.testing import ManualClock

__all__ = ["at_rest"]


def at_rest(limiters: list[aiorate.Limiter], clock: ManualClock) -> bool:
    """True if no request has left a timer, a place in line, a wake-up or a receipt."""
    return clock.timers == 0 and all(
        not limiter._dispatcher.line and limiter._dispatcher.waiters.resuming == 0 and not limiter.scheduler.receipts
        for limiter in limiters
    )
