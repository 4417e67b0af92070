"""The permits that a window of the calendar, and the windows after it, have left. Knows nothing of calendars, clocks or waiters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WindowsAhead"]


class WindowsAhead:
    """When a number of permits would be due, if nobody else took any. ``most`` is the number of a window.

    ``left`` is what the present window has, below 0 for a debt, which the next windows pay. ``begins`` are the instants (ns) at which
    the next windows begin; those after the last known one are a ``period`` apart.
    """

    __slots__ = ("begins", "left", "most", "period")

    def __init__(self, most: int, period: int, left: int, begins: Sequence[int] = ()) -> None:
        self.most: int = most
        self.period: int = period
        self.left: int = left
        self.begins: list[int] = list(begins)

    def at(self, permits: int, now: int) -> int:
        """When that many of one window are due: ``now`` if at once."""
        return self._find(permits, now)[0]

    def standing(self, now: int) -> tuple[int, int]:
        """What the window at ``now`` has left, and when the next one begins; ``now`` if nothing is known of the calendar."""
        _, passed, left = self._find(1, now)
        begin = self._begin(passed)
        if begin is None:
            return max(left, 0), now
        at = self.at(1, now)
        return (0, at) if at > now else (left, begin)

    def take(self, permits: int, now: int) -> None:
        """Take them from the first window that has them."""
        _, passed, left = self._find(permits, now)
        self._pass(passed)
        self.left = left - permits

    def charge(self, permits: int) -> None:
        """Take them from this window and, as far as they do not fit, from the next ones."""
        self.left -= permits

    def shift(self, ns: int) -> None:
        """Move all instants ``ns`` earlier."""
        self.begins = [begin - ns for begin in self.begins]

    def _find(self, permits: int, now: int) -> tuple[int, int, int]:
        """When they are due, in the how many-th window after this one that is, and what that has left."""
        at, passed, left = now, 0, self.left
        while True:
            begin = self._begin(passed)
            if begin is None:  # nothing is known of the calendar
                return at, passed, left
            if passed >= len(self.begins) and now - begin >= self.period:  # many at once: another limit may be due at no known instant
                whole = (now - begin) // self.period
                passed, left = passed + whole, min(min(left, 0) + whole * self.most, self.most)
                continue
            if begin > now:
                if permits <= left:
                    return at, passed, left
                short = permits - left
                if passed >= len(self.begins) and short > self.most:  # a long debt, beyond the windows that are known
                    whole = (short - 1) // self.most
                    passed, left = passed + whole, left + whole * self.most
                    begin = self._begin(passed)
                    assert begin is not None  # it has a first
                at = begin
            passed, left = passed + 1, min(left, 0) + self.most

    def _begin(self, index: int) -> int | None:
        begins = self.begins
        if not begins:
            return None
        return begins[index] if index < len(begins) else begins[-1] + (index - len(begins) + 1) * self.period

    def _pass(self, windows: int) -> None:
        if windows:
            begin = self._begin(windows)
            assert begin is not None  # it has a first
            self.begins = self.begins[windows:] or [begin]
