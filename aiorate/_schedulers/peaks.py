"""The record of how full a pool or bucket has been. It decides how many returned permits would have spilled in the meantime.

A returned permit is credited only if there was room for it at every instant since its take. The room was smallest just before the
take that found the highest level. So the record keeps the takes that found more than every later take. These are few, and the
latest is always exact.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

__all__ = ["NO_PEAKS", "Peaks"]

_MOST = 64
_instant = itemgetter(0)


class Peaks:
    """Levels found by takes: instants ascend, levels descend. The unit of levels is the caller's."""

    __slots__ = ("_takes", "at", "level")

    def __init__(self) -> None:
        self.at: int | None = None
        self.level: int = 0
        """Instant and level of the latest take noted. A take at that instant that found that level or less need not be noted."""
        self._takes: list[tuple[int, int]] = []

    def note(self, now: int, level: int) -> Peaks:
        """Note that a take at ``now`` found that level. Returns the record from then on: `NO_PEAKS` stays empty."""
        if self is NO_PEAKS:
            return Peaks().note(now, level)
        takes = self._takes
        at = takes[-1][0] if takes and takes[-1][0] > now else now  # where the clock went back, the take is later in order
        place = len(takes)
        while place and takes[place - 1][1] <= level:
            place -= 1
        takes[place:] = ((at, level),)  # in one step: a signal handler may raise after a call
        self.at, self.level = now, level
        if len(takes) > _MOST:
            self._thin()
        return self

    def _thin(self) -> None:
        """Merge neighbours that hardly differ, each into the later one, so that the record is never too low and hardly too high.

        By level, not by age: otherwise the highest level would be merged again and again until it seemed recent.
        """
        step = (self._takes[0][1] - self._takes[-1][1]) // (_MOST // 2)
        takes: list[tuple[int, int]] = []
        for instant, level in self._takes:
            if takes and takes[-1][1] - level <= step:
                takes[-1] = (instant, takes[-1][1])
            else:
                takes.append((instant, level))
        self._takes = takes

    def since(self, taken: int) -> int | None:
        """The highest level found by a take after that instant; None: there was no such take."""
        place = bisect_right(self._takes, taken, key=_instant)
        return self._takes[place][1] if place < len(self._takes) else None

    def raise_since(self, taken: int, amount: int) -> None:
        """Note that ``amount`` of what was taken at that instant came back: each later take would have found that much more."""
        takes = self._takes
        self.at = None
        place = bisect_right(takes, taken, key=_instant)
        takes[place:] = [(instant, level + amount) for instant, level in takes[place:]]
        while 0 < place < len(takes) and takes[place - 1][1] <= takes[place][1]:
            place -= 1
            del takes[place]

    def scale(self, num: int, den: int) -> None:
        """Count in another unit from now on. Rounded up, so the room is never larger than it was."""
        self.at = None
        self._takes = [(instant, -(-level * num // den)) for instant, level in self._takes]


NO_PEAKS = Peaks()
"""The record of all schedulers of which no take was noted."""
