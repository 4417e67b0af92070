"""Which rate to try next, given what a server answered. A pure state machine: no clock, no loop, times in whole nanoseconds.

1. Climb: while nothing is refused and callers use what they have, the rate rises by a little, then by twice as much, at most by a quarter
   in each round of two round trips. The first refusal ends the climb at the rate before its latest step. Refusals of requests that were
   granted before the rate was lowered are one.
2. Read: a refusal means that the server has nothing left. So what it gave between two refusals, by the time between, is its rate. The
   level, which is what the server is taken to give, never exceeds it, and the rate stays a little below the level.
3. Pay: the next climb begins when the refusals of the last one are less than their allowed share of the answers, and its pauses less than
   that share of the time. A refusal that no climb has caused costs nothing, so several clients come to equal shares.
4. Drought: several refusals in a row with nothing given between, as of a window that is used up. Single requests find out when it is
   over, each after half as long again. Then the rate is what it was.

The time is the limiter's, which stands still in a pause.
"""

from __future__ import annotations

from aiorate._rate import NS_PER_SECOND

# docs/adaptive.md lists what each of them trades.
_FIRST_STEP = 0.01  # of a climb
_LARGEST_STEP = 0.25  # of a climb
_SHORTEST_ROUND = NS_PER_SECOND // 5
_ENOUGH = 20  # answers of a reading
_PRIOR = 10  # answers that the level counts for, against fewer than that
_IN_A_ROW = 3  # refusals of a drought
_LONGEST_WINDOW = 60 * NS_PER_SECOND  # a longer drought is an outage, after which climbs need not be slower
_FOR_CLIMBS = 0.75  # of the refusals allowed: the rest are for changes that no climb finds
_USED = 0.75  # of the permits: callers that use fewer do not raise the rate
_TOO_HIGH = 4  # times the level: a climb that ended above may have been too fast
_BELOW = 0.05  # the level, at most: a larger share of refusals is for climbs
_BLAMELESS = 0.9  # of the rate at which a climb began: a lower level is not the climb's doing


