"""Catch-up: a late event loop costs no rate, up to a limit. All times are instants and durations in ns."""

from __future__ import annotations

from aiorate._meter import FAR

__all__ = ["CatchUp"]

_SAME_WAKE_UP_NS = 1_500_000  # the average distance of two wake-ups


class CatchUp:
    """How much a limiter makes up for, and the last late wake-up, if it left nobody in line."""

    __slots__ = ("late", "limit")

    def __init__(self, limit: int) -> None:
        self.limit: int = limit
        """The most that is made up for."""
        self.late: tuple[int, int] | None = None
        """The instant up to which a late wake-up served the schedule, and that of the wake-up; None: it was not late."""

    def since(self, now: int, resuming: int) -> int | None:
        """Since when to book just after a late wake-up.

        What delayed the wake-up also delayed the callers right after it, and all callers while ``resuming`` tasks that it woke have not
        gone on. They are booked from the same instant, at most `limit` back.
        """
        if self.late is None:
            return None
        since, woken_at = self.late
        if now - woken_at > _SAME_WAKE_UP_NS:
            if not resuming:
                self.late = None
                return None
            woken_at = now
            since = max(since, now - max(self.limit - _SAME_WAKE_UP_NS, 0))  # one instant that holds for as long, at the limit too
        since = max(since, now - self.limit)
        self.late = since, woken_at
        return since

    def span(self, until: int) -> tuple[int, int]:
        """The instant since which to book, `FAR` if that is now, and the instant, at most ``until``, before which that stays so."""
        if self.late is None:
            return FAR, until
        since, woken_at = self.late
        return since, min(until, woken_at + _SAME_WAKE_UP_NS, since + self.limit)
