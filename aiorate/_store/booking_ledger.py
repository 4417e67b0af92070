"""The ledger of bookings: a budget of several dimensions, which a store books for each process.

Knows nothing of commands or outages. Permits that came back go with the next question, or soon where none is expected.
"""

from __future__ import annotations

import os
from itertools import islice
from math import ceil
from random import getrandbits
from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND
from aiorate._schedulers.amounts import Amounts
from aiorate._store.asking import Asked
from aiorate._store.booking_script import BOOKINGS, MOST_NUMBERS, BookingQuestion, read_booking_answer
from aiorate._store.crowd import Crowd
from aiorate._store.demand import FairShare
from aiorate._store.exchange import NO_MEMORY, Memory

if TYPE_CHECKING:
    from aiorate._loops.clock import Handle
    from aiorate._schedulers.bookings import Bookings
    from aiorate._store.booking_script import BookingAnswer, Limits
    from aiorate._store.immediate import Immediate
    from aiorate._store.ledger import Asking
    from aiorate._store.place import Place, Timers
    from aiorate._tree.node import Node

__all__ = ["BookingLedger"]

_US = 1_000  # ns
_MS = 1_000_000  # ns
_MANY = 5  # requests in line for which bookings are made far ahead; fewer cost a call each
_CHUNK = 12  # average requests, whose time is the horizon if the one given is longer
_SHORTEST_US = 20_000  # of a horizon
_REACH_US = 50_000  # of a line of few: a booking is firm, and what comes back until then is of no use to it
_SOONEST, _LATEST = 20 * _MS, 250 * _MS  # after which to ask again for a request that was not booked
_MOST = 256  # requests in one question
_RETURNS = 12  # the store hears of this many at once, whatever is in hand
_FLUSH_SECONDS = 0.05  # after which the store hears what came back, if no question is to be expected
_LONGEST_ANSWER_NS = NS_PER_SECOND  # a slower round trip counts as this


