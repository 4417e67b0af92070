"""Which rate to try next, given what a server answered. A pure state machine, in whole nanoseconds of the limiter's time.

1. Climb: while nothing is refused and callers use what they have, the rate rises by a little, then by twice as much, at most by a quarter
   in each round of two round trips. The first refusal ends the climb at the rate before its latest step. Refusals of requests that were
   granted before the rate was lowered are one.
2. Read: a refusal means that the server has nothing left. So what it gave between two refusals, by the time between, is its rate. The
   level, which is what the server is taken to give, never exceeds it, and the rate stays a little below the level.
3. Pay: the next climb begins when the refusals of the last one are less than their allowed share of the answers, and its pauses less than
   that share of the time. A refusal that no climb has caused costs nothing, so several clients come to equal shares.
4. Drought: several refusals in a row with nothing given between, as of a window that is used up. Single requests find out when it is
   over, each after half as long again, however long that is. Then the rate is what it was, unless an earlier drought shows that the
   server gives less from the end of one to the end of the next.
"""

from __future__ import annotations

from aiorate._rate import NS_PER_SECOND

_FIRST_STEP = 0.01  # of a climb
_LARGEST_STEP = 0.25  # of a climb
_SHORTEST_ROUND = NS_PER_SECOND // 5
_ENOUGH = 30  # answers of a reading
_PRIOR = 15  # answers that the level counts for, against fewer than that
_IN_A_ROW = 3  # refusals of a drought
_LONGEST_WINDOW = 60 * NS_PER_SECOND  # a longer drought is an outage, after which climbs need not be slower
_FOR_CLIMBS = 0.7  # of the refusals allowed: the rest are for changes that no climb finds
_USED = 0.75  # of the permits: callers that use fewer do not raise the rate
_TOO_HIGH = 4  # times the level: a climb that ended above may have been too fast
_BELOW = 0.05  # the level, at most: a larger share of refusals is for climbs
_BLAMELESS = 0.9  # of the rate at which a climb began: a lower level is not the climb's doing


