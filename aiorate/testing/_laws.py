"""`check_scheduler`: the laws of schedulers, tried on random histories. Uses only the Scheduler interface."""

from __future__ import annotations

from copy import deepcopy
from math import gcd
from random import Random
from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._schedulers.interface import Scheduler


DAY = 86_400 * NS_PER_SECOND


def check_scheduler(factory: Callable[[], Scheduler], *, examples: int = 100) -> None:
    """Try the laws of schedulers on those that the factory makes: ``check_scheduler(lambda: TokenBucket("7/s", burst=3))``.

    ``examples`` is the number of histories for each law; they are the same in each run. The schedule of a new scheduler must run from the
    first instant that it is given. Raises AssertionError, which names the law that is broken and shows the calls that break it.
    """
    for law in LAWS:
        for example in range(examples):
            dice, past = Random(example), _Laws(factory)
            try:
                past.go_on(dice, example % 20)  # short ones first
                law(past, dice)
            except Exception as error:
                calls = "\n  ".join(past.calls[-60:])
                raise AssertionError(f"{law.__name__}: {error!r}\nThe law: {law.__doc__}\nThe history:\n  {calls}") from error


class _History:
    """A scheduler, the calls made to it, and the grants that were not given back."""

    def __init__(self, factory: Callable[[], Scheduler], start: int = 0) -> None:
        self.factory, self.scheduler, self.now = factory, factory(), start
        self.scheduler.shift(-start)  # for a scheduler that follows the calendar
        self.calls, self.grants, self.late = list[str](), list[list[int]](), 0  # a grant is [instant, permits]
        self.interval = self.scheduler.rate.period_ns // self.scheduler.rate.permits + 1
        self.due(1)  # the first instant given starts the schedule

    def size(self, dice: Random) -> int:
        most = self.scheduler.max_permits or 10
        return min(dice.choice((1, 2, 3, 7, most)), most)

    def due(self, permits: int) -> int:
        self.calls.append(f"peek({permits}, {self.now})")
        return max(self.scheduler.peek(permits, self.now), self.now)

    def take(self, permits: int, since: int | None = None) -> bool:
        self.calls.append(f"take({permits}, {self.now}{'' if since is None else f', since={since}'})")
        if self.scheduler.take(permits, self.now, since) > self.now:
            return False
        self.grants.append([self.now, permits])
        self.late = max(self.late, 0 if since is None else self.now - since)
        return True

    def give_back(self, grant: list[int], permits: int) -> None:
        self.calls.append(f"give_back({permits}, {self.now}, taken={grant[0]})")
        self.scheduler.give_back(permits, self.now, grant[0])
        grant[1] -= permits

    def go_on(self, dice: Random, steps: int) -> list[int]:
        """Let random things happen; what the scheduler answered."""
        answers = []
        for _ in range(steps):
            permits, wait = self.size(dice), dice.choice((0, 0, 1, dice.randrange(3 * self.interval), 9 * self.interval, 200 * DAY))
            answers.append(self.due(permits) - self.now)
            self.now += answers[-1] if dice.random() < 0.5 else wait
            kept = [grant for grant in self.grants if grant[1]]
            if kept and dice.random() < 0.25:
                self.give_back(grant := dice.choice(kept), dice.randint(1, grant[1]))
            else:
                answers.append(self.take(permits, dice.choice((None, self.now - dice.randrange(2 * self.interval)))))
        return answers


