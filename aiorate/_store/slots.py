"""The ledger of time slots: rates and buckets, which a store paces."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from aiorate._store.asking import Asked
from aiorate._store.exchange import NO_MEMORY, Memory
from aiorate._store.failures import BadAnswer
from aiorate._store.script import SLOTS, Question, limits_of, read_answer

if TYPE_CHECKING:
    from aiorate._rate import Rate
    from aiorate._schedulers.slot_scheduler import SlotScheduler
    from aiorate._store.crowd import Crowd
    from aiorate._store.demand import Demand
    from aiorate._store.immediate import Immediate
    from aiorate._store.ledger import Asking
    from aiorate._store.script import Answer

__all__ = ["SlotLedger"]

_US = 1_000  # ns


class SlotLedger:
    """Between a `SlotScheduler` and the script that assigns slots. `Demand` says how many are lacking."""

    keeps: bool = False
    __slots__ = ("_answer", "_asked", "_demand", "_limits", "_memory", "_rates", "lease", "scheduler", "slack")

    def __init__(self, scheduler: SlotScheduler, demand: Demand) -> None:
        self.scheduler: SlotScheduler = scheduler
        self.slack: int = demand.slack
        self.lease: int = demand.lease
        self._demand: Demand = demand
        self._memory: Memory = NO_MEMORY
        self._limits: tuple[object, bytes] = (None, b"")  # for those rates
        self._asked: Question = Question()
        self._rates: tuple[Rate, ...] = scheduler.rates  # for which it was asked
        self._answer: Answer | None = None

    @property
    def limits(self) -> bytes:
        """Interval and tolerance of each rate, for the script."""
        scheduler = self.scheduler
        if self._limits[0] is not scheduler.rates:
            self._limits = scheduler.rates, limits_of(scheduler.rates, scheduler.bursts)
        return self._limits[1]

    def is_met(self, line: Crowd, now: int) -> bool:
        """Whether the slots in hand suffice, so that the store need not be asked yet."""
        return self._demand.is_met(line, now)

    def spare(self, line: Crowd, now: int) -> bool:
        """No: slots in hand lapse by themselves, and only the last ones could go back."""
        return False

    def draw(self, line: Crowd | None, immediate: Immediate, reading: int, now: int) -> Question:
        """What to ask for now; without a line, only how things stand."""
        if line is None:
            return Question(horizon=self._demand.horizon / _US)
        return self._demand.question(line, immediate, reading, now)

    def give_up(self, asking: Asking, now: int) -> None:
        """Have the last slots returned, unless the store has assigned later ones since."""
        if self._memory.value == self._memory.with_slots:
            asking.back = self.scheduler.last_run(now)

    def written(self, key: str, asking: Asking, reading: int) -> Asked:
        assert isinstance(asking, Question)  # as it draws
        asking.age, asking.remembered = (reading - self._memory.at) / _US, self._memory.value
        self._asked, self._rates = asking, self.scheduler.rates
        return Asked(SLOTS, key, asking.words(self.limits))

    def read(self, reply: object) -> Answer:
        self._answer = answer = _checked(read_answer(reply, len(self._rates)), self._asked)
        return answer

    def heard(self, sent_at: int, received: int) -> float:
        answer, memory = self._answer, self._memory
        assert answer is not None  # it was read
        self._demand.measure(received - sent_at)
        self._memory = Memory(answer.value, received, answer.unused, answer.value if answer.granted else memory.with_slots)
        return answer.unused - memory.unused

    def book(self, now: int) -> None:
        answer = self._answer
        assert answer is not None  # it was read
        if answer.granted:
            self._demand.answered(answer)
        starts, nexts = _instants(answer.starts, now), _instants(answer.nexts, now)
        self.scheduler.book(starts, answer.granted, now, nexts, self._demand.answer_ns, self._rates)


def _checked(answer: Answer, question: Question) -> Answer:
    """Raises `BadAnswer` for a number of slots that the script never assigns."""
    most = 0 if answer.paused else question.want
    if not (min(most, 1) if question.within < 0 else 0) <= answer.granted <= most:
        raise BadAnswer(f"the store assigned {answer.granted} slots where {question.want} were asked for")
    return answer


def _instants(durations: list[float], now: int) -> list[int]:
    """The instants that many us from now, rounded up: no slot is early."""
    return [now + ceil(us * _US) for us in durations]