class Finder:
    """Finds the rate, in permits per second. ``refused`` is the share of requests that may be refused."""

    def __init__(self, rate: float, lowest: float, highest: float, refused: float) -> None:
        self.rate = self._level = rate  # in force; and what the server is taken to give
        self.lowest, self.highest, self._refused = lowest, highest, refused
        self._for_climbs = _FOR_CLIMBS * refused
        self._last: int | None = None  # the instant of the latest answer
        self._given_at = self._refused_at = 0  # those of the latest of each kind
        self._trip = 0  # the mean time to an answer
        # This round.
        self._round = 0  # its start
        self._answers = 0  # to what was granted since
        # The climb.
        self._step = 0.0  # the latest; 0: no climb
        self._from = self._base = rate  # the rates before the first step and before the latest
        self._owes = False  # whether refusals count as its cost
        self._climbs_at = 0  # when the next may begin
        self._announced = self._stood = 0  # a pause that the next has to pay for, as far as it is not over; and all pauses until now
        self._climb_began = self._climb_took = 0  # the latest
        self._pace = 0  # the shortest round, after climbs that were too fast for the server's window
        # The reading.
        self._since = self._resumed = 0  # its start; and the end of the latest drought, as seen in answers
        self._given = 0  # what was given since
        self._closed = False  # whether it ends with the present refusals, and says nothing of the level
        self._whole = False  # whether it began with the end of a drought
        # Refusals.
        self._in_a_row = 0
        self._reacted = 0  # what was granted before is not news
        self._drought: int | None = None  # since when nothing is given
        # The length of the latest droughts: a shorter round would not see the next. A short drought, as only the client with the
        # highest rate sees at a window's end, shortens it by a quarter at most, or that client alone would climb soon.
        self._outage = 0

    @property
    def settled(self) -> bool:
        """Whether the rate is not just being tried."""
        return self._drought is None and (not self._step or self.rate >= self.highest)

    def succeeded(self, now: int, took: int, stood: int) -> None:
        """The server gave a permit that was granted ``took`` ns before ``now``; ``stood`` is the length of all pauses until now."""
        now, granted = self._time(now, took, stood)
        if self._in_a_row:
            if self._closed or not self._given or self._says_much(self._refused_at):
                self._read_on(0, whole=False)
            self._in_a_row = 0
        self._given += 1
        self._given_at = now
        if self._drought is not None:
            if granted >= self._drought:
                length = now - self._drought
                self._outage = max(length, 3 * self._outage // 4) if length < _LONGEST_WINDOW else 0
                self._drought, self._reacted, self._resumed = None, now, now + self._trip
                self._read_on(1, whole=True)
                self._settle(now)
        elif granted >= self._round:
            self._answers += 1
            interval = int(NS_PER_SECOND / self.rate)
            if granted - self._round >= max(self._trip, _SHORTEST_ROUND - self._trip, interval, self._outage, self._pace):
                self._end_round(now, granted)

    def throttled(self, now: int, took: int, stood: int, pause: int) -> None:
        """The server refused a request, and asked for a pause of that many ns from now on; 0: it asked for none."""
        now, granted = self._time(now, took, stood)
        self._in_a_row += 1
        self._refused_at = now
        if self._drought is None and granted >= self._reacted:
            self._reacted = now
            self._react(now, pause)
        elif self._says_much(now) and (self._drought is None or self._whole):
            # After a climb, an earlier reading may be of a lower limit, but less than at its start means that nothing was gained.
            reading = self._reading(now)
            self._lower_to(reading if not self._closed else self._from if reading < self._from else self._level, now)
        if self._owes:
            self._climbs_at = max(self._climbs_at, now) + int(NS_PER_SECOND / (self._level * self._for_climbs))
            self._announced = max(self._announced, pause)
        if self._drought is None:
            self._settle(now)
            if self._in_a_row < _IN_A_ROW or now - self._given_at < self._trip // 8 or pause:
                return
            self._drought = now
            if not self._closed and not self._says_much(now):
                self._lower_to(self._level * _PRIOR / (_PRIOR + self._in_a_row), now)
        elif granted < self._drought:
            return
        self._try(NS_PER_SECOND / max(1, self._trip, (now - self._drought) // 2, int(NS_PER_SECOND / self._level)), now)

    def _react(self, now: int, pause: int) -> None:
        """Lower the level after a refusal of a request that was granted since the latest reaction."""
        if self._step:
            self._level, self._step, self._closed = self._base, 0.0, True
            self._climb_took = now - self._climb_began
        elif pause:
            # The rate itself is too high, by the more the shorter it lasted.
            self._closed = True
            self._lower_to(self.rate * (1 - (pause / (pause + now - self._since)) ** 2 / 2), now)
        else:
            reading, first = self._reading(now), self._in_a_row == 1
            if first and self._says_much(now) and reading >= self.rate * (1 - self._refused):
                self._owes, self._climbs_at = False, now
            self._lower_to(min(self.rate, reading) if first or self._says_much(now) else self.rate, now)

    def _end_round(self, now: int, granted: int) -> None:
        used = self._answers * NS_PER_SECOND >= _USED * self.rate * (granted - self._round)
        self._round, self._answers = granted, 0
        self._outage -= self._outage // 8
        if used and self.rate < self.highest and (self._step or now >= self._climbs_at):
            if not self._step:
                # A sliding window refuses long after the rate was too high, and then gives as slowly as the climb began. So a level
                # nearer to the start of a high climb than to its end shows that the window is longer than the climb.
                too_fast = self._base > _TOO_HIGH * self._level and self._level**2 < self._from * self._base
                self._pace = min(_LONGEST_WINDOW, max(2 * self._pace, self._climb_took // 2)) if too_fast else self._pace // 2
                self._from, self._climb_began = self.rate, now
            self._step, self._base, self._owes = min(_LARGEST_STEP, 2 * self._step or _FIRST_STEP), self.rate, True
            self._try(self.rate * (1 + self._step), now)

    def _time(self, now: int, took: int, stood: int) -> tuple[int, int]:
        """The instant, which never goes back, and that of the grant."""
        if self._last is None:
            self._last = self._since = self._given_at = self._resumed = now
            self._round = self._reacted = now - took
        passed = max(0, min(stood - self._stood, self._announced))  # a pause that is ended early costs less than the announced one
        self._announced, self._stood = self._announced - passed, stood
        self._climbs_at += int(passed / self._for_climbs)
        self._last = max(now, self._last)
        self._trip = self._trip + (took - self._trip) // 8 if self._trip else took
        return self._last, self._last - took

    def _read_on(self, given: int, *, whole: bool) -> None:
        self._since, self._given, self._closed, self._whole = self._refused_at, given, False, whole

    def _says_much(self, now: int) -> bool:
        return self._given >= _ENOUGH and now - self._since >= self._trip // 4

    def _reading(self, now: int) -> float:
        # A first refusal says nothing of the time in which hardly anything was asked for.
        seconds = max(1, now - (self._since if self._in_a_row > 1 else max(self._since, self._resumed))) / NS_PER_SECOND
        return self._given / seconds if self._says_much(now) else (self._given + _PRIOR) / (seconds + _PRIOR / self.rate)

    def _lower_to(self, reading: float, now: int) -> None:
        self._level = min(self._level, max(self.lowest, reading))
        if self._owes and self._level < _BLAMELESS * self._from:
            self._owes, self._climbs_at = False, now

    def _settle(self, now: int) -> None:
        self._try(max(self.lowest, self._level * (1 - min(self._refused, _BELOW))), now)

    def _try(self, rate: float, now: int) -> None:
        self.rate = min(self.highest, rate)
        self._round, self._answers = now, 0
