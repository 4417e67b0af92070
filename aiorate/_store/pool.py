"""The pool of slots in hand: the scheduler of every limit that processes share. A store assigns the slots. Knows nothing of stores, loops,
waiters and clocks.

A slot has an amount of each dimension and an instant at which it is due. A limiter's are single permits, at equal distances in long
runs. A budget's are reservations, and a window's are requests. A request uses the next slots in order until it has its amounts. Unused
slots lapse, which bounds what all processes together grant.
"""

from __future__ import annotations

from copy import copy
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING

from aiorate._rate import ceil_div
from aiorate._schedulers.amounts import Amounts
from aiorate._schedulers.interface import NOBODY_KNOWS, Scheduler, check_permits
from aiorate._store.slots import MOST_NS, US, Part, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiorate._rate import Rate
    from aiorate._schedulers.amounts import Permits
    from aiorate._schedulers.calendar_window import CalendarWindow
    from aiorate._schedulers.interface import Standing
    from aiorate._store.slots import Found, Limited


_LOOK_AGAIN_NS = 20_000_000
_NEVER = -MOST_NS, 0, 0
_ONE = 1  # compared by identity


class Pool(Scheduler):
    """Slots in hand, in order, and an estimate of when more are due.

    ``unit``: its slots are single permits. A slot lapses after ``late`` ns, or half of the time that it takes if that is longer.
    """

    rate: Rate
    books_since: bool = False
    _spilled: int = 0

    def __init__(self, limits: Sequence[Limited], unit: bool, late: int) -> None:
        self.parts: tuple[Part, ...] = tuple([Part(*limit) for limit in limits])  # another tuple once a rate is changed
        self.calendar: CalendarWindow | None = self.parts[0].calendar  # None: it is paced
        self.max_permits = None if self.calendar is None else self.parts[0].burst
        self.unit: bool = unit
        self._one: tuple[int, ...] = self.need(1)
        self._late: int = late
        self.rate = max(self.parts, key=lambda part: part.rate.period_ns / part.rate.permits).rate if unit else self.parts[0].rate
        self.runs: list[Run] = []  # in the order in which they fall due; those that lapsed stay until somebody asks
        self.count: int = 0  # of slots in these
        self._granted: tuple[int, int, int] = _NEVER  # the instant of the last grant; when its slots were due, and how late
        self.refused: tuple[int, ...] | None = None  # the last request that lacked slots; None: another was granted since
        self.waits_for: int = 0  # the dimension that the last request without a slot waits for

        # What the store has yet to hear.
        self.corrections: list[int] = [0] * len(limits)  # permits used without slots, less those that come back
        self.oldest: int | None = None  # the first grant of which something comes back; None: nothing does

        # Set by whoever fills it.
        self.wanted: Callable[[int], bool] = _nobody  # slots may be wanted. Returns whether they are on their way
        self.corrected: Callable[[bool], object] = _nobody  # the store has something to hear; True: at once
        self.asked: bool = False  # whether slots are on their way
        self.look_at: int | None = None  # until then the store has nothing for the first in line; None: ask it
        self.asks_below: int = -1  # slots are wanted once a grant leaves so few; -1: once a request is refused
        self.answer_ns: int = 1  # how long an answer takes, smoothed; 1: not measured yet; 0: it comes at once
        self.patient: bool = False  # whether the first in line keeps its slots while a limit above is asked
        self.outage: str = ""  # the policy that decides while the store does not answer
        self.alone: range = range(0)  # instants of the latest outage, whose grants no store has heard of

    def need(self, permits: Permits) -> tuple[int, ...]:
        """The amounts of a request, by dimension."""
        return permits.of[: len(self.parts)] if isinstance(permits, Amounts) else (permits,) * len(self.parts)

    def slots_of(self, need: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """How many slots of which amounts that is."""
        return (need[0], (1,) * len(need)) if self.unit else (1, need)

    def lacks(self, permits: Permits, now: int) -> bool:
        need = self.need(permits)
        return any(need) and self.find(need, self._lapsed(need, now))[1] is None

    # What the session does.

    def run(self, n: int, place: int, starts: list[float], need: tuple[int, ...], parts: Sequence[Part], now: int) -> Run:
        """Slots that begin so many us after ``now``: the first of them, and by each rate. The first waited for ``place``, if not 0.

        One may be late by half of its time in the dimension where it takes least. That adds half a slot to the bound of each dimension,
        since no two slots in a row are both late.
        """
        first, *times = [now + ceil(us * US) for us in starts]
        paces = [(at, part.rate.permits, part.rate.period_ns * of) for at, part, of in zip(times, parts, need, strict=True) if of]
        costs = [part.time_of(of) for part, of in zip(parts, need, strict=True)]
        slowest = costs.index(max(costs))
        rules = self.unit and times[slowest] == max(times)  # then single permits may be as late as by that rate alone
        late = max(self._late, (costs[slowest] if rules else min(filter(None, costs))) // 2)
        if all(first > at for at, _, _ in paces):
            paces.append((first, 1, 0))
        return Run(need, n, late, paces, (place - 1, slowest))

    def add(self, *runs: Run) -> None:
        self.runs += runs
        self.count += sum([run.n for run in runs])
        self.runs.sort(key=attrgetter("due"))

    def clear(self) -> list[Run]:
        runs, self.runs, self.count, self._granted = self.runs, [], 0, _NEVER
        return runs

    def give_up(self, tail: Run | None, now: int) -> int:
        """Give back all slots that have not lapsed: time that is over must not be booked once more.

        Those of a rate come back only if nobody has asked since. Returns how many of these, the last ones, ``tail``.
        """
        runs = self.clear()
        if self.unit:
            return tail.n - tail.by(now) if tail is not None and tail in runs else 0
        for run in runs:
            self.correct([-of * (run.n - run.lapsed(now)) for of in run.amounts], run.due)
        return 0

    def correct(self, more: Sequence[int], taken: int, at_once: bool = False) -> None:
        """More was used, or less (below 0), than was granted then."""
        if (taken in self.alone and not at_once) or not any(more):
            return
        self.corrections = [own + its for own, its in zip(self.corrections, more, strict=True)]
        if min(more) < 0:
            self.oldest = taken if self.oldest is None else min(self.oldest, taken)
        self.corrected(at_once or self.calendar is not None)

    def last_due(self) -> int:
        return max([run.at(run.i + run.n - 1) for run in self.runs], default=0)

    def usable(self, permits: int, now: int) -> int:
        """How many slots are of use while the first in line asks for ``permits``."""
        return self.count - self._lapsed(self.need(permits), now)

    def unanswered(self) -> None:
        self.asked, self.look_at = False, None

    def _want(self, now: int, need: tuple[int, ...] | None = None) -> None:
        """Tell that slots are wanted, unless they are on their way, or the store has nothing yet. ``need``: what a request lacks."""
        self.refused = need
        if not self.asked and (self.look_at is None or now >= self.look_at):
            self.look_at = None
            self.asked = self.wanted(now) or self.asked

    # A request.

    def take(self, permits: Permits, now: int, since: int | None = None) -> int:
        need = self._one if permits is _ONE else self.need(permits)
        if need is not self._one and not any(need):
            return now
        if not self.runs:
            self._want(now, need)  # which may get some
            if not self.runs:
                return self._look_again(now)
        run = self.runs[0]
        found: Found = run.due, run, 1, ()
        if run.due > now or now > run.due + run.late or run.amounts != need:  # as few are
            found = self._find(need, now)
        at, last, count, rest = found
        if last is None:
            return self._look_again(now)
        if (place := last.places[last.i > 0]) >= 0:
            self.waits_for = place
        if at <= now:
            if self.calendar is None:  # what comes back of a window goes to the store
                (instant, before, _), due = self._granted, at if self.unit else min(at, self.runs[0].due)
                self._granted = now, min(due, before) if instant == now else due, last.late
            self._remove(count)
            if rest:  # for the next request
                self.add(Run(rest, 1, last.late, [(at, 1, 0)]))
            self.refused = None
            if self.count <= self.asks_below:
                self._want(now)
        elif self.answer_ns and (self.unit or self.count <= self.asks_below or self.last_due() <= now + self.answer_ns):
            self._want(now, need)
        return at

    def _remove(self, count: int) -> None:
        self.count -= count
        while count:
            run = self.runs[0]
            if count < run.n:
                run.i, run.n = run.i + count, run.n - count
                run.due = run.at(run.i)
                return
            del self.runs[0]
            count -= run.n

    def find(self, need: tuple[int, ...], skip: int = 0) -> Found:
        """The next slots, after ``skip`` others, that have these amounts."""
        runs = self.runs
        if not skip and runs and runs[0].amounts == need:  # as most are
            return runs[0].due, runs[0], 1, ()
        at, count, lacks = 0, 0, need
        for run in runs:
            if skip >= run.n:
                skip -= run.n
                continue
            of_use = max([ceil_div(lack, of) for lack, of in zip(lacks, run.amounts, strict=True) if of and lack > 0], default=run.n)
            these = min(of_use, run.n - skip)
            at, count = max(at, run.at(run.i + skip + these - 1)), count + these
            lacks, skip = tuple([lack - these * of for lack, of in zip(lacks, run.amounts, strict=True)]), 0
            if max(lacks) <= 0:
                return at, run, count, tuple([-lack for lack in lacks]) if any(lacks) else ()
        return at, None, 0, ()

    def _find(self, need: tuple[int, ...], now: int) -> Found:
        """The slots for a request. Those that lapsed are lost, and if there are not enough, more are wanted."""
        for asked in (False, True):
            if lapsed := self._lapsed(need, now):
                self._remove(lapsed)
                self._spilled += lapsed * self.rate.period_ns // self.rate.permits if self.unit else 0  # pyright: ignore[reportIncompatibleMethodOverride]
            found, had = self.find(need), self.count
            if asked or found[1] is not None:
                break
            self._want(now, need)
            if self.count <= had:  # else it was answered already: in an outage, or by a file
                break
        return found

    def _look_again(self, now: int) -> int:
        """When to look again for a request that lacks slots; NOBODY_KNOWS if more are on their way."""
        return NOBODY_KNOWS if self.asked else now + _LOOK_AGAIN_NS if self.look_at is None else self.look_at

    def peek(self, permits: Permits, now: int, ahead: Permits = 0) -> int:
        need = self.need(permits)
        if not any(need):
            return now
        before = self.need(ahead) if ahead else (0,) * len(need)
        together = tuple([own + its for own, its in zip(need, before, strict=True)])
        # If it is patient, the caller is first in line, and calls take() only once this is due.
        first = self.patient and not ahead
        at, last, *_ = self._find(need, now) if first else self.find(together, self._lapsed(together, now))
        if last is not None:
            return at
        if self.unit:
            together = self.need(max(together[0] - self.usable(together[0], now), 1))
        elif self.calendar is None:  # larger amounts are owed
            together = tuple([min(own, part.burst) + its for own, its, part in zip(need, before, self.parts, strict=True)])
        dues = [part.due(of, now) if own else now for part, own, of in zip(self.parts, need, together, strict=True)]
        at = max(now + self.answer_ns, self.look_at or now)
        if max(dues) > at and not self.unit:
            self.waits_for = dues.index(max(dues))
        return max(at, *dues)

    def _lapsed(self, need: tuple[int, ...], now: int) -> int:
        """How many slots, the first in hand, have lapsed for such a request.

        A request that gathers slots may use some that lapsed meanwhile, but always fewer than it needs, which bounds what it adds.
        """
        runs = self.runs
        lapsed = sum([run.lapsed(now) for run in runs]) if runs and now > runs[0].due + runs[0].late else 0
        if not lapsed or self.calendar is not None:
            return lapsed
        if self.unit:
            return max(lapsed - need[0] + 1 - self.patient, 0)
        at, last, *_ = self.find(need)
        return 0 if last is None or now <= at + last.late else max(lapsed - self.patient, 0)

    # What comes back, and changes.

    def give_back(self, permits: Permits, now: int, taken: int | None = None) -> None:
        """Put the slots of a grant back in hand. If they have lapsed, the store gets them where it takes them."""
        amounts, (instant, at, late) = self.need(permits), self._granted
        if instant == taken and now <= at + late:
            slots, each = self.slots_of(amounts)
            self.add(Run(each, slots, late, [(at, 1, 0)]))
            if not self.unit:
                self.corrected(False)
            return
        if taken is None or not self.unit:  # a refund, or not of a rate
            self.correct([-of for of in amounts], now if taken is None else taken)

    def charge(self, permits: int, now: int) -> None:
        """Take permits from all processes."""
        check_permits("charge()", permits)
        self.correct((permits,) * len(self.parts), now, at_once=True)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate by which this process books. Raises RuntimeError if there are several."""
        first, *others = self.parts
        if others:
            raise RuntimeError("set_rate(): cannot change one of several rates. Create a new limiter of the same name with other rates.")
        part = copy(first)  # slots on their way are those of the rate asked for
        if part.calendar is not None:
            part.calendar.set_rate(rate, now)
            rate = part.calendar.rate
            self.max_permits, self.look_at, part.burst = rate.permits, None, rate.permits
        self.parts, self.rate, part.rate = (part,), rate, rate

    def _shift(self, ns: int) -> None:
        """The limiter's time stood still for ``ns``, in a pause, and the store's did not."""
        for run in self.runs:
            run.shift(ns)
        for part in self.parts:
            part._shift(ns)
        self.look_at = None if self.look_at is None else self.look_at - ns

    # Looking.

    def available(self, now: int) -> int:
        return min([left for _, _, left, _ in self._standings(now)])

    def _standings(self, now: int) -> list[Standing]:
        """What is left: the slots in hand that are due, and those that the store had free when it answered last."""
        due = max(sum([run.by(now) for run in self.runs]) - self._lapsed(self.need(1), now), 0) if self.unit else 0
        told = [part._standings(now, due)[0] for part in self.parts]
        return [(size, rate, 0, NOBODY_KNOWS) for size, rate, _, _ in told] if self.outage in ("raise", "wait") else told

    def bound(self, window: int, largest: int = 1) -> int | None:
        """Of all processes together: b + R (W + late) of each rate, or n for each window of the calendar that one may touch.

        If requests are for several permits, ``largest`` more for each process that makes such requests: here for one.
        """
        if self.calendar is not None:
            return self.calendar.bound(window, largest)
        lates = [max(self._late, part.time_of(1) // 2) for part in self.parts]
        # A slot that a slower rate delayed may be later than those of a faster one, one at a time.
        of_each = zip(self.parts, lates, strict=True)
        most = min([part.burst + part.rate._permits_in(window + late) + (max(lates) > late) for part, late in of_each])
        return most + (largest if largest > 1 else 0)

    def _rested(self, now: int) -> bool:
        return not self.asked and not self.outage and not self.usable(1, now)

    def __repr__(self) -> str:
        return f"Pool({', '.join(map(repr, self.parts))}, in_hand={self.count})"


def _nobody(_: object) -> bool:
    return False
