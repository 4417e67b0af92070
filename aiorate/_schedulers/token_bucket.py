"""TokenBucket, and what pools share with it: they store time that nobody has used yet, up to a size. A request takes its cost out, or
waits for it. A bucket makes the same grants as golang.org/x/time/rate without the truncation there.

The level is kept as the instant at which the store holds one permit, its next. A level L at a later instant means that it was ``L - 1``
intervals ago. It is the virtual scheduling form of GCRA, ITU-T I.371. What finds the store full overflows: a bucket loses it, and to a pool
it may return. A nanosecond and the cost of a permit are whole numbers of units, so refills lose nothing to rounding.

Takes at one instant are a group. Permits of the latest group come back exactly. Earlier ones are credited as far as there was room for
them at every instant since.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from aiorate._errors import check_count
from aiorate._meter import NO_LINE, Meter
from aiorate._rate import EVEN, Rate, ceil_div
from aiorate._schedulers.interface import Scheduler, check_ask, check_ns, check_permits, check_window

if TYPE_CHECKING:
    from aiorate._rate import Number
    from aiorate._schedulers.interface import Standing


_MANY = 64
_instant = itemgetter(0)
# A rate; in units, a nanosecond, a permit, the size of the store, its size while overflow returns, and the ratio at which it returns; and
# the numbers of the meter. Shared by all stores with the same parameters.
Plan = tuple[Rate, tuple[int, int, int, int, int, int], tuple[int, int, Any]]


@lru_cache(256)
def plan_of(rate: Rate | str, permits: int, ns: int = 0, ratio: tuple[int, int] = EVEN) -> Plan:
    """For a store of that many permits, or of as many as come in ``ns`` if those are more."""
    rate, (num, den) = Rate.of(rate), ratio
    unit, cost = rate._ticks[0] * den, rate._ticks[1] * den
    full = max(permits * cost, ns * unit)
    kept = full - cost if num == den and cost <= full else NO_LINE
    return rate, (unit, cost, full, full // den * num, num, den), (unit, cost, kept)


class Stored(Scheduler):
    """The room for permits that come back was smallest just before the take that found the highest level. So `_peaks` has the takes that
    found more than every later take."""

    __slots__ = ("_at_first", "_initial", "_last", "_latest", "_line", "_over", "_peaks", "_plan", "rate")
    rate: Rate
    _plan: tuple[int, int, int, int, int, int]
    _at_first: int  # the level before the schedule begins
    _last: Any  # the instant up to which it is filled; None: the schedule has not begun
    _over: int  # what has overflowed and has not returned
    _latest: tuple[int, int, int, int, Any] | None
    """Of the latest group: its instant, its permits, and the state before it: due, overflow, and filled up to. None: all takes stand."""
    _peaks: list[tuple[int, int]] | None  # takes, by instant, and the levels that they found, which descend

    def _setup(self, plan: Plan, initial: int, start: int | None) -> None:
        """Hold that many permits at first."""
        check_ns("start", 0 if start is None else start)
        self._line: Meter = Meter()
        self.rate, self._plan, self._line.numbers = plan
        self._initial = initial
        Stored.reset(self, start)  # whatever a subclass makes of it

    def reset(self, now: int | None) -> None:
        """Start over at ``now`` or, if that is None, with the first request."""
        self._peaks = self._last = self._latest = None
        self._over = self._line.cut = 0
        self._line.peak, cost = -1, self._plan[1]
        self._at_first = cost if self._initial == 1 else self._initial * cost  # the plan's number takes no memory here
        if now is not None:
            self._level(now)

    def _level(self, now: int | None = None) -> tuple[Any, int, int]:
        """The instant up to which it is filled, None before the schedule begins; the level then, and the overflow.

        With ``now``, it is filled up to that instant first, at which the schedule may begin.
        """
        if self._line.peak >= 0:
            self._heed_grabs()
        last, over, (unit, cost, _, most, *_) = self._last, self._over, self._plan
        if last is None:
            if now is None:
                return None, self._at_first, over
            level = min(self._at_first, most)
            over += self._at_first - level
            self._keep(now, level, over)
            return now, level, over
        level = last * unit - self._line.due + cost
        return (last, level, over) if now is None or now <= last else (now, *self._filled(level, over, (now - last) * unit))

    def _keep(self, last: int | None, level: int, over: int) -> None:
        """Keep the level and the overflow, as filled up to ``last``; None: before the schedule begins."""
        unit, cost, *_ = self._plan
        if last is None:
            self._at_first, self._over = level, over
            return
        self._last, self._over, self._line.due = last, over, last * unit - level + cost

    def take(self, permits: int, now: int, since: int | None = None, *, asking: bool = False) -> int:
        """As `Scheduler.take`. ``asking``: only say when, as `peek`."""
        if type(now) is not int or type(permits) is not int or permits < 1 or (since is not None and type(since) is not int):
            check_ask("take()", permits, now, since)
        line, (unit, cost, full, most, num, den) = self._line, self._plan
        need = spent = permits * cost
        if need > full:  # a bucket never grants it; a pool does when it is full, and the rest is owed
            check_ask("take()", permits, now, since, self.max_permits)
            need = full
        if line.peak >= 0 or self._last is None:
            self._level(now)
        due: int = line.due  # type: ignore[assignment]  # it has begun
        last: int = self._last  # pyright: ignore[reportAssignmentType]  # as above
        level, over, straight = last * unit - due + cost, self._over, most == full  # whether nothing returns
        if since is None or since > now:
            since = now
        if since > last:
            # At once: no request was waiting, so what does not fit overflows.
            fresh, last = (since - last) * unit, since
            if not straight:
                level, over = self._filled(level, over, fresh)
            elif (level := level + fresh) >= full + unit:  # as _filled() says, in less time
                level, over = full, over + level - full
        at = last
        if level < need:
            # Only as far as the request needs, because a late wake-up must not make it overflow.
            ns = -(-(need - level if straight or not over else self._fresh_for(level, over, need)) // unit)  # rounded up
            at = last = last + ns
            if at > now:
                return at
            level, over = (level + ns * unit, over) if straight else self._filled(level, over, ns * unit)
        elif now < last:
            # The clock went back: what was earned since then does not count yet.
            at = max(since, last - (level - need) * den // (num * unit))
        if at <= now and not asking:
            latest, peaks = self._latest, self._peaks
            if latest is None or latest[0] != now:
                self._latest = (now, permits, due, self._over, self._last)
            else:
                self._latest = (now, latest[1] + permits, *latest[2:])
            if level >= full:
                self._peaks = [(now if now > last else last, level)]  # as _note_level() leaves it, in less time
            elif not peaks or peaks[-1][0] != now or peaks[-1][1] < level:
                self._note_level(now, level)
            self._last, self._over, line.due = last, over, last * unit + (cost + spent - level)
        return at

    _metered_take = take

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now, most=self.max_permits)
        at: int = Stored.take(self, permits, now, asking=True)
        if not ahead:
            return at
        (last, level, over), (unit, cost, full, *_) = self._level(now), self._plan
        need = ahead * cost + min(permits * cost, full)
        # What returns is rounded by less than a nanosecond in all, and the answer is never too late.
        end: int = last + ceil_div(self._fresh_for(level, over, need), unit) - (full < self._plan[3])
        return at if at > end else end

    def _filled(self, level: int, over: int, fresh: int) -> tuple[int, int]:
        """The level and the overflow after ``fresh`` units: they fill it, the rest overflows, and then some returns."""
        unit, _, full, most, num, den = self._plan
        fits = fresh
        if level + fresh >= full + unit:  # full within the last ns is on time: its rest, cut off, would be drift
            fits = full - level if level < full else 0
            over += fresh - fits
        level += fits
        moved = min(fresh * (num - den) // den, over, most - level) if over else 0
        return (level + moved, over - moved) if moved > 0 else (level, over)

    def _fresh_for(self, level: int, over: int, need: int) -> int:
        """The fresh units after which it holds ``need``, together with what returns."""
        num, den = self._plan[4:]
        return max(ceil_div((need - level) * den, num), need - level - over)

    def _note_level(self, now: int, level: int) -> None:
        """Note that a take found that level: permits of earlier takes come back only as far as they fit above it."""
        peaks = self._peaks = self._peaks or []
        if peaks and now < peaks[-1][0]:  # where the clock went back, the take is later in order
            now = peaks[-1][0]
        while peaks and peaks[-1][1] <= level:
            peaks.pop()
        if len(peaks) >= _MANY and peaks[-1][1] - max(level, 0) < self._plan[2] // _MANY:
            level = peaks.pop()[1]  # hardly lower: one record of both, which is never too low
        peaks.append((now, level))

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Put permits back as far as there is room; by receipt, as far as there was room at every take since. The rest overflows."""
        check_ask("give_back()", permits, now, taken)
        if self._last is None:
            self._level(now)
        (last, level, over), (_, cost, full, most, *_) = self._level(), self._plan
        latest, self._latest = self._latest, None
        credit = permits * cost
        if latest and latest[0] == taken and latest[1] >= permits:
            if latest[1] > permits:
                self._line.due -= credit  # type: ignore[operator]  # it has begun
                self._latest = (latest[0], latest[1] - permits, *latest[2:])
            else:
                self._line.due, self._over, self._last = latest[2:]
        elif taken is None:
            level += max(0, min(credit, most - level))
            self._note_level(now, level)
            self._keep(last, level, over)
        else:
            # Above full, the credit would have slowed the return of the overflow. So it ends at full.
            peaks = self._peaks or []
            place = bisect_right(peaks, taken, key=_instant)
            room = max(0, min(credit, full - level, *(full - found for _, found in peaks[place : place + 1])))
            later, peaks[place:] = peaks[place:], []
            for instant, found in later:  # each of these takes has found the credit
                self._note_level(instant, found + room)
            self._keep(last, level + room, over + credit - room)

    def _heed_grabs(self) -> None:
        """Note the grabs since the last call. All takes before them stand."""
        line, (unit, cost, *_) = self._line, self._plan
        self._note_level(line.last, line.peak + cost)
        # Callers that wait since a late wake-up take what has come since, and it is filled only as far as they need.
        self._last = max(self._last, min(line.last, line.since), ceil_div(line.due - cost, unit))  # type: ignore[operator]
        self._over, line.cut = self._over + line.cut, 0
        self._latest, line.peak = None, -1

    def charge(self, permits: int, now: int) -> None:
        """Take any number of permits at once. The level may fall below zero."""
        check_permits("charge()", permits)
        last, level, over = self._level(now)
        self._note_level(now, level)
        self._latest = None
        self._keep(last, level - permits * self._plan[1], over)

    def _change(self, plan: Plan, kept: int, now: int | None) -> None:
        """Use another plan. ``kept``: the index in `_plan` of the unit in which the level stays the same."""
        (last, level, over), before, slower = self._level(now), self._plan, plan[0]._slower_than(self.rate)
        if now is not None and now < last:  # the clock went back, or what is owed was granted ahead
            last, level = now, level - (last - now) * before[0]
        self._latest, (self.rate, self._plan, self._line.numbers) = None, plan
        unit, _, _, most, *_ = self._plan
        num, den = self._plan[kept], before[kept]
        # Rounded up, so the room is never larger than it was.
        self._peaks = self._peaks and [(instant, ceil_div(level * num, den)) for instant, level in self._peaks]
        # Rounded down: this gives no credit.
        level, over = level * num // den, over * unit // before[0]
        if now is not None and level > most:  # it has shrunk: the excess waits, or a new rate would give a free burst
            level, over = most, over + level - most
        self._keep(last, level, over)
        if now is not None and slower and not kept:
            self._note_level(now, most)  # as if full: earlier permits cost less than they would bring now

    def available(self, now: int) -> int:
        """The permits in store."""
        (last, level, _), (_, cost, _, most, *_) = self._level(now), self._plan
        return 0 if now < last else max(0, min(level, most) // cost)

    @property
    def _spilled(self) -> int:
        """The overflow in ns; 0 if it returns."""
        unit, _, full, most, *_ = self._plan
        return self._level()[2] // unit if most == full else 0

    def bound(self, window: int, largest: int = 1) -> int:
        """``max(size, largest) + ratio x rate x window``. The size is in permits, and includes what may return."""
        check_window(window, largest)
        _, cost, full, most, num, _ = self._plan
        owed = max(0, largest * cost - full) if self.max_permits is None else 0  # granted on credit
        return (most + owed + window * self.rate._ticks[0] * num) // cost


class TokenBucket(Stored):
    """Allow bursts of up to ``burst``, then a steady rate.

    A bucket that holds permits and refills at the rate. A request takes its permits out, or waits for them. Any window holds at most
    ``burst + rate x window``; if the bucket holds a whole period's permits, that is nearly twice the rate in the first period.

    Args:
        rate: The rate: text such as ``"10/s"``, a number per second, or a `Rate`.
        burst: How many permits the bucket holds. A request for more can never be granted.
        initial: How many permits are in it at first. Full by default.
        start: When the schedule begins, in ns. By default with the first request.
    """

    __slots__ = ("max_permits",)
    _shown: tuple[str, ...] = ("burst",)

    def __init__(self, rate: Rate | str | Number, burst: int, initial: int | None = None, *, start: int | None = None) -> None:
        check_permits("TokenBucket(burst)", burst)
        if initial is not None:
            check_count("TokenBucket(initial)", initial)
            if initial > burst:
                raise ValueError(f"TokenBucket(initial={initial}) must be from 0 to {burst}, the burst.")
        self.max_permits: int = burst  # pyright: ignore[reportIncompatibleVariableOverride]  # a bucket has a largest request
        self._setup(plan_of(rate if type(rate) is str else Rate.of(rate), burst), burst if initial is None else initial, start)

    @property
    def burst(self) -> int:
        """Size of the bucket in permits."""
        return self.max_permits

    def _standings(self, now: int) -> list[Standing]:
        (unit, cost, full, *_), due = self._plan, self._line.due
        if due is None:
            return super()._standings(now)
        level = min(now * unit - due + cost, full)  # with what a meter has taken
        left = max(level // cost, 0)
        return [(self.max_permits, self.rate, left, now if left == self.max_permits else now + ceil_div((left + 1) * cost - level, unit))]

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate. The bucket keeps its level in permits, and so does a debt."""
        self._change(plan_of(Rate.of(rate), self.burst), 1, now)
