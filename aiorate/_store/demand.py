"""How many slots a limiter lacks: for the requests in line and, with a lease, for those to come; and its fair share of them.

Knows nothing of loops, commands or outages.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND
from aiorate._schedulers.amounts import count_of
from aiorate._store.script import Question
from aiorate._store.use import RecentUse

if TYPE_CHECKING:
    from aiorate._schedulers.slot_scheduler import SlotScheduler
    from aiorate._store.crowd import Crowd
    from aiorate._store.immediate import Immediate
    from aiorate._store.script import Answer

__all__ = ["Demand", "FairShare"]

_LONGEST_ANSWER_NS = NS_PER_SECOND  # a slower round trip counts as this
_US = 1_000  # ns
_CYCLES = 4  # a process that has not asked in this many cycles counts as new
_PORTION = 500  # slots asked for at once, if a horizon has fewer: the loop wakes as many waiters before slots lapse


class FairShare:
    """How much of the rate this process has had, by the store's count of what each busy process was entitled to.

    The store moves one count, the faster the less is booked ahead, and assigns a process what the count has gained since that process
    was served. So shares are equal whatever a round trip takes. Times are readings and durations in ns.
    """

    __slots__ = ("_asked_at", "_lead", "_served", "_want")

    def __init__(self) -> None:
        self._asked_at: int | None = None  # when slots were asked for last
        self._lead: int = 0  # how far ahead the latest slots were
        self._served: float = -1  # us; -1: the process is new
        self._want: int = 0

    def asked(self, want: int, reading: int, cycle: int) -> float:
        """The process asks for ``want`` slots. Returns what to tell the store, in us.

        ``cycle`` is how long it takes at least until it asks again. A part that a process does not claim in several cycles goes to the
        others.
        """
        if want:
            if self._asked_at is None or reading - self._asked_at > _CYCLES * (cycle + self._lead):
                self._served = -1
            self._asked_at, self._want = reading, want
        return self._served

    def answered(self, entitled: float, lead: int, granted: int, cost: float) -> None:
        """The store has assigned ``granted`` slots, which took ``cost`` us of the time ahead. The latest are ``lead`` ns ahead."""
        self._lead = max(lead, 0)
        served = self._served + cost
        # A process cannot save up a part that it does not want. One slot is assigned to a process that is entitled to less.
        self._served = entitled if self._served < 0 or granted >= self._want else min(served, entitled)


class Demand:
    """What one limiter wants of the store. ``lease``, ``horizon`` and ``slack`` are in ns.

    Slots are wanted for the requests in line and, with a lease, for the use expected within it, if that goes on as it did; but only
    once half of the slots that came last are gone.
    """

    __slots__ = ("_came", "_horizon", "_scheduler", "_share", "_then", "_use", "answer_ns", "lease", "slack")

    def __init__(self, scheduler: SlotScheduler, lease: int, horizon: int, slack: int) -> None:
        self._scheduler: SlotScheduler = scheduler
        self._horizon: int = max(horizon, lease)
        self.slack: int = slack
        self._share: FairShare = FairShare()
        self._came: int = 0  # how many slots came last
        self._use: RecentUse = RecentUse(lease)
        self._then: tuple[int, int] = (0, 0)  # permits waited for and permits spent, when slots were asked for last
        self.answer_ns: int = 0
        """How long an answer of the store takes, smoothed; 0: none was measured."""
        self.lease: int = lease

    @property
    def horizon(self) -> int:
        """How far ahead all processes together aim to book, in ns: one round trip at least, or a store far away has no slots ready."""
        return max(self._horizon, self.answer_ns)

    def measure(self, ns: int) -> None:
        """An answer took ``ns``."""
        ns = min(ns, _LONGEST_ANSWER_NS)
        self.answer_ns = (3 * self.answer_ns + ns) // 4 if self.answer_ns else max(ns, 1)

    def answered(self, answer: Answer) -> None:
        """The store assigned slots."""
        self._came = answer.granted
        rate = self._scheduler.rate  # the slowest, by which they count
        cost = answer.granted * rate.period_ns / (rate.permits * _US)
        self._share.answered(answer.entitled, ceil(max(answer.starts) * _US), answer.granted, cost)
        if self.lease:
            self._scheduler.ask_below(self._came // 2)

    def is_met(self, line: Crowd, now: int) -> bool:
        """Whether the slots in hand suffice, so that the store need not be asked yet."""
        if not self._scheduler.in_hand:
            return False
        first = line.first()
        return self._enough(1 if first is None else count_of(first[1]), now)

    def _enough(self, first: int, now: int) -> bool:
        """Whether more than half of the slots that came last are left, and some last until others could be here.

        Slots that the first in line gathers, for ``first`` permits, do not count as left.
        """
        scheduler = self._scheduler
        ready = scheduler.ready(first, now)
        enough = 2 * (ready if ready >= first else scheduler.ahead(now)) > self._came
        return enough and scheduler.ahead(now + self.answer_ns) > 0

    def question(self, line: Crowd, immediate: Immediate, reading: int, now: int) -> Question:
        """What to ask for now."""
        scheduler, question = self._scheduler, Question(horizon=self.horizon / _US)
        first, waiting, ready = 0, 0, 0
        for ticket, permits in line:
            if not ticket.cancelled():
                first = first or count_of(permits)
                waiting += count_of(permits)
        if scheduler.in_hand:
            first = first or 1
            if self._enough(first, now):
                return question
            ready = scheduler.ready(first, now)
        expected = 0
        if self.lease:
            expected = min(self._use.measure(scheduler.spent, first, reading), scheduler.rate.permits_in(self.lease))
            if not waiting:  # a request was refused and does not wait
                expected = max(expected, scheduler.refused)
        at_once = immediate.ask(line, ready, ready + self._most(first), not expected) if immediate else 0
        if at_once:
            question.within, question.unit, question.have = self.slack / _US, immediate.unit, immediate.have
            question.want = max(at_once - ready, 0)
        else:
            waited, spent = self._then
            if ready and waiting >= waited and scheduler.spent > spent:
                # Grants since the last question did not make the line shorter. So they will not until the answer is here.
                expected = max(expected, min(ready - scheduler.ahead(now + self.answer_ns), waiting))
            missing = waiting + expected - ready
            if missing > 0:
                question.want = missing if missing <= _PORTION else min(missing, self._most(first))
                self._then = waiting, scheduler.spent
        question.served = self._share.asked(question.want, reading, self.horizon)
        return question

    def _most(self, first: int) -> int:
        """How many slots to ask for at once: of a burst, as many as the loop wakes in time. The rest is asked for next."""
        return max(_PORTION, first, *[rate.permits_in(self.horizon) for rate in self._scheduler.rates])
