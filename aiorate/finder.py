"""Which rate to try next, given what a server answered. A pure state machine: no clock, no loop, times in whole nanoseconds.

In this order:

1. While nothing is refused and callers use what they have, the rate climbs: by a little, then by twice as much, at most by a quarter
   in each round of two round trips.
2. A refusal ends a climb: back to the rate before the latest step. All refusals of requests that were granted before that are one.
3. A refusal reads the server's meter: what was answered between two refusals, by the time between, is what the server gives. The rate
   goes a little below.
4. A climb pays for what it cost before the next one: so many answers for each refusal that they stay below the allowed share, and so
   many times its length for a pause.
5. Several refusals in a row with nothing given between are a drought, as of a window that is used up: single requests find out, each
   after half as long again, when it is over. Then the rate is what it was.

Time is the limiter's, which stands still in a pause.
"""

from __future__ import annotations

from aiorate.rate import NS_PER_SECOND

__all__ = ["Finder"]

_ENOUGH = 20  # answers of a reading: fewer follow a fall sooner, more are less noisy
_FIRST_STEP = 0.01  # of a climb: a larger one finds a rise sooner, a smaller one costs less where there was none
_LARGEST_STEP = 0.25  # of a climb, in the same way
_PRIOR = 10
_ROUND = NS_PER_SECOND // 5  # the shortest round: a shorter one climbs sooner, and further before a window is used up
_USED = 0.75  # of the permits: with a larger share, callers that do not use all of them hold the rate back sooner
_IN_A_ROW = 3  # refusals of a drought: fewer take chance for a drought, more are refused in one


