"""The ledger of windows of the calendar: a number of permits in each, which a store counts by its own clock.

The wall clock of this machine decides nothing. The store says what time it is, somewhere between question and answer: a permit is
used only before the earliest instant here at which its window may end, and the next window is asked for from the latest at which it
may begin.
"""

from __future__ import annotations

from logging import getLogger
from math import ceil
from sys import maxsize
from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND
from aiorate._schedulers.amounts import count_of
from aiorate._store.asking import Asked
from aiorate._store.failures import BadAnswer
from aiorate._store.use import RecentUse
from aiorate._store.window_script import WINDOWS, WindowAnswer, WindowQuestion, read_window_answer

if TYPE_CHECKING:
    from aiorate._schedulers.quota_scheduler import QuotaScheduler
    from aiorate._store.crowd import Crowd
    from aiorate._store.immediate import Immediate
    from aiorate._store.ledger import Asking

__all__ = ["WindowLedger"]

_logger = getLogger("aiorate")
_US = 1_000  # ns
_HOUR_NS = 3_600 * NS_PER_SECOND
_RECHECK_NS, _RECHECKS = NS_PER_SECOND, 64
_LONGEST_RECHECK_NS = 60 * NS_PER_SECOND
_LONGEST_ANSWER_NS = NS_PER_SECOND
_LATEST = 10**19  # ns of Unix time: the year 2286
_ENDS = 5  # windows that a question names: one before the present, and some after


