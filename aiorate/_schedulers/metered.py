"""Schedulers of which a meter takes single permits, and what buckets and pools keep of their takes, so that permits may come back.

A grab of a meter is a take of one permit. Takes at one instant are a group, and it makes no difference which request holds which permits
of it. Permits of the latest group come back exactly. Earlier ones are credited as far as there was room for them at every instant since.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from aiorate._meter import NO_LINE
from aiorate._schedulers.interface import Scheduler, check_give_back

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from aiorate._meter import Meter
    from aiorate._rate import Rate


_MOST = 64
_instant = itemgetter(0)


class Metered(Scheduler):
    """The subclass keeps the instant of its next permit in `line`, in ticks, and sets ``metered_take = take`` below its own `take`."""

    __slots__ = ("_latest", "line", "rate")
    rate: Rate
    line: Meter
    """The next permit. A grab does what ``take(1, now)`` does, or nothing."""
    _latest: Any
    """What undoes the latest takes, their instant first; None: they stand."""

    metered_take: Callable[..., int] = Scheduler.take

    @property
    def _meter(self) -> Meter | None:
        """The line, unless it is not straight, or a subclass or an attribute takes permits in another way."""
        return self.line if self.take == self.metered_take and self.line.numbers != NO_LINE else None

    def collect(self) -> None:
        """Heed the grabs since the last call. All takes before them stand."""
        last, cut, peak = self.line.collect()
        if last is not None:
            self._latest = None
            self.heed(last, cut, peak)

    def heed(self, last: int, cut: int, peak: int) -> None:
        """Follow grabs, the latest at ``last``, that lost ``cut`` ticks and found at most ``peak`` idle ones."""
        raise NotImplementedError

    def __getstate__(self) -> object:
        self.collect()  # the copy of a meter begins without grabs
        return object.__getstate__(self)

    def __copy__(self) -> Self:
        from copy import deepcopy

        return deepcopy(self)


class Stored(Metered):
    """A bucket or a pool: it stores what nobody has taken, up to its size.

    A permit that comes back is credited only if there was room for it at every instant since its take. The room was smallest just before
    the take that found the highest level. So the scheduler remembers the takes that found more than every later take, in `_peaks`.
    """

    __slots__ = ("_peaks", "_plan")
    _plan: tuple[int, ...]
    """What follows from the rate and the parameters, shared by all of these: the ticks of a nanosecond and of a permit first."""
    _latest: tuple[int, int, tuple[Any, ...]] | None
    """Of the takes at the latest instant: that instant, their permits, and the state before them."""
    _peaks: list[tuple[int, int]] | None
    """Levels found by takes: instants ascend, levels descend; None: no take was noted."""

    def note_take(self, permits: int, now: int, found: int, *before: Any) -> None:
        """A take found that level. `restore` gets ``before`` if all that was taken at that instant comes back."""
        if self.line.last is not None:
            self.collect()
        peaks, latest = self._peaks, self._latest
        if not peaks or peaks[-1][0] != now or peaks[-1][1] < found:
            self.note_level(now, found)
        self._latest = (now, latest[1] + permits, latest[2]) if latest is not None and latest[0] == now else (now, permits, before)

    def note_level(self, now: int, level: int) -> None:
        """From the instant on, no permits taken before fit in that would not fit above the level."""
        peaks = self._peaks
        if peaks is None:
            self._peaks = [(now, level)]
            return
        if peaks and peaks[-1][0] > now:
            now = peaks[-1][0]  # where the clock went back, the take is later in order
        place = len(peaks)
        while place and peaks[place - 1][1] <= level:
            place -= 1
        peaks[place:] = ((now, level),)  # in one step: a signal handler may raise after a call
        if len(peaks) > _MOST:
            # Merge neighbours that hardly differ, each into the later one, so that the record is never too low and hardly too high.
            # By level, not by age: otherwise the highest level would be merged again and again until it seemed recent.
            step, thin = (peaks[0][1] - level) // (_MOST // 2), list[tuple[int, int]]()
            for instant, found in peaks:
                if thin and thin[-1][1] - found <= step:
                    thin[-1] = (instant, thin[-1][1])
                else:
                    thin.append((instant, found))
            self._peaks = thin

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Put permits back as far as there is room; by receipt, as far as there was room for them at every take since."""
        check_give_back(permits, now, taken)
        if self.line.last is not None:
            self.collect()
        latest, self._latest = self._latest, None  # first, so that an interrupt loses permits instead of giving them twice
        if latest is None or latest[0] != taken or latest[1] < permits:
            self.credit(permits, now, taken)
        elif latest[1] > permits:
            self.line.due -= permits * self._plan[1]  # type: ignore[operator]  # it has begun
            self._latest = (taken, latest[1] - permits, latest[2])
        else:
            self.restore(latest[2])

    def restore(self, before: tuple[Any, ...]) -> None:
        """Return to a state."""
        raise NotImplementedError

    def credit(self, permits: int, now: int, taken: int | None) -> None:
        """As `give_back`, of permits that were not taken last."""
        raise NotImplementedError

    def scale_levels(self, num: int, den: int) -> None:
        """Count in another unit from now on. Rounded up, so the room is never larger than it was."""
        self._peaks = self._peaks and [(instant, -(-level * num // den)) for instant, level in self._peaks]

    def credit_since(self, taken: int, credit: int, brim: int) -> int:
        """The part of a credit for a take at that instant for which there was room below the brim ever since; each later take found it."""
        peaks = self._peaks or []
        place = bisect_right(peaks, taken, key=_instant)
        if later := peaks[place:]:
            credit = max(0, min(credit, brim - later[0][1]))
            later = [(instant, level + credit) for instant, level in later]
            while place and peaks[place - 1][1] <= later[0][1]:
                place -= 1
            peaks[place:] = later
        return credit

    def _standings(self, now: int) -> list[tuple[int, int]]:
        due, (unit, cost, _, kept) = self.line.due, self.line.numbers
        if due is None or kept < 0:
            return super()._standings(now)
        idle = now * unit - due
        if idle < 0:
            return [(0, -(-due // unit))]
        left = min(idle, kept) // cost + 1
        return [(left, now if idle >= kept // cost * cost else -(-(due + left * cost) // unit))]
