"""Booked: grants from time slots that somebody else assigned, a store that many processes share.

The slots come by `Booked.book`, at any time, and that more are wanted is told by one callback. Knows nothing of stores, loops or
waiters. A slot that nobody used lapses, so that the processes together never exceed their rate by more than so many slots.
"""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from typing import TYPE_CHECKING, Protocol

from aiorate.rate import Rate, ceil_div
from aiorate.schedulers.interface import NOBODY_KNOWS, Scheduler, check_ask, check_give_back, check_permits, check_window
from aiorate.schedulers.next_free import NextFree
from aiorate.schedulers.slot_run import SlotRun

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MOST_NS", "Beyond", "Booked", "Desk", "check_memory"]

_ONE = 1
_FIRST_ANSWER_NS = 1_000_000  # until one was measured
_LOOK_AGAIN_NS = 20_000_000
MOST_NS = 10**19  # 317 years: a store counts no further


class Desk(Protocol):
    """Who talks to the store, and is told what concerns it."""

    def wanted(self, now: int) -> bool:
        """Slots may be wanted at that instant. True if they are on their way then."""
        ...

    def charged(self, permits: int) -> None:
        """So many permits were used without slots."""
        ...


class Beyond(Protocol):
    """What decides about requests for which there are not enough slots in hand, while the store cannot be asked."""

    def at(self, permits: int, now: int) -> int:
        """When they are due. Raises an error for who is refused for good."""
        ...

    def spend(self, permits: int, now: int) -> None:
        """Take them."""
        ...