class Finder:
    """Finds the rate, in permits per second from ``lowest`` to ``highest``; ``refused`` is the share of requests that may be refused."""

    def __init__(self, rate: float, lowest: float, highest: float, refused: float) -> None:
        self.rate: float = rate
        """The rate in force."""
        self._lowest, self._highest, self._refused = lowest, highest, refused
        self._level = rate  # what the server is taken to give
        self._trip = 0  # the mean time to an answer
        self._begun = False
        self._last = 0  # the instant of the latest answer
        self._given_at = self._refused_at = 0  # those of the latest of each kind
        # This round.
        self._round = 0  # its start
        self._answers = 0  # to what was granted since
        # The climb.
        self._step = 0.0  # the latest; 0: no climb
        self._from = self._base = rate  # the rates before the first step and before the latest
        self._owes = False  # whether refusals count as its cost
        self._climbs_at = 0  # when the next may begin
        self._climb_began = self._climb_took = 0  # the latest
        self._peak = 0.0  # the rate before its last step; 0: it has not ended, or the pace heeds it already
        self._pace = 0  # the shortest round, after climbs that were too fast for the server's window
        self._announced = 0  # the announced length of the pause that the next climb waits for
        # The reading.
        self._since = 0  # its start
        self._given = 0  # what was given since
        self._closed = False  # whether it ends with the present refusals, and says nothing of the level
        self._resumed = 0  # the end of the latest drought, as seen in answers
        # Refusals.
        self._in_a_row = 0
        self._first = 0  # the instant of the first of those that are one
        self._reacted = 0  # what was granted before is not news
        self._drought: int | None = None  # since when nothing is given
        # The length of the latest droughts, less with each round: a shorter round would not see the next. A short drought, as only the
        # client with the highest rate sees at a window's end, shortens it by a quarter at most, or that client alone would climb soon.
        self._outage = 0

    @property
    def settled(self) -> float | None:
        """The rate, unless it is being tried."""
        return None if self._drought is not None or (self._step and self.rate < self._highest) else self.rate

    def succeeded(self, now: int, took: int | None) -> None:
        """The server gave a permit that was granted ``took`` ns before ``now``."""
        now, granted = self._time(now, took)
        if self._in_a_row:
            if self._closed or not self._given or self._says_much(self._refused_at):
                self._since, self._given, self._closed = self._refused_at, 0, False
            self._in_a_row = 0
        self._given += 1
        self._given_at = now
        if self._drought is not None:
            if granted >= self._drought:
                self._outage = min(max(now - self._drought, 3 * self._outage // 4), _LONGEST_WINDOW)
                self._drought, self._reacted = None, now
                self._resumed = now + self._trip
                if self._since >= self._first or self._says_much(self._refused_at):
                    self._since, self._given = self._refused_at, 1
                self._settle(now)
        elif granted >= self._round:
            self._answers += 1
            if granted - self._round >= max(
                self._trip, _SHORTEST_ROUND - self._trip, int(NS_PER_SECOND / self.rate), self._outage, self._pace
            ):
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
                self._lower_to(reading if not self._closed else self._from if reading < self._from else self._level)
                if self._drought is None:
                    self._settle(now)
        if self._drought is None:
            if self._in_a_row >= _IN_A_ROW and now - self._given_at >= self._trip // 8 and not pause:
                self._drought = now
                if not self._closed and not self._says_much(now):
                    self._lower_to(self._level * _PRIOR / (_PRIOR + self._in_a_row))
                self._ask(now)
        elif granted >= self._drought:
            self._ask(now)

    def paused(self, length: int) -> None:
        """A pause is over, and took that many ns. One that was ended early costs less than the announced one."""
        if self._announced > length:
            self._climbs_at -= int((self._announced - length) / (_FOR_CLIMBS * self._refused))
        self._announced = 0

    def _react(self, now: int, pause: int) -> None:
        """Lower the level after a refusal of a request that was granted since the latest reaction."""
        if self._step:
            level, self._step, self._closed = self._base, 0.0, True
            self._peak, self._climb_took = 0.0 if pause else level, now - self._climb_began
            self._level = level
        else:
            level = min(self._level, self.rate)
            if pause:
                level -= level * pause / (2 * (pause + now - self._since))
                self._closed = True
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
        self._outage -= self._outage // 8
        if used and self.rate < self._highest and (self._step or now >= self._climbs_at):
            if not self._step:
                self._choose_pace()
                self._from, self._climb_began = self.rate, now
            self._step, self._base, self._owes = min(_LARGEST_STEP, 2 * self._step or _FIRST_STEP), self.rate, True
            self._try(self.rate * (1 + self._step), now)

    def _choose_pace(self) -> None:
        # A window that slides refuses long after the rate was too high, and then gives as slowly as the climb began. So a level nearer to
        # the start of a high climb than to its end shows that the window is longer than the climb was.
        if self._peak > _TOO_HIGH * self._level and self._level**2 < self._from * self._peak:
            self._pace = min(_LONGEST_WINDOW, max(2 * self._pace, self._climb_took // 2))
        else:
            self._pace //= 2
        self._peak = 0.0

    def _owe(self, now: int, pause: int) -> None:
        if self._owes:
            self._climbs_at = max(self._climbs_at, now) + int((NS_PER_SECOND / self._level + pause) / (_FOR_CLIMBS * self._refused))
            self._announced += pause

    def _ask(self, now: int) -> None:
        assert self._drought is not None
        self._try(NS_PER_SECOND / max(1, self._trip, (now - self._drought) // 2, int(NS_PER_SECOND / self._level)), now)

    def _time(self, now: int, took: int | None) -> tuple[int, int]:
        # The instant, which never goes back, and that of the grant.
        now = max(now, self._last) if self._begun else now
        if not self._begun:
            self._begun = True
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
        if self._owes and self._level < _BLAMELESS * self._from:
            self._owes, self._climbs_at = False, self._last

    def _settle(self, now: int) -> None:
        self._try(self._level * (1 - min(self._refused, _BELOW)), now)

    def _try(self, rate: float, now: int) -> None:
        self.rate = self._within(rate)
        self._round, self._answers = now, 0

    def _within(self, rate: float) -> float:
        return min(self._highest, max(self._lowest, rate))