class Finder:
    """Finds the rate, in permits per second from ``lowest`` to ``highest``; ``refused`` is the share of requests that may be refused."""

    __slots__ = (
        "_answers",
        "_base",
        "_climbs_at",
        "_drought",
        "_first",
        "_from",
        "_given",
        "_given_at",
        "_highest",
        "_in_a_row",
        "_last",
        "_level",
        "_lowest",
        "_outage",
        "_owes",
        "_reacted",
        "_read",
        "_refused",
        "_refused_at",
        "_resumed",
        "_round",
        "_since",
        "_step",
        "_trip",
        "rate",
    )

    def __init__(self, rate: float, lowest: float, highest: float, refused: float) -> None:
        self.rate: float = rate
        """The rate in force."""
        self._lowest, self._highest, self._refused = lowest, highest, refused
        self._level = rate  # what the server gives, as far as known
        self._trip = 0  # the mean time to an answer
        self._last: int | None = None
        # This round: its start, and the answers to what was granted since.
        self._round = 0
        self._answers = 0
        # The climb: its latest step, the rate before it, whether refusals are its debt, and when the next may begin.
        self._step, self._base, self._owes, self._climbs_at = 0.0, rate, False, 0
        # The reading: its start, and what was given since.
        self._since = 0
        self._given = 0
        self._read = False
        self._resumed = self._first = 0
        self._from = rate
        self._refused_at = self._given_at = 0
        # Refusals: those granted before this instant are one; how many in a row; since when nothing is given; and how long the last time.
        self._reacted = 0
        self._in_a_row = 0
        self._drought: int | None = None
        self._outage = 0

    @property
    def settled(self) -> float | None:
        """The rate, unless it is being tried."""
        return None if self._drought is not None or (self._step and self.rate < self._highest) else self.rate

    def succeeded(self, now: int, took: int | None) -> None:
        """The server gave a permit that was granted ``took`` ns before ``now``."""
        now, granted = self._time(now, took)
        if self._in_a_row:
            if self._read or not self._given or self._says_much(self._refused_at):
                self._since, self._given, self._read = self._refused_at, 0, False
            self._in_a_row = 0
        self._given += 1
        self._given_at = now
        if self._drought is not None:
            if granted >= self._drought:
                self._outage, self._drought, self._reacted = now - self._drought, None, now
                self._resumed = now + self._trip
                if self._since >= self._first or self._says_much(self._refused_at):
                    self._since, self._given = self._refused_at, 1
                self._settle(now)
        elif granted >= self._round:
            self._answers += 1
            if granted - self._round >= max(self._trip, _ROUND - self._trip, int(NS_PER_SECOND / self.rate), self._outage):
                self._end_round(now, granted)

    def throttled(self, now: int, took: int | None, pause: int = 0) -> None:
        """The server refused a request, and asked for a pause of that many ns from now on; 0: it asked for none."""
        now, granted = self._time(now, took)
        self._in_a_row += 1
        self._refused_at = now
        new = granted >= self._reacted
        if new and self._drought is None:
            self._reacted = self._first = now
            self._react(now, pause)
            self._owe(now, pause)
            self._settle(now)
        else:
            self._owe(now, 0)
            if self._says_much(now):
                reading = self._reading(now)
                # After a climb, a reading from before it may be of a lower limit; but less than at its start means that nothing was gained.
                self._lower_to(reading if not self._read else self._from if reading < self._from else self._level)
                if self._drought is None:
                    self._settle(now)
        if self._drought is None:
            if self._in_a_row >= _IN_A_ROW and now - self._given_at >= self._trip // 8 and not pause:
                self._drought = now
                if not self._read and not self._says_much(now):
                    self._lower_to(self._level * _PRIOR / (_PRIOR + self._in_a_row))
                self._ask(now)
        elif granted >= self._drought:
            self._ask(now)

    def _react(self, now: int, pause: int) -> None:
        """Lower the level after a refusal of a request that was granted since the latest reaction."""
        if self._step:
            level, self._step, self._read = self._base, 0.0, True
            self._level = level
        else:
            level = min(self._level, self.rate)
            if pause:
                level -= level * pause / (2 * (pause + now - self._since))
                self._read = True
            elif self._says_much(now):
                reading = self._reading(now)
                if self._in_a_row == 1 and reading >= level * (1 - self._refused):
                    self._owes, self._climbs_at = False, now
                level = min(level, reading)
            elif self._in_a_row == 1:
                level = min(level, (self._given + _PRIOR) / (self._asked_for(now) / NS_PER_SECOND + _PRIOR / level))
        self._lower_to(level)

    def _end_round(self, now: int, granted: int) -> None:
        used = self._answers * NS_PER_SECOND >= _USED * self.rate * (granted - self._round)
        self._round, self._answers = granted, 0
        if used and self.rate < self._highest and (self._step or now >= self._climbs_at):
            if not self._step:
                self._from = self.rate
            self._step, self._base, self._owes = min(_LARGEST_STEP, 2 * self._step or _FIRST_STEP), self.rate, True
            self._try(self.rate * (1 + self._step), now)

    def _owe(self, now: int, pause: int) -> None:
        if self._owes:
            self._climbs_at = max(self._climbs_at, now) + int((NS_PER_SECOND / self._level + pause) / self._refused)

    def _ask(self, now: int) -> None:
        assert self._drought is not None
        self._try(NS_PER_SECOND / max(self._trip, (now - self._drought) // 2, int(NS_PER_SECOND / self._level)), now)

    def _time(self, now: int, took: int | None) -> tuple[int, int]:
        # The instant, which never goes back, and that of the grant.
        if self._last is not None and now < self._last:
            now = self._last
        if self._last is None:
            self._round = self._reacted = now - (took or 0)
            self._since = self._given_at = self._resumed = now
        self._last = now
        if took is None:
            return now, now
        self._trip = self._trip + (took - self._trip) // 8 if self._trip else took
        return now, now - took

    def _says_much(self, now: int) -> bool:
        return self._given >= _ENOUGH and now - self._since >= self._trip // 4

    def _reading(self, now: int) -> float:
        return self._given * NS_PER_SECOND / max(1, self._asked_for(now))

    def _asked_for(self, now: int) -> int:
        # Since the reading began; but a first refusal says nothing of the time in which hardly anything was asked for.
        return max(0, now - (self._since if self._in_a_row > 1 else max(self._since, self._resumed)))

    def _lower_to(self, reading: float) -> None:
        self._level = self._within(min(self._level, reading))
        if self._owes and self._level < 0.9 * self._from:
            self._owes, self._climbs_at = False, self._last or 0

    def _settle(self, now: int) -> None:
        self._try(self._level * (1 - self._refused), now)

    def _try(self, rate: float, now: int) -> None:
        self.rate = self._within(rate)
        self._round, self._answers = now, 0

    def _within(self, rate: float) -> float:
        return min(self._highest, max(self._lowest, rate))
