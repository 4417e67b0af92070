"""The pool of slots in hand: the scheduler of every limit that processes share. A store assigns the slots; a `Link` is told when more are
wanted. Knows nothing of stores, loops or waiters, and neither of a clock.

A slot has an amount of each dimension and an instant at which it is due. A limiter's are single permits, at equal distances in long
runs; a budget's are reservations, and a window's are requests. A request uses the next slots in order until it has its amounts. A slot
that nobody used in time lapses, which bounds what all processes together grant.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiorate._rate import Rate, ceil_div
from aiorate._schedulers.amounts import Amounts
from aiorate._schedulers.interface import NOBODY_KNOWS, Scheduler, check_ask, check_give_back, check_permits, check_window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._errors import EngineUnavailable
    from aiorate._rate import Number
    from aiorate._schedulers.amounts import Permits
    from aiorate._schedulers.calendar_window import CalendarWindow

__all__ = ["MOST_NS", "Link", "Part", "Pool", "Run", "check_memory"]

MOST_NS = 10**19
"""317 years: the longest duration that a store can count."""
_FIRST_ANSWER_NS = 1_000_000  # until one was measured
_LOOK_AGAIN_NS = 20_000_000
_ONE = 1


class Part(NamedTuple):
    """One dimension of a limit in a store: a bucket, or with a ``calendar`` so many permits in each window."""

    rate: Rate
    burst: int
    calendar: CalendarWindow | None = None

    def time_of(self, permits: int) -> int:
        """How many ns so many permits take, rounded up."""
        return ceil_div(permits * self.rate.period_ns, self.rate.permits)


class Level(NamedTuple):
    """What the store said last of a dimension: instants in ns."""

    full: int
    """When the bucket is full again, if nobody takes anything."""
    used: int = 0
    """Of a window: permits that are taken, ..."""
    begins: tuple[int, ...] = ()
    """... and the instants at which the next ones begin."""


Step = tuple[int, int]
"""So many permits take so many ns."""


class Run:
    """``n`` slots of the same ``amounts``: the i-th is due once every rate has it, and lapses ``late`` ns after that.

    ``first`` is when the first is due, ``starts`` the same by each rate, and ``steps`` are how far they are apart by these.
    """

    __slots__ = ("amounts", "due", "first", "i", "late", "n", "places", "starts", "steps")

    def __init__(
        self, amounts: tuple[int, ...], n: int, first: int, starts: Sequence[int], steps: Sequence[Step], late: int, *places: int
    ) -> None:
        self.amounts, self.n, self.i = amounts, n, 0
        self.first: int = first
        self.starts: list[int] = list(starts)
        self.steps: Sequence[Step] = steps
        self.late: int = late
        self.places: tuple[int, ...] = places
        """The dimensions for which the first waited, and the others; -1: none."""
        self.due: int = self.at(0)
        """When the next slot is due."""

    def at(self, i: int) -> int:
        """When the slot with that index is due."""
        at = self.first
        for start, (permits, ns) in zip(self.starts, self.steps, strict=True):
            own = start - (-i * ns // permits)
            if own > at:
                at = own
        return at

    @property
    def left(self) -> int:
        """How many slots are left."""
        return self.n - self.i

    def by(self, instant: int) -> int:
        """How many of these are due by that instant."""
        return bisect_right(range(self.n), instant, self.i, key=self.at) - self.i

    def lapsed(self, now: int) -> int:
        """How many of these have lapsed."""
        if now <= self.due + self.late:
            return 0
        return bisect_left(range(self.n), now - self.late, self.i, key=self.at) - self.i

    def skip(self, count: int) -> None:
        """Remove the first ``count``."""
        self.i += count
        if self.i < self.n:
            self.due = self.at(self.i)


class Link(Protocol):
    """How a pool reaches the store that fills it."""

    def wanted(self, now: int) -> bool:
        """Slots may be wanted at that instant. Returns whether they are on their way then."""
        ...

    def corrected(self, at_once: bool) -> None:
        """The store has something to hear: permits that were used without slots, or that come back."""
        ...


class Pool(Scheduler):
    """Slots in hand, in order, and an estimate of when more are due.

    ``unit``: its slots are single permits, and a request for several gathers as many. A slot lapses after ``late`` ns, or half of the
    time that it takes if that is longer.
    """

    __slots__ = (
        "_asks_below",
        "_free",
        "_granted",
        "_late",
        "answer_ns",
        "asked_at",
        "corrections",
        "count",
        "error",
        "lapsed",
        "levels",
        "link",
        "look_at",
        "oldest",
        "outage",
        "parts",
        "patient",
        "rate",
        "refused",
        "runs",
        "spent",
        "unit",
        "waits_for",
    )
    rate: Rate
    books_since: bool = False

    def __init__(self, parts: Sequence[Part], unit: bool, late: int) -> None:
        self.parts: tuple[Part, ...] = tuple(parts)
        """Its dimensions; another tuple once a rate is changed."""
        self.unit: bool = unit
        """Whether its slots are single permits."""
        self._late: int = late
        self.rate = _slowest([part.rate for part in parts]) if unit else parts[0].rate
        self._receipts: bool = True
        self.runs: list[Run] = []
        """What is in hand."""
        self.count: int = 0
        """Slots in hand, including those that have lapsed."""
        self._granted: deque[tuple[int, int, int]] = deque()  # the latest grants: when, and when their slots were due and how late
        self._free: tuple[int, int] | None = None  # the first and last instant at which something was granted that nobody counts
        self._asks_below: int = -1
        self.levels: list[Level | None] = [None] * len(parts)
        """What the store said last of each dimension; None: nothing."""
        self.corrections: list[int] = [0] * len(parts)
        """What the store has yet to hear: permits that were used without slots, less those that come back."""
        self.oldest: int | None = None
        """The first instant of a grant of which something comes back by these; None: nothing does."""
        self.asked_at: int | None = None
        """Since when slots are on their way; None: they are not."""
        self.look_at: int | None = None
        """Before that instant the store has nothing for the first in line; None: ask it."""
        self.answer_ns: int = _FIRST_ANSWER_NS
        """How long an answer of the store takes, as it was measured."""
        self.spent: int = 0
        """Permits granted in all."""
        self.refused: int = 0
        """The permits of the last request for which there were not enough; 0: another one was granted since."""
        self.lapsed: int = 0
        """Nanoseconds of schedule that nobody used in time."""
        self.patient: bool = False
        """Whether the first in line keeps its slots while another limit is asked after this one."""
        self.outage: str = ""
        """The policy in force while the store does not answer."""
        self.error: EngineUnavailable | None = None
        """For those who ask meanwhile, if the policy is ``"raise"``."""
        self.waits_for: int = 0
        """The place of the dimension that the last request without a slot waits for."""
        self.link: Link | None = None

    @property
    def calendar(self) -> CalendarWindow | None:
        """The calendar of its windows; None: it is paced."""
        return self.parts[0].calendar

    @property
    def max_permits(self) -> int | None:  # type: ignore[override]
        """The permits of a whole window; None: any number."""
        return None if self.calendar is None else self.parts[0].burst

    def need(self, permits: Permits) -> tuple[int, ...]:
        """The amounts of a request, as slots have them."""
        return permits.of[: len(self.parts)] if isinstance(permits, Amounts) else (int(permits),) * (1 if self.unit else len(self.parts))

    def uncovered(self, needs: Sequence[tuple[int, ...]], now: int) -> list[tuple[int, ...]]:
        """Those requests, of a line in that order, for which there are not enough slots in hand."""
        slots = [run.amounts for run in self.runs for _ in range(run.left - run.lapsed(now))]
        i = 0
        for place, need in enumerate(needs):
            have = [0] * len(need)
            while any(own < of for own, of in zip(have, need, strict=True)):
                if i == len(slots):
                    return list(needs[place:])
                have = [own + of for own, of in zip(have, slots[i], strict=True)]
                i += 1
        return []

    def lacks(self, permits: Permits, now: int) -> bool:
        """Whether there are not enough slots in hand for that request."""
        need = self.need(permits)
        return any(need) and self._due(need, self._lapsed(_size(permits), now), now)[1] is None

    # What the session does.

    def add(self, runs: list[Run]) -> None:
        """Add slots that the store assigned."""
        self.runs += runs
        self.count += sum([run.left for run in runs])
        self.runs.sort(key=_due)

    def ask_below(self, count: int) -> None:
        """Want slots as soon as a grant leaves ``count`` or fewer; -1: only when a request is refused."""
        self._asks_below = count

    def late_of(self, amounts: Sequence[int], place: int | None = None) -> int:
        """How late such a slot may be used: half of the time that it takes of the dimension that it takes least of, or of that one.

        That adds half of it to the bound of each dimension: no two slots in a row are both late.
        """
        times = [part.time_of(amount) // 2 for part, amount in zip(self.parts, amounts, strict=True) if amount]
        return max(self._late, (min(times, default=0) if place is None else times[place]))

    def clear(self) -> list[Run]:
        """Give up all slots in hand. Returns them."""
        runs, self.runs, self.count = self.runs, [], 0
        self._granted.clear()
        return runs

    def drop(self, now: int) -> None:
        """Have all slots in hand come back to the store that have lapsed, but for those that may be used yet."""
        if not self.unit and not self.patient:
            self._lose(self._lapsed(1, now))

    def back(self, amounts: Sequence[int], since: int) -> None:
        """Have amounts that were granted since that instant come back to the store, unless they are slots of a rate."""
        if not self.unit and any(amounts):
            self.correct([-amount for amount in amounts], since)

    def correct(self, more: Sequence[int], taken: int, at_once: bool = False) -> None:
        """More was used, or less (below 0), than was granted at that instant."""
        if self._free is not None and self._free[0] <= taken <= self._free[1]:
            return
        self.corrections = [own + its for own, its in zip(self.corrections, more, strict=True)]
        if min(more) < 0:
            self.oldest = taken if self.oldest is None else min(self.oldest, taken)
        if self.link is not None:
            self.link.corrected(at_once or self.calendar is not None)

    def last_due(self) -> int:
        """When the last slot in hand is due."""
        return max([run.at(run.n - 1) for run in self.runs], default=0)

    def usable(self, permits: int, now: int) -> int:
        """The number of slots in hand that are of use while the first in line asks for ``permits``."""
        return self.count - self._lapsed(permits, now)

    def due_by(self, instant: int, now: int) -> int:
        """The number of slots in hand that are of use now and due by that instant."""
        return max(sum([run.by(instant) for run in self.runs]) - self._lapsed(1, now), 0)

    def unanswered(self) -> None:
        """Nothing is on its way: call the link again when slots are wanted."""
        self.asked_at = self.look_at = None

    def want(self, now: int) -> None:
        """Tell the link that slots are wanted, unless they are on their way, or the store has nothing before a known instant."""
        if self.asked_at is None and self.link is not None and (self.look_at is None or now >= self.look_at):
            self.look_at = None
            if self.link.wanted(now):
                self.asked_at = now

    # A request.

    def take(self, permits: Permits, now: int, since: int | None = None) -> int:
        runs = self.runs
        if permits is _ONE and runs and self.unit and type(now) is int:
            run = runs[0]
            at = run.due
            if at <= now <= at + run.late:
                if since is not None or self._receipts:  # out of the line: it may come back
                    self._note(now, at, run.late)
                run.i += 1
                if run.i == run.n:
                    del runs[0]
                else:
                    run.due = run.at(run.i)
                self.count -= 1
                self.spent += 1
                self.refused = 0
                if self.count <= self._asks_below:
                    self.want(now)
                return at
        size = _size(permits)
        check_ask("take()", size, now, since, self.max_permits)
        need = self.need(permits)
        if not any(need):
            return now
        skip = self._lapsed(size, now)
        at, last = self._due(need, skip, now)
        if last is not None:
            if last.places and (place := last.places[last.i > 0]) >= 0:
                self.waits_for = place
            if at <= now:
                self._spend(size, need, skip, now, at)
            else:
                self._refuse(size, now)
            return at
        self._refuse(size, now)
        if self.outage == "open":
            self._free = (now if self._free is None else self._free[0], now)
            self.spent += size
            return now
        if self.error is not None:
            raise type(self.error)(*self.error.args) from self.error.__cause__  # one for all would collect the frames of them all
        if self.outage == "local":  # which has answered already
            at, last = self._due(need, skip, now)
            if last is not None:
                if at <= now:
                    self._spend(size, need, skip, now, at)
                return at
        if self.asked_at is not None:
            return NOBODY_KNOWS  # their arrival is told
        return now + _LOOK_AGAIN_NS if self.look_at is None else self.look_at

    def peek(self, permits: Permits, now: int, ahead: Permits = 0) -> int:
        size = _size(permits)
        check_ask("peek()", size, now, None, self.max_permits)
        need = self.need(permits)
        if not any(need):
            return now
        if not ahead:
            at, run = self._due(need, self._lapsed(size, now), now)
            if run is not None:
                return at
            if self.patient:  # the caller is first in line, and calls take() only once this is due
                self._refuse(size, now)
                if self.error is not None:
                    raise type(self.error)(*self.error.args) from self.error.__cause__
                at, run = self._due(need, self._lapsed(size, now), now)
                if run is not None:
                    return at
        if self.outage == "open":
            return now
        if self.outage in ("raise", "wait"):
            return NOBODY_KNOWS
        before = self.need(ahead) if ahead else (0,) * len(need)
        together = size + (_size(ahead) if ahead else 0)
        usable = self.usable(together, now)
        if self.unit and ahead and usable >= together:
            return self._due((together,), self.count - usable, now)[0]
        return self._estimate(need, before, usable, now)

    def _refuse(self, permits: int, now: int) -> None:
        self.refused = permits
        self.want(now)

    def _due(self, need: Sequence[int], skip: int, now: int) -> tuple[int, Run | None]:
        """When the next slots after ``skip`` others have these amounts, and the last run of these; None: there are not enough."""
        at, have = 0, [0] * len(need)
        for run in self.runs:
            if skip >= run.left:
                skip -= run.left
                continue
            count = min(_slots(run.amounts, have, need), run.left - skip)
            at = max(at, run.at(run.i + skip + count - 1))
            have = [own + count * of for own, of in zip(have, run.amounts, strict=True)]
            skip = 0
            if all(own >= of for own, of in zip(have, need, strict=True)):
                return at, run
        return at, None

    def _spend(self, permits: int, need: Sequence[int], skip: int, now: int, at: int) -> None:
        """Use the next slots after ``skip`` others, which have lapsed."""
        self._lose(skip)
        have = [0] * len(need)
        earliest, late = at, 0
        while any(own < of for own, of in zip(have, need, strict=True)):
            run = self.runs[0]
            count = min(_slots(run.amounts, have, need), run.left)
            have = [own + count * of for own, of in zip(have, run.amounts, strict=True)]
            earliest, late = min(earliest, run.due), run.late
            self._remove(count)
        self._note(now, at if self.unit else earliest, late)
        self.spent += permits
        self.refused = 0
        self.back([own - of for own, of in zip(have, need, strict=True)], earliest)
        if self.count <= self._asks_below:
            self.want(now)

    def _lose(self, skip: int) -> None:
        """Remove the first slots, which have lapsed."""
        while skip:
            run = self.runs[0]
            count = min(skip, run.left)
            if self.unit:
                self.lapsed += run.at(run.i + count) - run.due if run.left > count else self.parts[0].time_of(count)
            self.back([of * count for of in run.amounts], run.due)
            self._remove(count)
            skip -= count

    def _remove(self, count: int) -> None:
        run = self.runs[0]
        run.skip(count)
        self.count -= count
        if not run.left:
            del self.runs[0]

    def _lapsed(self, permits: int, now: int) -> int:
        """How many slots, the first in hand, have lapsed for such a request.

        A request that gathers slots for several permits may use the latest that lapsed meanwhile, one fewer than it needs. So a grant
        exceeds the slots that have not lapsed by at most that.
        """
        runs = self.runs
        if not runs or now <= runs[0].due + runs[0].late:
            return 0
        lapsed = sum([run.lapsed(now) for run in runs])
        if self.calendar is not None:
            return lapsed
        return max(lapsed - (permits - 1 if self.unit else 0) - self.patient, 0)

    def _note(self, now: int, at: int, late: int) -> None:
        granted = self._granted
        while granted and granted[0][0] < now - granted[0][2]:
            granted.popleft()
        if granted and granted[-1][0] == now:
            at = min(at, granted.pop()[1])
        granted.append((now, at, late))

    # What comes back, and changes.

    def give_back(self, permits: Permits, now: int, taken: int | None = None) -> None:
        """Put the slots of a grant back in hand. Those that have lapsed are lost, or come back to the store where it takes them."""
        size = _size(permits)
        check_give_back(size, now, taken)
        amounts = self.need(permits)
        if taken is not None and self.calendar is None:
            for instant, at, late in self._granted:
                if instant == taken and now <= at + late:
                    unit = self.unit
                    self.add([Run((1,) if unit else amounts, size if unit else 1, at, (), (), late)])
                    if self.link is not None and not unit:
                        self.link.corrected(False)
                    return
        self.back(amounts, now if taken is None else taken)

    def charge(self, permits: Permits, now: int) -> None:
        """Have the store take the permits from all processes; here they delay what is booked from now on.

        Raises ValueError for a debt of more than 317 years.
        """
        check_permits("charge()", _size(permits))
        more = permits.of[: len(self.parts)] if isinstance(permits, Amounts) else (int(permits),) * len(self.parts)
        if not isinstance(permits, Amounts) and permits * self.rate.period_ns > MOST_NS * self.rate.permits:
            most = MOST_NS * self.rate.permits // self.rate.period_ns
            raise ValueError(f"charge({permits}): at {self.rate} the debt would last longer than 317 years. At most {most} can be charged.")
        self.correct(more, now, at_once=True)
        self.levels = [
            level and Level(max(level.full, now) + part.time_of(each), level.used + each, level.begins)
            for level, part, each in zip(self.levels, self.parts, more, strict=True)
        ]

    def _read_rate(self, rate: Rate | str | Number) -> Rate:
        """As `CalendarWindow._read_rate` does."""
        return Rate.of(rate) if self.calendar is None else self.calendar._read_rate(rate)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate by which this process has slots assigned. Raises RuntimeError where there are several."""
        if len(self.parts) > 1:
            raise RuntimeError("set_rate(): cannot change one of several rates. Create a new limiter of the same name with other rates.")
        part = self.parts[0]
        if part.calendar is None:
            check_memory("set_rate()", rate, part.burst)
            self.parts = (Part(rate, part.burst),)
        else:
            part.calendar.set_rate(rate, now)
            rate = part.calendar.rate
            self.parts = (Part(rate, rate.permits, part.calendar),)
            self.look_at = None
        self.rate = rate

    def shift(self, ns: int) -> None:
        """Follow a pause: the limiter's time stood still for ``ns``, and the store's did not."""
        for run in self.runs:
            run.first -= ns
            run.due -= ns
            run.starts = [start - ns for start in run.starts]
        self.levels = [level and Level(level.full - ns, level.used, tuple([begin - ns for begin in level.begins])) for level in self.levels]
        self.asked_at = None if self.asked_at is None else self.asked_at - ns
        self.look_at = None if self.look_at is None else self.look_at - ns

    def reset(self, now: int) -> None:
        """Raises RuntimeError: the store knows of all grants, for all processes."""
        raise RuntimeError("reset(): other processes share this limit and remember it. Use another name.")

    # Looking.

    def _estimate(self, need: Sequence[int], before: Sequence[int], usable: int, now: int) -> int:
        """When a request is due for which there are not enough slots, with others ahead of it that need ``before``."""
        at = max(now + self.answer_ns, self.look_at or now)
        if self.unit:
            need, before = (need[0],) * len(self.parts), (max(before[0] + need[0] - usable, 1) - need[0],) * len(self.parts)
        for place, (own, ahead, part, level) in enumerate(zip(need, before, self.parts, self.levels, strict=True)):
            if own and level is not None:
                due = self._due_of(part, level, own, ahead, now)
                if due > at:
                    at = due
                    if not self.unit:
                        self.waits_for = place
        return at

    def _due_of(self, part: Part, level: Level, own: int, ahead: int, now: int) -> int:
        if level.begins:
            used, passed = self._window(level, now)
            rest = used + ahead + own
            if rest <= part.burst:
                return now
            later = passed + max(ceil_div(rest, part.burst) - 2, 0)
            last = len(level.begins) - 1
            return level.begins[min(later, last)] + max(later - last, 0) * part.rate.period_ns
        room = part.burst - own if self.unit else part.burst - min(own, part.burst)
        full = max(level.full, now)
        return full + part.time_of(ahead) - part.time_of(room) if ahead >= 0 else full - part.time_of(room - ahead)

    def _window(self, level: Level, now: int) -> tuple[int, int]:
        """What the window at ``now`` has used, as far as is known, and how many of the known beginnings have passed."""
        used, passed = level.used, 0
        for begin in level.begins[:-1]:
            if now >= begin:
                used, passed = max(used - self.parts[0].burst, 0), passed + 1
        return used, passed

    def last(self, permits: Permits, now: int) -> int | None:
        """The place of the dimension that is due last; None: all are due now."""
        dues = [
            now if level is None or not own else self._due_of(part, level, own, 0, now)
            for own, part, level in zip(self.need(permits), self.parts, self.levels, strict=True)
        ]
        latest = max(dues)
        return dues.index(latest) if latest > now else None

    def _quotas(self) -> list[tuple[int, Rate]]:
        """The burst of each rate, of all processes together."""
        return [(part.burst, part.rate) for part in self.parts]

    def _standings(self, now: int) -> list[tuple[int, int]]:
        """For each rate, the slots in hand that are due and those that the store had free when it answered last."""
        return [self._standing(place, now) for place in range(len(self.parts))]

    def _standing(self, place: int, now: int) -> tuple[int, int]:
        part, level = self.parts[place], self.levels[place]
        if self.outage == "open" or (level is None and not self.outage):
            return part.burst, now
        if self.outage in ("raise", "wait") or level is None:
            return 0, NOBODY_KNOWS
        if level.begins:
            used, passed = self._window(level, now)
            return max(part.burst - used, 0), level.begins[min(passed, len(level.begins) - 1)]
        begin = level.full - part.time_of(part.burst)  # when it would be empty
        free = (now - begin + 1) * part.rate.permits // part.rate.period_ns
        left = min(max(free, 0) + (self.due_by(now, now) if self.unit else 0), part.burst)
        return left, now if left >= part.burst else begin + part.time_of(max(free, 0) + 1)

    def available_of(self, place: int, now: int) -> int:
        """How much of that dimension lies ready, as the store said last."""
        return self._standing(place, now)[0]

    def available(self, now: int) -> int:
        """The number of slots that are due."""
        return self.due_by(now, now)

    def lag(self, now: int) -> int:
        """How late (ns) the first slot in hand is."""
        return max(now - self.runs[0].due, 0) if self.runs else 0

    def bound(self, window: int, largest: int = 1) -> int | None:
        """Of all processes together: b + R (W + late) of each rate, or n for each window of the calendar that one may touch.

        If requests are for several permits, ``largest`` more; and again for each further process that makes such requests.
        """
        check_window(window, largest)
        if self.calendar is not None:
            return self.calendar.bound(window, largest)
        lates = [self.late_of((1,) * len(self.parts), place) for place in range(len(self.parts))]
        most = min(
            # A slot that a slower rate delayed may be later than those of a faster one, and there is one at a time.
            part.burst + part.rate.permits_in(window + late) + (max(lates) > late)
            for part, late in zip(self.parts, lates, strict=True)
        )
        return most + (largest if largest > 1 else 0)

    def _rested(self, now: int) -> bool:
        """Whether nothing is in hand, on its way, or to be told."""
        return self.asked_at is None and not self.outage and not self.usable(1, now) and not any(self.corrections)

    def __repr__(self) -> str:
        if self.calendar is not None:
            return f"Pool({self.calendar.described}, in_hand={self.count})"
        rates = ", ".join([f"{part.rate}" if part.burst == 1 else f"{part.rate} burst {part.burst}" for part in self.parts])
        return f"Pool({rates}, in_hand={self.count})"


def _size(permits: Permits) -> int:
    """How many permits a request is for; 1 if it is for amounts."""
    return 1 if isinstance(permits, Amounts) else permits


def _due(run: Run) -> int:
    return run.due


def _slots(amounts: Sequence[int], have: Sequence[int], need: Sequence[int]) -> int:
    """How many slots with these amounts the request needs, at least one; as many as there are if they do not help."""
    return max([ceil_div(of - own, each) for each, own, of in zip(amounts, have, need, strict=True) if each and of > own], default=MOST_NS)


def _slowest(rates: Sequence[Rate]) -> Rate:
    slowest = rates[0]
    for rate in rates[1:]:
        if rate.slower_than(slowest):
            slowest = rate
    return slowest


def check_memory(call: str, rate: Rate, burst: int) -> None:
    """Raise ValueError unless a store can count how long that burst takes to come back."""
    if burst * rate.period_ns > MOST_NS * rate.permits:
        most = MOST_NS * rate.permits // rate.period_ns
        wanted = f"a burst of at most {most}" if most else "a faster rate"
        raise ValueError(f"{call}: at {rate} a burst of {burst} takes longer than 317 years to come back. Give {wanted}.")
