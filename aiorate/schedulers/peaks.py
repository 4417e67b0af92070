"""How full a pool or bucket has been: what decides which permits that come back would have spilled in the meantime.

A permit that comes back may be credited only as far as there was room for it ever since it was taken. There was least room just
before the fullest of all later takes. So the record holds those takes that found more than every take after them: a few entries,
the latest of them always exact.
"""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["Peaks"]

_MOST = 64


class Peaks:
    """Levels found by takes: instants ascend, levels descend. Counts in whatever unit the levels are given in."""

    __slots__ = ("_instants", "_levels", "at", "level")

    def __init__(self) -> None:
        self.at: int | None = None
        self.level = 0
        """The latest take that was noted; another one at that instant that found no more need not be."""
        self._instants: list[int] = []
        self._levels: list[int] = []

    def note(self, now: int, level: int) -> None:
        """A take found that level at now."""
        self.at, self.level = now, level
        instants, levels = self._instants, self._levels
        while levels and levels[-1] <= level:
            if instants[-1] > now:
                now = instants[-1]  # the clock went back: it is later in order all the same
            levels.pop()
            instants.pop()
        if instants and instants[-1] > now:
            now = instants[-1]
        instants.append(now)
        levels.append(level)
        if len(levels) > _MOST:
            # Of the older half every other entry goes, into the next one: it says no less than was true.
            instants[: _MOST // 2] = instants[1 : _MOST // 2 : 2]
            levels[: _MOST // 2] = levels[0 : _MOST // 2 : 2]

    def since(self, taken: int) -> int | None:
        """The highest level that any take after that instant found; None: there was none."""
        place = bisect_right(self._instants, taken)
        return self._levels[place] if place < len(self._levels) else None

    def raise_since(self, taken: int, amount: int) -> None:
        """What was taken at that instant came back: every later take would have found so much more."""
        instants, levels = self._instants, self._levels
        self.at = None
        place = bisect_right(instants, taken)
        for later in range(place, len(levels)):
            levels[later] += amount
        while 0 < place < len(levels) and levels[place - 1] <= levels[place]:
            place -= 1
            del instants[place], levels[place]

    def scale(self, num: int, den: int) -> None:
        """Count in another unit from now on; rounded up, so that there is never more room than there was."""
        self.at = None
        self._levels = [-(-level * num // den) for level in self._levels]

    def clear(self) -> None:
        """Forget everything."""
        self.at = None
        self._instants.clear()
        self._levels.clear()
