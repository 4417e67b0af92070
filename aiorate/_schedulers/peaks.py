"""The record of how full a pool or bucket has been. It decides how many returned permits would have spilled in the meantime.

A returned permit is credited only if there was room for it at every instant since its take. The room was smallest just before the
take that found the highest level. So the record keeps the takes that found more than every later take. These are few, and the
latest is always exact.
"""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["NO_PEAKS", "Peaks"]

_MOST = 64


class Peaks:
    """Levels found by takes: instants ascend, levels descend. The unit of levels is the caller's."""

    __slots__ = ("_instants", "_levels", "at", "level")

    def __init__(self) -> None:
        self.at: int | None = None
        self.level: int = 0
        """Instant and level of the latest take noted. A take at that instant that found that level or less need not be noted."""
        self._instants: list[int] = []
        self._levels: list[int] = []

    def note(self, now: int, level: int) -> Peaks:
        """Note that a take at ``now`` found that level. Returns the record from then on: `NO_PEAKS` stays empty."""
        if self is NO_PEAKS:
            return Peaks().note(now, level)
        instants, levels = self._instants, self._levels
        at = instants[-1] if instants and instants[-1] > now else now  # where the clock went back, the take is later in order
        place = len(levels)
        while place and levels[place - 1] <= level:
            place -= 1
        # Without a call in between: a signal handler that raises there would leave instants without levels.
        instants[place:] = (at,)
        levels[place:] = (level,)
        self.at, self.level = now, level
        if place >= _MOST:
            self._thin()
        return self

    def _thin(self) -> None:
        """Merge neighbours that hardly differ, each into the later one, so that the record is never too low and hardly too high.

        By level, not by age: otherwise the highest level would be merged again and again until it seemed recent.
        """
        step = (self._levels[0] - self._levels[-1]) // (_MOST // 2)
        instants: list[int] = []
        levels: list[int] = []
        for instant, level in zip(self._instants, self._levels, strict=True):
            if levels and levels[-1] - level <= step:
                instants[-1] = instant
            else:
                instants.append(instant)
                levels.append(level)
        self._instants, self._levels = instants, levels

    def since(self, taken: int) -> int | None:
        """The highest level found by a take after that instant; None: there was no such take."""
        place = bisect_right(self._instants, taken)
        return self._levels[place] if place < len(self._levels) else None

    def raise_since(self, taken: int, amount: int) -> None:
        """Note that ``amount`` of what was taken at that instant came back: each later take would have found that much more."""
        instants, levels = self._instants, self._levels
        self.at = None
        place = bisect_right(instants, taken)
        levels[place:] = [level + amount for level in levels[place:]]
        while 0 < place < len(levels) and levels[place - 1] <= levels[place]:
            place -= 1
            del instants[place], levels[place]

    def scale(self, num: int, den: int) -> None:
        """Count in another unit from now on. Rounded up, so the room is never larger than it was."""
        self.at = None
        self._levels = [-(-level * num // den) for level in self._levels]


NO_PEAKS = Peaks()
"""The record of all schedulers of which no take was noted."""