class BookingLedger:
    """Between `Bookings` and the script that books. ``horizon`` and ``slack`` are in ns.

    With a long line, a process asks when its last booking is nearly due, and gets several. With a short one it books only what is due
    soon, and asks again and again how long the first has to wait.
    """

    keeps: bool = False
    lease: int = 0
    __slots__ = (
        "_ahead_us",
        "_answer",
        "_answer_ns",
        "_asked",
        "_client",
        "_closed",
        "_horizon_us",
        "_memory",
        "_node",
        "_place",
        "_returns",
        "_share",
        "_timer",
        "_told",
        "_unused",
        "limits",
        "scheduler",
        "slack",
        "unused",
    )

    def __init__(self, bookings: Bookings, limits: Limits, node: Node, place: Place, horizon: int, slack: int) -> None:
        self.scheduler: Bookings = bookings
        self.limits: Limits = limits
        self.slack: int = slack
        self.unused: list[float] = []
        """How many permits of each dimension went by unused between the last two answers."""
        self._horizon_us: float = horizon / _US
        self._ahead_us: float = 0.0  # the horizon of the latest question
        self._answer_ns: int = 0  # how long an answer takes, smoothed; 0: none was measured
        self._share: FairShare = FairShare()
        self._memory: Memory = NO_MEMORY
        self._unused: list[float] | None = None  # by the store's count
        self._asked: BookingQuestion = BookingQuestion()
        self._answer: BookingAnswer | None = None
        self._told: tuple[int, ...] | None = None  # the corrections that are under way
        self._returns: int = 0  # since a question told of them
        self._client: tuple[int, int] = (0, 0)  # a number of this process, and the process
        self._node: Node = node
        self._place: Place = place
        self._closed: bool = False
        self._timer: tuple[Timers, Handle] | None = None
        bookings.corrected = self._on_correction

    def is_met(self, line: Crowd, now: int) -> bool:
        """Whether the bookings in hand suffice, so that the store need not be asked yet."""
        bookings = self.scheduler
        return not bookings.lacks and len(line) <= bookings.in_hand + 1  # the first is being granted

    def spare(self, line: Crowd, now: int) -> bool:
        """No: bookings lapse by themselves, and go back then."""
        return False

    def draw(self, line: Crowd | None, immediate: Immediate, reading: int, now: int) -> BookingQuestion:
        """What to ask for now, on behalf of that line; without one, only how things stand."""
        bookings = self.scheduler
        if self._told is not None:  # and never answered: what came back may have arrived, and a debt may not
            bookings.corrections = [own + max(its, 0) for own, its in zip(bookings.corrections, self._told, strict=True)]
            self._told = None
        bookings.lapse(now)
        question = BookingQuestion(horizon=self._ahead_us or self._horizon([]), client=self._number())
        if line is not None:
            self._ask_for(question, line, immediate, reading, now)
        question.back = bookings.returnable(now) - bookings.in_hand
        question.oldest = 0.0 if bookings.oldest is None else max(now - bookings.oldest, 0) / _US
        return question

    def give_up(self, asking: Asking, now: int) -> None:
        """Have the question return all bookings in hand."""
        self.scheduler.give_up()
        asking.back = self.scheduler.returnable(now)

    def written(self, key: str, asking: Asking, reading: int) -> Asked:
        assert isinstance(asking, BookingQuestion)  # as it draws
        bookings, charge = self.scheduler, asking.charge
        more = charge.of if isinstance(charge, Amounts) else (charge,) * len(bookings.rates)
        asking.corrections = tuple([own + its for own, its in zip(bookings.corrections, more, strict=True)])
        asking.age, asking.remembered = (reading - self._memory.at) / _US, self._memory.value
        asked = Asked(BOOKINGS, key, asking.words(self.limits))
        self._asked, self._told, self._returns = asking, tuple(bookings.corrections), 0
        bookings.corrections, bookings.oldest = [0] * len(bookings.rates), None
        return asked

    def read(self, reply: object) -> BookingAnswer:
        self._answer = answer = read_booking_answer(reply, self.limits, self._asked)
        return answer

    def heard(self, sent_at: int, received: int) -> float:
        answer, before = self._answer, self._unused
        assert answer is not None  # it was read
        took = min(received - sent_at, _LONGEST_ANSWER_NS)
        self._answer_ns = (3 * self._answer_ns + took) // 4 if self._answer_ns else max(took, 1)
        self.unused = [now - (now if before is None else its) for now, its in zip(answer.unused, before or answer.unused, strict=True)]
        self._unused, self._told = answer.unused, None
        self._memory = Memory(answer.value, received)
        return 0.0

    def book(self, now: int) -> None:
        """Book what the answer assigned."""
        answer, asked, bookings = self._answer, self._asked, self.scheduler
        assert answer is not None  # it was read
        look_at: int | None = None
        if answer.wait and asked.within < 0:
            look_at = now + min(max(ceil(answer.wait * _US) // 4, _SOONEST), _LATEST)
        starts = [now + ceil(us * _US) for us in answer.starts]
        if starts:
            self._share.answered(answer.entitled, starts[-1] - now, len(starts), answer.cost)
        bookings.answer_ns = self._answer_ns
        bookings.ask_before = max(2 * self._answer_ns + self.slack, ceil(asked.horizon * _US) // 4)
        bookings.levels.follow([now + ceil(us * _US) for us in answer.full])
        bookings.book(starts, asked.requests[: len(starts)], answer.places, look_at)
        if starts:
            self._flush_later()

    def close(self) -> None:
        """Set no timer from now on."""
        timer, self._timer, self._closed = self._timer, None, True
        if timer is not None:
            timer[1].cancel()

    def _ask_for(self, question: BookingQuestion, line: Crowd, immediate: Immediate, reading: int, now: int) -> None:
        """Ask for the requests in line that have no booking, unless those in hand last for a while."""
        bookings = self.scheduler
        most = max(min(_MOST, MOST_NUMBERS // len(bookings.rates)), 1)
        waiting = [(ticket, permits) for ticket, permits in islice(line, most) if not ticket.cancelled()]
        lacking = bookings.uncovered([permits for _, permits in waiting], now)
        last = bookings.last_start()
        if not lacking or (last is not None and last - now > bookings.ask_before and len(lacking) < len(waiting)):
            return
        question.requests, question.want = lacking, len(lacking)
        question.begin = 0.0 if last is None else max(last - now, 0) / _US
        question.horizon = self._ahead_us = self._horizon(lacking)
        question.reach = question.horizon if len(waiting) >= _MANY else min(_REACH_US, question.horizon)
        question.served = self._share.asked(len(lacking), reading, ceil(question.horizon * _US))
        if immediate and all(ticket in immediate.waiting for ticket, _ in waiting):
            question.within = self.slack / _US
        for ticket, _ in waiting:
            if ticket in immediate.waiting:
                immediate.waiting[ticket].asked = True

    def _horizon(self, requests: list[tuple[int, ...]]) -> float:
        """How far ahead all processes together aim to book, in us: the time of a few requests, and of one round trip at least."""
        costs = [self.limits.cost(amounts) for amounts in requests]
        few = _CHUNK * sum(costs) / len(costs) if costs else 0.0
        return max(min(self._horizon_us, max(few, _SHORTEST_US)), self._answer_ns / _US)

    def _number(self) -> int:
        """The number of this client, which a child process does not keep."""
        pid = os.getpid()
        if self._client[1] != pid:
            self._client, self._timer = (getrandbits(48) + 1, pid), None
        return self._client[0]

    def _on_correction(self) -> None:
        """Have the store hear of it within a short time, unless a question is to be expected soon."""
        self._returns += 1
        if self._returns == _RETURNS and self.scheduler.link is not None and not self.scheduler.asking:
            self.scheduler.link.charged(0)
        else:
            self._flush_later()

    def _flush_later(self) -> None:
        timers = self._place.timers
        if timers is not None and not self._closed and (self._timer is None or self._timer[0] is not timers):
            self._timer = timers, timers.call_later(_FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._timer = None
        bookings, node = self.scheduler, self._node
        if Crowd(node):
            bookings.lapse(node.timeline.now())
        else:
            bookings.give_up()  # those for whom they were have left
        if bookings.in_hand or bookings.asking:  # the next question comes when they are used
            self._flush_later()
        elif any(bookings.corrections) and bookings.link is not None:
            bookings.link.charged(0)
