"""The laws that every strategy of aiorate keeps, on random histories: those of `check_scheduler`, and further ones."""

from __future__ import annotations

from copy import deepcopy
from fractions import Fraction
from math import gcd
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from aiorate._meter import FAR
from aiorate._rate import NS_PER_SECOND, Rate
from aiorate.testing import check_scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from aiorate import Scheduler


DAY = 86_400 * NS_PER_SECOND


class Step(NamedTuple):
    """Time passes, then something is done with some permits. Size 0: the most that are allowed at once, -1: one less."""

    does: str
    size: int
    quarters: int  # of the time from one permit to the next; 99: until the request is due
    ns: int


_GAPS = [*((0, ns) for ns in (0, 0, 0, 1, DAY, 365 * DAY)), (99, 0), (99, 0), (99, -1), (99, 1), *((n, 0) for n in (1, 3, 4, 5, 11, 40))]
_BACK = [(0, -1), (-1, 0), (-6, 0), (0, -DAY)]
_DOES = ["take", "take all", "take late", "give back first", "give back half", "give back last", "swap first", "refund last", "set rate"]


class History:
    """A scheduler, the calls made to it, and what it granted."""

    def __init__(self, scheduler: Scheduler, now: int = 0) -> None:
        self.scheduler, self.now, self.start = scheduler, now, now
        self.calls, self.answers = list[str](), list[int]()
        self.events, self.held = list[list[int]](), list[list[int]]()  # [instant, permits] since a change of the rate; what can come back
        self.late, self.largest = 0, 1  # since then, the longest time in line and the largest request
        self.peek(1)  # the first instant given starts the schedule

    def permits(self, size: int) -> int:
        most = self.scheduler.max_permits
        size += ((self.scheduler.bound(1) or 10) if most is None else most) if size < 1 else 0
        return max(1, size if most is None else min(size, most))

    def quarters(self, count: int) -> int:
        return count * self.scheduler.rate.period_ns // (4 * self.scheduler.rate.permits)

    def pass_time(self, step: Step, permits: int = 1) -> None:
        due = step.quarters == 99
        self.now = max(self.now, self.peek(permits) + step.ns) if due else self.now + self.quarters(step.quarters) + step.ns

    def run(self, steps: Iterable[Step]) -> History:
        for step in steps:
            self.pass_time(step, permits := self.permits(step.size))
            match step.does.split():
                case ["set", _]:
                    self.set_rate(max(1, self.scheduler.rate.permits * (3 + step.size) // 4))
                case ["take", *how]:
                    for _ in range(12 if how == ["all"] else 1):
                        taken = self.take(permits, self.now - self.quarters(3 + step.size % 4) if how == ["late"] else None)
                        permits = permits if taken else permits // 2 or 1
                case [does, *_, place] if self.held:
                    self.give_back({"first": 0, "half": len(self.held) // 2, "last": -1}[place], permits, does != "refund")
                    if does == "swap":  # another request takes them
                        self.take(permits)
        return self

    def peek(self, permits: int, now: int | None = None) -> int:
        return self._answer(f"peek({permits}, ", self.now if now is None else now, permits, self.scheduler.peek)

    def due(self, permits: int, now: int | None = None) -> int:
        return max(self.peek(permits, now), self.now if now is None else now)

    def take(self, permits: int, since: int | None = None, now: int | None = None) -> bool:
        now = self.now if now is None else now
        if self._answer(f"take({permits}, since={since}, now=", now, permits, lambda *ask: self.scheduler.take(*ask, since)) > now:
            return False
        self.late, self.largest = max(self.late, 0 if since is None else now - since), max(self.largest, permits)
        self.held.append([now, permits])
        self.events.append(self.held[-1])
        return True

    def _answer(self, call: str, now: int, permits: int, ask: Callable[[int, int], int]) -> int:
        self.calls.append(f"{call}{now})")
        answer = ask(permits, now)
        self.calls[-1] += f" -> {answer}"
        self.answers.append(answer - self.start)
        return answer

    def give_back(self, place: int, permits: int, receipt: bool = True) -> None:
        grant = self.held[place]
        permits = min(permits, grant[1])
        if permits == grant[1]:
            del self.held[place]
        self.calls.append(f"give_back({permits}, {self.now}, taken={grant[0] if receipt else None})")
        self.scheduler.give_back(permits, self.now, grant[0] if receipt else None)
        if receipt:  # then they count as never granted
            grant[1] -= permits
        else:
            self.events.append([self.now, -permits])

    def set_rate(self, permits: int) -> bool:
        """Whether the scheduler allows it."""
        rate = Rate(permits, Fraction(self.scheduler.rate.period_ns, NS_PER_SECOND))
        self.calls.append(f"set_rate({rate}, {self.now})")
        try:
            self.scheduler.set_rate(rate, self.now)
        except (ValueError, RuntimeError):
            return False
        self.events, self.late, self.largest = [], 0, 1
        return True


def same_future(one: History, other: History, then: Iterable[Step]) -> None:
    """Assert that both schedulers give the same answers from now on."""
    one.answers, other.answers = [], []
    for step in (*then, Step("take all", 1, 0, 0)):
        for history in (one, other):
            history.run([step])
            history.peek(1), history.peek(history.permits(0))
        assert one.answers == other.answers, f"one answers {one.answers[-3:]}, its twin {other.answers[-3:]}"


class Trial(NamedTuple):
    """What a law is tried on: a factory of schedulers, and two histories. Time goes back only in ``before``."""

    factory: Callable[[], Scheduler]
    before: list[Step]
    after: list[Step]
    told: list[str]

    def fresh(self, start: int = 0) -> History:
        history = History(self.factory(), start)
        self.told.clear()
        history.calls = self.told
        return history

    def begin(self) -> History:
        """A scheduler with a past."""
        return self.fresh().run(self.before)

    def forward(self) -> History:
        """One with a past in which the clock never goes back."""
        return self.fresh().run(step for step in self.before if (step.quarters, step.ns) not in _BACK)

    @property
    def steps(self) -> list[Step]:
        """At least one, whose sizes and gaps a law may use."""
        return self.after or [Step("take", 1, 0, 0), Step("take", 2, 4, 0)]

    @property
    def takes(self) -> list[Step]:
        """Steps that neither give back nor change the rate, because schedulers may forget older grants then."""
        return [step for step in self.after if step.does in ("take", "take all")]


def giving_back_later_leaves_no_trace(trial: Trial) -> None:
    """Takes of one instant that come back by receipt, in any portions and with nothing in between. Within 1 ns."""
    gave = trial.forward()
    twin, earlier = deepcopy(gave), len(gave.held)
    _take_late(gave, trial.steps)
    for step in trial.steps:
        if len(gave.held) > earlier:
            gave.give_back(earlier if step.size % 2 else -1, gave.permits(step.size))
    while len(gave.held) > earlier:
        gave.give_back(-1, gave.held[-1][1])
    for step in (*trial.after, *trial.steps):
        gave.now = twin.now = max(gave.now, twin.now) + gave.quarters(step.quarters % 7)
        for permits in {1, gave.permits(step.size), gave.permits(0)}:
            at, never = gave.due(permits), twin.due(permits)
            assert never <= at <= never + 1, f"{permits} permits are due at {at}, and at {never} without the take that came back"
        gave.now = twin.now = max(gave.due(gave.permits(step.size)), twin.due(twin.permits(step.size)))
        for history in (gave, twin):
            history.take(history.permits(step.size), history.now - history.quarters(4) if step.size % 2 else None)


def giving_back_makes_nobody_sooner(trial: Trial) -> None:
    """After any other takes, a return makes no request sooner than the earlier of: never taken, kept."""
    gave = trial.forward()
    twin, earlier = deepcopy(gave), len(gave.held)
    _take_late(gave, trial.steps)
    gave.now += 1  # which of one instant comes back makes no difference
    for step in trial.after[1:]:
        gave.pass_time(step, gave.permits(step.size))
        twin.now = gave.now
        if gave.take(permits := gave.permits(step.size)):
            gave.held.pop()
            if not twin.take(permits):
                return  # from here on the histories differ by more than the take
    kept = deepcopy(gave)
    while len(gave.held) > earlier:
        gave.give_back(-1, gave.held[-1][1])
    for permits in {1, *(gave.permits(step.size) for step in trial.steps)}:
        at, least = gave.due(permits), min(twin.due(permits, gave.now), kept.due(permits))
        assert least <= at, f"{permits} permits are due at {at}, and at {least} without the return"


def _take_late(history: History, steps: list[Step]) -> None:
    """Fall behind, take at one instant, and let time pass."""
    history.now += history.quarters(steps[0].quarters % 7 + 6 * abs(steps[-1].size))
    for step in steps[:4]:
        history.take(min(2, history.permits(step.size)), history.now - history.quarters(4) if step.size % 2 else None)
    history.now += history.quarters(steps[-1].quarters % 7)


def bound_holds(trial: Trial) -> None:
    """No window of any history holds more permits than bound() says, with permits given back in any order."""
    history = trial.fresh()
    for step in trial.before:
        if history.scheduler.books_since or step.does != "take late":
            history.run([step])
            _check_bound(history)


def _check_bound(history: History) -> None:
    instants = sorted({instant for instant, permits in history.events if permits > 0})
    for place, first in enumerate(instants):
        for last in instants[place:]:
            bound, kept = history.scheduler.bound(last - first + 1 + history.late, history.largest), 0
            for instant, permits in history.events if bound is not None else ():
                if permits < 0 or first <= instant <= last:
                    kept = max(0, kept + permits)
                    assert kept <= bound, f"{kept} permits from {first} to {last}, and bound() says {bound}"


def lateness_costs_no_rate(trial: Trial) -> None:
    """A request that is served late, but booked from the instant at which it joined the line, delays nobody."""
    late = trial.begin()
    if all(scheduler.books_since for scheduler in (late.scheduler, *late.scheduler.members)):
        late.now = max(late.now, late.due(late.permits(0)))
        late.take(late.permits(0))
        prompt, joined = deepcopy(late), late.now
        for step in trial.steps:
            permits = late.permits(step.size)
            prompt.now = max(prompt.now, prompt.due(permits))
            prompt.take(permits, joined)
            at = late.due(permits)
            assert at == max(prompt.now, late.now), f"due at {at}, and at {prompt.now} if all earlier requests are served on time"
            late.now = at + late.quarters(step.quarters % 6)
            late.take(permits, joined)


def set_rate_forgives_nothing(trial: Trial) -> None:
    """The same rate again changes nothing, and a slower rate makes nobody sooner."""
    changed = trial.forward()
    changed.pass_time(trial.steps[0])
    same, slower = deepcopy(changed), deepcopy(changed)
    permits = changed.scheduler.rate.permits
    if same.set_rate(permits) and slower.set_rate(max(1, permits // 2)):
        most = slower.scheduler.max_permits
        for step in trial.steps:
            permits = changed.permits(step.size)
            changed.now += changed.quarters(step.quarters % 7)
            at = changed.due(permits)
            assert same.due(permits, changed.now) == at, f"{permits} permits are no longer due at {at}, though the rate is the same"
            if most is None or permits <= most:
                assert slower.due(permits, changed.now) >= at, f"{permits} permits are sooner than {at}, though the rate is slower"


def what_is_available_is_there(trial: Trial) -> None:
    """The permits that available() counts are granted, then or later, in portions of any size. Counting them changes nothing."""
    past = trial.begin()
    twin, ready = deepcopy(past), past.scheduler.available(past.now)
    assert ready >= 0
    for step in trial.steps:
        if permits := min(past.permits(step.size), ready):
            past.now += step.quarters
            assert past.take(permits), f"{ready} permits were available, and {permits} of them are refused"
            ready -= permits
    counted = deepcopy(twin)
    counted.scheduler.available(counted.now)
    same_future(counted, twin, trial.after)


def charging_delays(trial: Trial) -> None:
    """A charge delays later requests as a take does where the take is due, and by no less where it is not. It makes nobody sooner."""
    past = trial.begin()
    for step in trial.steps[:3]:
        past.pass_time(step)
        permits = past.permits(step.size)
        charged, more, taken = deepcopy(past), deepcopy(past), deepcopy(past)
        charged.scheduler.charge(permits, past.now)
        more.scheduler.charge(permits + 1, past.now)
        for ask in {1, permits, past.permits(0)}:
            assert past.due(ask) <= charged.due(ask) <= more.due(ask), f"{ask} permits are sooner after a charge"
        if taken.take(permits):
            same_future(charged, taken, trial.takes)


def asking_behind_a_line_is_never_too_late(trial: Trial) -> None:
    """With permits ahead, the answer is no later than what comes of serving them one request after the other, and changes nothing."""
    past = trial.begin()
    twin, real = deepcopy(past), deepcopy(past)
    line = [real.permits(step.size) for step in trial.steps]
    for permits in line:
        real.now = real.due(permits)
        real.take(permits)
    for ask in (1, past.permits(1)):
        told = max(past.scheduler.peek(ask, past.now, sum(line)), past.now)
        assert told <= real.due(ask), f"{told} with {line} ahead, and it is due at {real.due(ask)}"
    same_future(past, twin, trial.after)


def going_back_earns_nothing(trial: Trial) -> None:
    """When the clock goes back, the same time does not count twice, and a take, at any instant, makes no later request sooner."""
    past = trial.begin()
    twin = deepcopy(past)
    for step in trial.steps:
        past.now = twin.now - abs(past.quarters(step.quarters % 7))
        past.take(past.permits(step.size))
        past.now = twin.now = twin.now + past.quarters(step.quarters % 3)
        for permits in {1, past.permits(step.size), past.permits(0)}:
            at, never = past.due(permits), twin.due(permits)
            assert at >= never, f"{permits} permits are due at {at}, and at {never} without the takes"


def shifting_changes_nothing(trial: Trial) -> None:
    """Adding a constant to all instants changes nothing else. A scheduler that follows the calendar learns it by `shift`."""
    for start in (1, DAY + 1, 10**6 * DAY + 7, -365 * DAY - 3):
        scheduler = trial.factory()
        scheduler._shift(-start)
        same_future(History(scheduler, start), trial.fresh(), trial.before)


def no_drift(trial: Trial) -> None:
    """Under load, a rate's permits take exactly its period, at the start and after a thousand million of them."""
    past = trial.fresh()
    rate, most = past.scheduler.rate, past.scheduler.max_permits
    size = rate.permits if most is None else gcd(rate.permits, most)  # requests that divide a window use it up exactly
    count = rate.permits // size
    load, jump = (1_000 * rate.permits, [10**9 * rate.permits]) if most is None else (most, [])
    dues = list[int]()  # the load uses up bursts and stores
    for permits in [load] * 8 + [size] * (count + 1) + jump + [size] * (count + 1) if count < 1_000 else ():
        past.now = past.due(permits)
        assert past.take(permits), f"due at {past.now} and still refused"
        dues.append(past.now)
    for last in (8 + count, -1) if dues else ():
        took = dues[last] - dues[last - count]
        assert took == rate.period_ns, f"{rate.permits} permits took {took} ns, and their period is {rate.period_ns} ns"


def grabbing_takes_one_permit(trial: Trial) -> None:
    """A grab of the scheduler's meter does what a take of one permit does, or nothing."""
    grabbed = trial.begin()
    twin = deepcopy(grabbed)
    for step in trial.steps:
        grabbed.pass_time(step)
        twin.pass_time(step)
        meter, taken = grabbed.scheduler._meter, False
        if meter is not None:
            meter.read, meter.until = (lambda: grabbed.now), FAR
            taken = meter.grab()
            meter.until = 0
        assert (taken or grabbed.take(1)) == twin.take(1), "take() does not do what the meter does"
    same_future(grabbed, twin, trial.takes)


LAWS: tuple[Callable[[Trial], None], ...] = (
    giving_back_later_leaves_no_trace,
    giving_back_makes_nobody_sooner,
    bound_holds,
    lateness_costs_no_rate,
    what_is_available_is_there,
    charging_delays,
    set_rate_forgives_nothing,
    asking_behind_a_line_is_never_too_late,
    going_back_earns_nothing,
    shifting_changes_nothing,
    no_drift,
    grabbing_takes_one_permit,
)


def check(factory: Callable[[], Scheduler], examples: int, without: Collection[str] = ()) -> None:
    """Try all laws but some on that many histories each."""
    check_scheduler(factory, examples=examples)
    for law in LAWS:
        if law.__name__ not in without:
            run_law(law, factory, examples)


def run_law(law: Callable[[Trial], None], factory: Callable[[], Scheduler], examples: int) -> None:
    """Try a law on that many histories, the same in each run. Raises AssertionError with the law and the history that breaks it."""
    for seed in range(examples):
        dice, told = Random(seed), list[str]()
        before, after = ([_step(dice, back) for _ in range(dice.choice((3, 8, 20)))] for back in (_BACK, []))
        try:
            law(Trial(factory, before, after, told))
        except Exception as error:
            error.add_note(f"The law: {law.__name__}. {law.__doc__}\nThe history, of seed {seed}:\n  " + "\n  ".join(told[-60:]))
            raise


def _step(dice: Random, back: list[tuple[int, int]]) -> Step:
    return Step(dice.choice(_DOES), dice.choice((1, 2, 3, 0, -1, 7)), *dice.choice(_GAPS + back))
