"""Catch-up: a late event loop costs no rate, up to a limit. All times are instants and durations in ns."""

from __future__ import annotations

__all__ = ["Late"]

_SAME_WAKE_UP_NS = 1_500_000  # the average distance of two wake-ups


class Late:
    """The last late wake-up, which left nobody in line.

    What delayed it also delayed the callers right after it, and all callers while tasks that it woke have not gone on. They are booked
    from the same instant, at most ``limit`` back.
    """

    __slots__ = ("_limit", "_served", "_woken_at")

    def __init__(self, served: int, woken_at: int, limit: int) -> None:
        self._served = served  # the instant up to which it served the schedule
        self._woken_at = woken_at
        self._limit = limit

    def since(self, now: int, resuming: int) -> int | None:
        """Since when to book now, while ``resuming`` tasks have not gone on; None: it is over."""
        if now - self._woken_at > _SAME_WAKE_UP_NS:
            if not resuming:
                return None
            self._woken_at = now
            # One instant that holds for as long, at the limit too.
            self._served = max(self._served, now - max(self._limit - _SAME_WAKE_UP_NS, 0))
        self._served = max(self._served, now - self._limit)
        return self._served

    def span(self, until: int) -> tuple[int, int]:
        """The instant since which to book, and the instant, at most ``until``, before which that stays so."""
        return self._served, min(until, self._woken_at + _SAME_WAKE_UP_NS, self._served + self._limit)