class WindowLedger:
    """Between a `QuotaScheduler` and the script. ``lease`` and ``slack`` are in ns; the last ``slack`` of a window is not used."""

    keeps: bool = True
    __slots__ = (
        "_answer",
        "_answer_ns",
        "_asked",
        "_ends",
        "_period",
        "_received",
        "_sent_at",
        "_told",
        "_use",
        "_value",
        "lease",
        "scheduler",
        "slack",
    )

    def __init__(self, scheduler: QuotaScheduler, lease: int, slack: int) -> None:
        self.scheduler: QuotaScheduler = scheduler
        self.slack: int = slack
        self.lease: int = lease
        self._asked: WindowQuestion = WindowQuestion()
        self._answer: WindowAnswer | None = None  # the last one
        self._value: str = ""  # what the store said last
        self._sent_at: int = 0  # the readings between which that was
        self._received: int = 0
        self._ends: list[int] = []  # Unix times in ns, as the last question named them
        self._period: int = 0  # for which those were computed
        self._answer_ns: int = 0
        self._use: RecentUse = RecentUse(lease)
        self._told: bool = False  # whether the log was told that calendars differ

    @property
    def limits(self) -> object:
        """The number and the calendar."""
        return self.scheduler.calendar.described

    def is_met(self, line: Crowd, now: int) -> bool:
        """Whether the store need not be asked: it had nothing left, and the window goes on."""
        return self.scheduler.nothing_until(now) is not None

    def spare(self, line: Crowd, now: int) -> bool:
        """Whether permits are in hand that nobody in line can use, and that are to go back at once."""
        first = line.first()
        return self.scheduler.ready(1, now) > 0 and (not self.lease if first is None else count_of(first[1]) > self.scheduler.ready(1, now))

    def draw(self, line: Crowd | None, immediate: Immediate, reading: int, now: int) -> WindowQuestion:
        """What to ask for now; without a line, permits in hand go back."""
        scheduler, question = self.scheduler, WindowQuestion()
        ready = scheduler.ready(1, now)
        first, waiting, at_once = 0, 0, 0
        for ticket, permits in line or ():
            if not ticket.cancelled():
                first = first or count_of(permits)
                waiting += count_of(permits)
                if ticket in immediate.waiting:
                    at_once = waiting
        expected = 0
        if self.lease and line is not None:
            expected = self._use.measure(scheduler.spent, waiting, reading)
            if not waiting:
                expected = max(expected, scheduler.refused if scheduler.asking else 0)
        if line is not None and ready and first <= ready:
            spare = max(ready - waiting - expected, 0)  # the first in line is granted just now
        else:
            spare, question.least = ready, first
        question.window, question.back = scheduler.window, scheduler.give_up(spare)
        if not scheduler.ending(now):
            question.want = max(waiting + expected - (ready - question.back), 0)
        if immediate and line is not None:
            immediate.ask(line, 0, maxsize, False)
            question.at_once = min(at_once, question.want)
        return question

    def give_up(self, asking: Asking, now: int) -> None:
        """Have all that is in hand returned."""
        asking.back += self.scheduler.give_up(self.scheduler.ready(1, now))

    def written(self, key: str, asking: Asking, reading: int) -> Asked:
        assert isinstance(asking, WindowQuestion)  # as it draws
        self._asked = asking
        asking.remembered, asking.age = self._value, (reading - self._received) / _US
        scheduler = self.scheduler
        ends = self._windows(reading)
        period = scheduler.rate.period_ns
        longest = period if period < _HOUR_NS else period + 2 * _HOUR_NS  # the most that a change of the clocks adds
        return Asked(WINDOWS, key, asking.words(scheduler.rate.permits, longest / _US, [end / _US for end in ends]))

    def _windows(self, reading: int) -> list[int]:
        """An instant before the present, and the ends of the windows after it; Unix times in ns."""
        answer, calendar = self._answer, self.scheduler.calendar
        period = self.scheduler.rate.period_ns
        # Until the store has said what time it is, the machine's clock is as good a guess as any.
        if answer is None:
            present = min(max(calendar.origin + reading, 0), _LATEST)
        else:
            present = answer.now * _US + reading - self._received
        if not self._ends or self._period != period or not self._ends[0] + period // 2 <= present < self._ends[2]:
            begin = (present - period) // _US * _US
            self._period = period
            self._ends = [begin, *calendar.edges(begin, _ENDS)]
        return self._ends

    def read(self, reply: object) -> WindowAnswer:
        answer = read_window_answer(reply)
        if answer.granted > self._asked.want:
            raise BadAnswer(f"the store assigned {answer.granted} permits where {self._asked.want} were asked for")
        self._answer = answer
        return answer

    def heard(self, sent_at: int, received: int) -> float:
        answer = self._answer
        assert answer is not None  # it was read
        self._sent_at, self._received = sent_at, received
        took = min(received - sent_at, _LONGEST_ANSWER_NS)
        self._answer_ns = (3 * self._answer_ns + took) // 4 if self._answer_ns else max(took, 1)
        if answer.granted < 0:
            self._ends = []
            self.scheduler.keep(self._asked.back, self._asked.window)
        else:
            self._value = answer.value
        return 0.0  # what nobody used in this window is still there

    def book(self, now: int) -> None:
        answer, asked, scheduler = self._answer, self._asked, self.scheduler
        assert answer is not None  # it was read
        offset = self._received - now
        ahead = [(end // _US - answer.now) * _US for end in self._ends if end > answer.ends * _US]
        rest = (answer.ends - answer.now) * _US
        closes, opens = self._sent_at - offset + rest - self.slack, now + rest
        left = scheduler.rate.permits - answer.taken
        nothing_until = None
        if answer.settling:
            nothing_until = min(now + ceil(answer.settling * _US), opens)
        elif asked.want > answer.granted and (left <= 0 or not answer.granted):
            # Permits may come back meanwhile, and somebody waits for them.
            nothing_until = min(now + min(max(rest // _RECHECKS, _RECHECK_NS), _LONGEST_RECHECK_NS), opens)
        begins = [opens, *[now + after for after in ahead]]
        scheduler.book(answer.ends, answer.granted, now, closes, left, begins, nothing_until, self._answer_ns)
        scheduler.ask_below(answer.granted // 2 if self.lease and answer.granted else -1)
        self._compare(answer)

    def _compare(self, answer: WindowAnswer) -> None:
        """Tell the log if the window ends at an instant at which none does here."""
        ends = self._ends
        if not self._told and ends[0] <= answer.ends * _US <= ends[-1] and answer.ends * _US not in ends[1:]:
            self._told = True
            _logger.warning(
                "a RedisLimiter of %s shares windows that end otherwise, at %d s of Unix time: another process of this name has another"
                " period, time zone or tzdata. The windows of whichever process asks first hold. Give all the same.",
                self.scheduler.calendar.described,
                answer.ends // 1_000_000,
            )