class _Laws(_History):
    """The laws, the most telling first, because only one that is broken is reported."""

    def _same_future(self, other: _History, dice: Random) -> None:
        seed = dice.random()
        answers, others = self.go_on(Random(seed), 8), other.go_on(Random(seed), 8)
        assert answers == others, f"one answers {answers}, and its twin {others}"

    def asking_changes_nothing(self, dice: Random) -> None:
        """Neither a question nor a refusal changes anything, whatever its instant."""
        twin, now = deepcopy(self), self.now
        for self.now in (now - DAY, now - 1, now):
            if self.due(permits := self.size(dice)) > self.now:
                assert not self.take(permits), "take() grants what peek() refuses"
        self._same_future(twin, dice)

    def granted_on_time(self, dice: Random) -> None:
        """A request is never granted before the instant named for it, and always at that instant or later."""
        permits, begin = self.size(dice), self.now
        at = self.due(permits)
        for self.now in (begin - DAY, begin - 1, begin, (begin + at) // 2, at - 1) if at > begin else ():
            assert not deepcopy(self).take(permits), f"due at {at} and granted at {self.now}"
        for self.now in (at, at + 1, at + dice.randrange(9 * DAY)):
            assert deepcopy(self).take(permits), f"due at {at} and still refused at {self.now}"

    def more_is_never_sooner(self, dice: Random) -> None:
        """More permits are never scheduled sooner than fewer."""
        dues = [self.due(permits) for permits in range(1, 1 + min(self.scheduler.max_permits or 9, 9))]
        assert dues == sorted(dues), f"1, 2, 3 ... permits are due at {dues}"

    def going_back_earns_nothing(self, dice: Random) -> None:
        """When the clock goes back, the same time does not count twice."""
        twin, permits = deepcopy(self), self.size(dice)
        self.now -= dice.choice((dice.randrange(9 * self.interval), DAY))
        self.take(permits)
        self.now = twin.now
        assert self.due(permits) >= twin.due(permits), f"{permits} permits are sooner after the clock went back"

    def taking_makes_nobody_sooner(self, dice: Random) -> None:
        """A take, at any instant, makes no later request sooner."""
        twin = deepcopy(self)
        for _ in range(3):
            self.take(self.size(dice))
            self.now = twin.now = self.now + dice.randrange(2 * self.interval)
            permits = self.size(dice)
            assert self.due(permits) >= twin.due(permits), f"{permits} permits are sooner because of a take"

    def giving_back_leaves_no_trace(self, dice: Random) -> None:
        """A take that is given back at once, by its receipt, leaves no trace."""
        self.grants, permits = [], self.size(dice)  # schedulers may forget older grants
        twin = deepcopy(self)
        twin.now = self.now = self.due(permits) + dice.randrange(2 * self.interval)
        if self.take(permits):
            self.give_back(self.grants.pop(), permits)
        self._same_future(twin, dice)

    def bound_holds(self, dice: Random) -> None:
        """No window of any history holds more permits than bound() says, without those that were given back by their receipts."""
        self.go_on(dice, 20)
        grants = sorted(grant for grant in self.grants if grant[1])
        largest = max([1, *(permits for _, permits in grants)])
        for place, (first, _) in enumerate(grants):
            kept = 0
            for last, permits in grants[place:]:
                kept += permits
                bound = self.scheduler.bound(last - first + 1 + self.late, largest)
                assert bound is None or kept <= bound, f"{kept} permits from {first} to {last}, and bound() says {bound}"

    def shifting_changes_nothing(self, dice: Random) -> None:
        """Adding a constant to all instants changes nothing else. A scheduler that follows the calendar learns it by `shift`."""
        self.__init__(self.factory)  # type: ignore[misc]  # without a past
        self._same_future(_History(self.factory, dice.choice((1, DAY + 1, 10**6 * DAY + 7, -365 * DAY - 3))), dice)

    def no_drift(self, dice: Random) -> None:
        """Under load, a rate's permits take exactly its period, at the start and after a thousand million of them."""
        self.__init__(self.factory)  # type: ignore[misc]  # without a past
        rate, most = self.scheduler.rate, self.scheduler.max_permits
        size = rate.permits if most is None else gcd(rate.permits, most)  # requests that divide a window use it up exactly
        count = rate.permits // size
        load, jump = (1_000 * rate.permits, [10**9 * rate.permits]) if most is None else (most, [])
        dues = list[int]()  # the load uses up bursts and stores
        for permits in [load] * 8 + [size] * (count + 1) + jump + [size] * (count + 1) if count < 1_000 else ():
            self.now = self.due(permits)
            assert self.take(permits), f"due at {self.now} and still refused"
            dues.append(self.now)
        for last in (8 + count, -1) if dues else ():
            took = dues[last] - dues[last - count]
            assert took == rate.period_ns, f"{rate.permits} permits took {took} ns, and their period is {rate.period_ns} ns"


LAWS = [law for name, law in vars(_Laws).items() if not name.startswith("_")]
