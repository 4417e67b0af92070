"""ServerBucket: an estimate of a server's token bucket, from what the server said and what was taken here since.

OpenAI and Anthropic tell how much is left, how much a full bucket holds, and in how many seconds it will be full. So it holds ``left``
now and refills at ``(size - left) / full_in``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._rate import ceil_div
from aiorate._schedulers.peaks import NO_PEAKS

if TYPE_CHECKING:
    from aiorate._schedulers.interface import Scheduler

__all__ = ["ServerBucket", "told_time"]

_ON_THE_WAY_NS = 5_000_000_000  # requests granted longer ago have reached the server, which has counted them
_EXACT = 10  # times its error: a time that long tells the rate
_LONG = 100  # in times that it takes to fill from empty


def told_time(full_in: int, error: int) -> int:
    """The time itself if it is known within a tenth. Else the shortest that it can be, 0 or less: it may be over.

    A long time means that the bucket is nearly empty, and its rate is known. A short one means that it is nearly full, and a rate that
    is much too low would cost more than one that is too high.
    """
    return full_in if full_in >= _EXACT * error else full_in - error


class ServerBucket:
    """Holds `left` permits at ``at``, and is full ``full_in`` ns later. A level is a whole number of permits times ``full_in``.

    Responses overtake each other, and a server has not counted the requests that are still on their way to it. So the level is
    between what the server said and that less the grants of the last seconds. The level here stays if it lies in between, and moves
    to the nearer end if not.
    """

    __slots__ = (
        "_at",
        "_at_once",
        "_began",
        "_earlier",
        "_full_in",
        "_gain",
        "_known",
        "_level",
        "_most",
        "_peaks",
        "_recent",
        "_since",
        "_size",
    )

    def __init__(self, left: int, size: int, full_in: int, now: int, at: int) -> None:
        self._at = self._since = at
        self._level = self._most = left * full_in
        self._full_in = full_in
        self._recent = self._earlier = 0  # permits granted since `_since`, and in an equal time before it
        self._known = at + _ON_THE_WAY_NS  # from then on, these are all the permits that may be on their way
        self._heed(left, size, size - left, full_in, now)

    def tell(self, left: int, size: int, full_in: int, now: int, at: int, error: int = 0) -> None:
        """Heed another word of the server. ``now`` is the limiter's instant, and ``at`` the same in time that no pause holds up.

        If that tells no rate, because the bucket is full or will be at once, the earlier rate stays. If ``full_in`` is not known within
        a tenth, the earlier rate stays too, unless that is impossible: then it becomes the nearest that is possible.
        """
        self._advance(at)
        left = min(left, size)
        gain = size - left
        if gain == 0 or full_in <= 0:
            gain, full_in = self._gain, self._full_in
        elif full_in < _EXACT * error:
            gain, full_in = self._nearest(gain, full_in - error, full_in + error)
        said = left * full_in
        level = self._level * full_in // self._full_in  # rounded down
        if at >= self._known:
            level = max(level, said - (self._recent + self._earlier) * full_in)
        self._level = min(level, said)
        self._heed(left, size, gain, full_in, now)

    def _nearest(self, gain: int, shortest: int, longest: int) -> tuple[int, int]:
        """The rate that the bucket has or, if it does not gain that much in the shortest to longest time, the nearer end."""
        if gain * self._full_in > self._gain * longest:
            return gain, longest
        if shortest > 0 and gain * self._full_in < self._gain * shortest:
            return gain, shortest
        return self._gain, self._full_in

    def _heed(self, left: int, size: int, gain: int, full_in: int, now: int) -> None:
        self._size, self._gain, self._full_in = size, gain, full_in
        self._most = left * full_in  # what the server said, less the grants since
        self._began = now  # the server may have counted grants of that instant or before
        self._at_once = 0  # permits granted since then, at that very instant
        self._peaks = NO_PEAKS

    def _advance(self, now: int) -> None:
        elapsed = now - self._at
        if elapsed > 0:
            full = self._size * self._full_in
            self._level = min(self._level + elapsed * self._gain, full)
            self._most = min(self._most + elapsed * self._gain, full)
            self._at = now
        if now - self._since >= _ON_THE_WAY_NS:
            self._earlier = self._recent if now - self._since < 2 * _ON_THE_WAY_NS else 0
            self._recent, self._since = 0, now

    def due(self, permits: int, now: int, ahead: int = 0) -> int:
        """The instant, ``now`` or later, at which it holds that many. More than its size goes from a full bucket, and the rest is owed."""
        missing = (ahead + min(permits, self._size)) * self._full_in - self._level
        return max(now, self._at + ceil_div(missing, self._gain)) if missing > 0 else now

    def take(self, permits: int, now: int) -> None:
        """Count permits that were granted."""
        self._advance(now)
        self._peaks = self._peaks.note(now, self._most)
        self._level -= permits * self._full_in
        self._most -= permits * self._full_in
        self._recent += permits
        if now == self._began:
            self._at_once += permits

    def give_back(self, permits: int, now: int, taken: int) -> None:
        """Count permits that were granted at ``taken`` and not used. The level never exceeds what the server said."""
        self._advance(now)
        credit = permits if taken > self._began else min(permits, self._at_once) if taken == self._began else 0
        if taken == self._began:
            self._at_once -= credit
        if credit:
            peak = self._peaks.since(taken)
            room = self._size * self._full_in - (self._most if peak is None else max(self._most, peak))
            amount = max(0, min(credit * self._full_in, room))
            self._most += amount
            self._peaks.raise_since(taken, amount)
        if taken >= self._since:
            self._recent = max(0, self._recent - permits)
        self._level = min(self._level + permits * self._full_in, self._most)

    def left(self, now: int) -> int:
        """The number of permits that it holds, 0 or more."""
        level = self._level + max(0, now - self._at) * self._gain
        return max(0, min(level // self._full_in, self._size))

    def is_full(self, now: int) -> bool:
        """Whether it is full, by the estimate here."""
        return self.left(now) == self._size

    def lowers(self, scheduler: Scheduler) -> bool:
        """Whether it can, once full, still refuse what the scheduler grants, at once or in the long run."""
        long = max(1, _LONG * self._size * self._full_in // self._gain)
        at_once, in_the_long_run = scheduler.bound(1), scheduler.bound(long)
        if at_once is None or in_the_long_run is None:
            return True
        return at_once > self._size or in_the_long_run > (_LONG + 1) * self._size

    def shift(self, ns: int) -> None:
        """Follow a pause of ``ns``, during which the server's time went on."""
        self._at -= ns
        self._since -= ns
        self._known -= ns