class Booked(Scheduler):
    """Slots in hand, in order, and an estimate of when more are due.

    ``rates`` and ``bursts`` are those by which the store assigns. A slot lapses ``lapse`` ns after its time, or half an interval if
    that is longer, unless the first in line gathers slots for several permits, or holds them until another limit lets it pass
    (`patient`). `Desk.wanted` is called when slots
    may be wanted. Once it has returned True they are on their way, and it is not called again until `book` or `unanswered` is.

    A copy is a rehearsal: it assumes that all slots after those in hand are its own, and calls nobody.
    """

    __slots__ = (
        "_asked_at",
        "_bursts",
        "_first",
        "_follow",
        "_lapse",
        "_low",
        "_others",
        "_rates",
        "_rehearsal",
        "_runs",
        "_taken",
        "_wait",
        "beyond",
        "desk",
        "in_hand",
        "lapsed",
        "patient",
        "rate",
        "refused",
        "spent",
    )
    rate: Rate
    books_since: bool = False

    def __init__(self, rates: Sequence[Rate], bursts: Sequence[int], lapse: int) -> None:
        self._rates: tuple[Rate, ...] = tuple(rates)
        self._bursts: list[int] = list(bursts)
        self._lapse: int = lapse
        self._follow: NextFree = NextFree(rates, bursts)  # what the store said is free after all that it has assigned
        self._first: SlotRun | None = None  # the run to take from
        self._runs: deque[SlotRun] = deque()  # those after it
        # The latest grants: their instants, their first slots, how many, and the runs these are of. A tuple, and no run of its own:
        # where 50 tasks ask without a pause, grants that may come back are most of them, and this is 3 times as fast.
        self._taken: deque[tuple[int, int, int, SlotRun]] = deque()
        self._low: int = -1  # tell that slots are wanted when a grant leaves no more; -1: only a refusal does
        self._asked_at: int | None = None  # since when slots are wanted
        self._wait: int = _FIRST_ANSWER_NS
        self._rehearsal: bool = False
        self.receipts: bool = True
        self.rate = _slowest(self._rates)
        self.in_hand: int = 0
        """Slots, those included that have lapsed."""
        self.lapsed: int = 0
        """Nanoseconds of schedule that nobody used in time."""
        self.spent: int = 0
        """Permits granted so far."""
        self.refused: int = 0
        """The permits of the last request for which there were not enough slots."""
        self.patient: bool = False
        """Whether the first in line keeps its slots while another limit is asked after this one."""
        self.beyond: Beyond | None = None
        """What decides about requests for which there are not enough slots; None: they wait for the store."""
        self.desk: Desk | None = None

    # What the store does.

    def book(
        self, starts: Sequence[int], count: int, now: int, nexts: Sequence[int], wait: int, rates: Sequence[Rate] | None = None
    ) -> None:
        """The store assigned so many slots: those of rate j begin at ``starts[j]`` (ns), and a slot is when all rates allow it.

        ``nexts`` are the next free slots of the rates after them, and ``wait`` is how long (ns) an answer takes. ``rates`` are those
        for which it was asked, where they have changed since.
        """
        if count:
            for run in _runs_of(starts, rates or self._rates, count, now, self._lapse):
                if self._first is None:
                    self._first = run
                else:
                    self._runs.append(run)
            self.in_hand += count
        self._follow.follow(nexts)
        self._wait = wait
        self._asked_at = None

    def unanswered(self) -> None:
        """Nothing is on its way: tell again when slots are wanted."""
        self._asked_at = None

    def want(self, now: int) -> None:
        """Tell that slots are wanted, unless they are on their way."""
        self._tell(now)

    def low(self, count: int) -> None:
        """Tell that slots are wanted as soon as a grant leaves no more than so many; -1: only when a request is refused."""
        self._low = count

    def last_run(self, now: int) -> int:
        """How many slots of the latest run are still ahead."""
        run = self._runs[-1] if self._runs else self._first
        return 0 if run is None else run.left - run.before(now)

    def clear(self) -> None:
        """Give all slots in hand up: they are somebody else's."""
        self._first = None
        self._runs.clear()
        self._taken.clear()
        self.in_hand = 0

    def ready(self, permits: int, now: int) -> int:
        """How many slots in hand are of use while the first in line asks for so many permits."""
        return self.in_hand - self._lapsed(permits, now)

    def ahead(self, now: int) -> int:
        """How many slots in hand are not due yet."""
        return self.in_hand - sum([run.before(now + 1) for run in self._all()])

    # A request.

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if permits is _ONE and type(now) is int:
            run = self._first
            if run is not None:
                at = -(-run.next // run.unit)
                if at < run.floor:
                    at = run.floor
                if at <= now <= at + run.lapse:
                    if since is not None or self.receipts:  # out of the line: it may come back
                        self._note(run.next, 1, run, now)
                    run.next += run.step
                    run.left -= 1
                    self.in_hand -= 1
                    self.spent += 1
                    if not run.left:
                        self._first = self._runs.popleft() if self._runs else None
                    if self.in_hand <= self._low:
                        self._tell(now)
                    return at
            elif not self._rehearsal and self.beyond is None:
                self._tell(now, 1)
                return self._look_again_at(now)
        check_ask("take()", permits, now, since)
        at, missing = self._due(permits, now)
        if missing or at > now:
            self._tell(now, permits)
        if missing:
            if self.beyond is not None:
                at = max(at, self.beyond.at(missing, now))
            elif self._rehearsal:
                at = max(at, self._follow.at(missing, now))
            else:
                return max(at, self._look_again_at(now))
        if at <= now:
            self._grant(permits, missing, now)
        return at

    def peek(self, permits: int, now: int) -> int:
        check_ask("peek()", permits, now)
        at, missing = self._due(permits, now)
        if not missing:
            return at
        if self.patient and not self._rehearsal:  # who asks so stands in line, and asks no further before it is due
            self._tell(now, permits)
        if self.beyond is not None:
            return max(at, self.beyond.at(missing, now) if self.patient else _later(self.beyond, missing, now))
        if self._rehearsal:
            return max(at, self._follow.at(missing, now))
        return max(at, self._follow.last_slot(missing, now), now + self._wait)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Put the slots of that grant back, the latest first. Without a receipt they are lost, as where it is old."""
        check_give_back(permits, now, taken)
        if taken is None:
            return
        after: list[tuple[int, int, int, SlotRun]] = []
        while permits and self._taken and self._taken[-1][0] >= taken:
            instant, first, count, run = self._taken.pop()
            back = min(count, permits) if instant == taken else 0
            if back < count:
                after.append((instant, first, count - back, run))
            if back:
                permits -= back
                self._put_back(SlotRun(first + (count - back) * run.step, run.step, run.unit, back, run.floor, run.lapse))
        self._taken.extend(reversed(after))

    def charge(self, permits: int, now: int) -> None:
        """Have the store take so many from all processes; here they delay what is booked from now on.

        Raises ValueError for a debt of more than 317 years.
        """
        check_permits("charge()", permits)
        if permits * self.rate.period_ns > MOST_NS * self.rate.permits:
            most = MOST_NS * self.rate.permits // self.rate.period_ns
            raise ValueError(f"charge({permits}): at {self.rate} the debt would last longer than 317 years. At most {most} can be charged.")
        self._follow.spend(permits, now)
        if self.desk is not None:
            self.desk.charged(permits)

    def take_ahead(self, permits: int, now: int) -> None:
        """As one request: first the slots in hand."""
        at = max(self.peek(permits, now), now)
        if at < NOBODY_KNOWS:
            self.take(permits, at)

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate by which this process has slots assigned. Raises RuntimeError where there are several."""
        if len(self._rates) > 1:
            raise RuntimeError("set_rate(): a limiter of several rates keeps them. Make another, of the same name, with other rates.")
        check_memory("set_rate()", rate, self._bursts[0])
        self._follow.set_rate(0, rate)
        self._rates, self.rate = (rate,), rate

    def lag(self, now: int) -> int:
        """How late the first slot in hand is."""
        at, missing = self._due(1, now)
        return 0 if missing else max(now - at, 0)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """b + R (W + lapse), of all processes together, where half an interval is the shortest lapse.

        If requests are for several permits, ``largest`` more; and as many again for each further process in which they are.
        """
        check_window(window, largest)
        lapses = [_lapse_of(rate, self._lapse) for rate in self._rates]
        most = min(
            # A slot that a slower rate delayed may be later than those of a faster one, and there is one at a time.
            burst + rate.permits_in(window + lapse) + (max(lapses) > lapse)
            for rate, burst, lapse in zip(self._rates, self._bursts, lapses, strict=True)
        )
        return most + (largest if largest > 1 else 0)

    def reset(self, now: int) -> None:
        """Refused: what was granted is known to the store, for all processes."""
        raise RuntimeError("reset(): the limit is shared with other processes, which remember it. Take another name.")

    def available(self, now: int) -> int:
        """The slots that are due."""
        return self.due_by(now, now)

    def due_by(self, instant: int, now: int) -> int:
        """The slots in hand that are of use now and due by that instant."""
        due = sum([run.before(instant + 1) for run in self._all()])
        return max(due - self._lapsed(1, now), 0)

    @property
    def answer_ns(self) -> int:
        """How long an answer takes, as it was told last."""
        return self._wait

    @property
    def asking(self) -> bool:
        """Whether slots are on their way."""
        return self._asked_at is not None

    def rested(self, now: int) -> bool:
        """Whether it has no slots in hand, and none are on their way."""
        return self._asked_at is None and self.beyond is None and not self.ready(1, now)

    def shift(self, ns: int) -> None:
        """The limiter's time stood still for so long, and the store's did not."""
        for run in self._all():
            run.next -= ns * run.unit
            run.floor -= ns
        self._follow.shift(ns)
        if self._asked_at is not None:
            self._asked_at -= ns

    @property
    def rates(self) -> tuple[Rate, ...]:
        """All of them, as they were given; another tuple once one is changed."""
        return self._rates

    @property
    def bursts(self) -> Sequence[int]:
        """One for each rate."""
        return self._bursts

    def __deepcopy__(self, memo: object) -> Booked:
        twin = Booked(self._rates, self._bursts, self._lapse)
        twin.clear()
        for run in self._all():
            copy = SlotRun(run.next, run.step, run.unit, run.left, run.floor, run.lapse)
            if twin._first is None:
                twin._first = copy
            else:
                twin._runs.append(copy)
        twin.in_hand, twin.patient = self.in_hand, self.patient
        twin._follow = deepcopy(self._follow)
        if self._asked_at is not None:
            twin._follow.not_before = self._asked_at + self._wait
        twin.beyond = deepcopy(self.beyond)
        twin._rehearsal = True
        return twin

    def __repr__(self) -> str:
        rates = ", ".join(
            [f"{rate}" if burst == 1 else f"{rate} burst {burst}" for rate, burst in zip(self._rates, self._bursts, strict=True)]
        )
        return f"Booked({rates}, in_hand={self.in_hand})"

    def _all(self) -> list[SlotRun]:
        return [] if self._first is None else [self._first, *self._runs]

    def _look_again_at(self, now: int) -> int:
        """When a request looks again for which there are not enough slots. If more are on their way, they tell when they are here."""
        return now + _LOOK_AGAIN_NS if self._asked_at is None else NOBODY_KNOWS

    def _tell(self, now: int, permits: int = 0) -> None:
        self.refused = permits or self.refused
        if self._asked_at is None and self.desk is not None and self.desk.wanted(now):
            self._asked_at = now

    def _lapsed(self, permits: int, now: int) -> int:
        """How many slots, the first in hand, have lapsed for such a request.

        Who gathers slots for several permits may use the latest that lapsed meanwhile, one fewer than it needs. So no more than that
        is ever granted beyond what the slots that have not lapsed allow.
        """
        first = self._first
        if first is None or first.due(0) >= now - first.lapse:
            return 0
        lapsed = sum([run.before(now - run.lapse) for run in self._all()])
        return max(lapsed - (permits if self.patient else permits - 1), 0)

    def _due(self, permits: int, now: int) -> tuple[int, int]:
        """When the slots in hand are due that serve the request, and how many are missing."""
        skip, missing = self._lapsed(permits, now), permits
        at: int | None = None
        for run in self._all():
            if skip >= run.left:
                skip -= run.left
                continue
            used = min(missing, run.left - skip)
            due = run.due(skip + used - 1)
            at = due if at is None or due > at else at
            missing -= used
            skip = 0
            if not missing:
                break
        return now if at is None else at, missing

    def _grant(self, permits: int, missing: int, now: int) -> None:
        skip, wanted = self._lapsed(permits, now), permits - missing
        self.spent += permits
        while (run := self._first) is not None and (skip or wanted):
            if skip:
                gone = run.split(min(skip, run.left))
                skip -= gone.left
                self.in_hand -= gone.left
                self.lapsed += gone.left * run.step // run.unit
            if run.left and wanted:
                first = run.next
                used = run.split(min(wanted, run.left)).left
                self._note(first, used, run, now)
                wanted -= used
                self.in_hand -= used
            if not run.left:
                self._first = self._runs.popleft() if self._runs else None
        if missing and self.beyond is not None:
            self.beyond.spend(missing, now)
        elif missing:
            self._follow.spend(missing, now)
        if self.in_hand <= self._low:
            self._tell(now)

    def _note(self, first: int, count: int, run: SlotRun, now: int) -> None:
        """So many slots of the run are granted, and may come back."""
        if self._rehearsal:
            return
        taken = self._taken
        while taken and taken[0][0] < now - taken[0][3].lapse:  # their slots have lapsed
            taken.popleft()
        taken.append((now, first, count, run))

    def _put_back(self, back: SlotRun) -> None:
        """In front of all that are due later."""
        runs, due = self._all(), back.due(back.left - 1)
        self.in_hand += back.left
        place = 0
        while place < len(runs) and runs[place].due(0) < due:
            place += 1
        if place < len(runs) and back.adjoins(runs[place]):
            runs[place].next, runs[place].left = back.next, runs[place].left + back.left
        else:
            runs.insert(place, back)
        self._first = runs[0]
        self._runs = deque(runs[1:])


def check_memory(call: str, rate: Rate, burst: int) -> None:
    """Raise ValueError unless a store can count how long that burst takes to come back."""
    if burst * rate.period_ns > MOST_NS * rate.permits:
        most = MOST_NS * rate.permits // rate.period_ns
        wanted = f"a burst of at most {most}" if most else "a faster rate"
        raise ValueError(f"{call}: at {rate} a burst of {burst} takes longer than 317 years to come back. Give {wanted}.")


def _lapse_of(rate: Rate, least: int) -> int:
    """How late (ns) a slot of that rate may be used. Half an interval is half a permit more: no two slots in a row are both late."""
    return max(least, rate.period_ns // (2 * rate.permits))


def _runs_of(starts: Sequence[int], rates: Sequence[Rate], count: int, floor: int, lapse: int) -> list[SlotRun]:
    """The slots at the latest of ``starts[j] + i * interval[j]``, as runs at equal distances.

    The slower a rate, the later it is the one that decides, and once it does no faster one does again.
    """
    if len(rates) == 1:
        unit = rates[0].permits
        return [SlotRun(starts[0] * unit, rates[0].period_ns, unit, count, floor, _lapse_of(rates[0], lapse))]
    runs: list[SlotRun] = []
    done = 0
    while done < count:
        slots = [ceil_div(start * rate.permits + done * rate.period_ns, rate.permits) for start, rate in zip(starts, rates, strict=True)]
        latest = max(slots)
        ruling = max([j for j, slot in enumerate(slots) if slot == latest], key=lambda j: ceil_div(rates[j].period_ns, rates[j].permits))
        rate, start, left = rates[ruling], starts[ruling], count - done
        for j, other in enumerate(rates):
            # The first index at which the slower one is later: start + i * interval > own start + i * own interval.
            gain = other.period_ns * rate.permits - rate.period_ns * other.permits
            if gain > 0:
                index = (start - starts[j]) * rate.permits * other.permits // gain + 1
                left = min(left, max(index - done, 1))
        runs.append(
            SlotRun(start * rate.permits + done * rate.period_ns, rate.period_ns, rate.permits, left, floor, _lapse_of(rate, lapse))
        )
        done += left
    return runs


def _slowest(rates: Sequence[Rate]) -> Rate:
    slowest = rates[0]
    for rate in rates[1:]:
        if rate.slower_than(slowest):
            slowest = rate
    return slowest


def _later(beyond: Beyond, permits: int, now: int) -> int:
    """When they are due; where requests are refused for good, nobody can say."""
    try:
        return beyond.at(permits, now)
    except ConnectionError:
        return NOBODY_KNOWS
