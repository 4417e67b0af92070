"""Schedulers at work, without waiting and without a loop: what they would grant, and their laws, tried on random histories."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import TYPE_CHECKING

from aiorate._errors import kind_of
from aiorate._rate import NS_PER_SECOND
from aiorate._schedulers.interface import Scheduler, check_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_CATCH_UP = NS_PER_SECOND // 50  # as of a Limiter


def simulate(scheduler: Scheduler, requests: Iterable[int | tuple[int, int]]) -> list[int]:
    """The instants (ns) at which requests in one line are granted, if each is woken exactly on time.

    A request is the instant (ns) at which it is made, for one permit, or a pair (instant, permits). They must be in order of time.
    """
    if not isinstance(scheduler, Scheduler):
        raise TypeError(f"simulate() takes a strategy such as TokenBucket('10/s', burst=5), not {kind_of(scheduler)}.")
    return [at for at in grants(scheduler, requests) if at is not None]


def grants(scheduler: Scheduler, requests: Iterable[int | tuple[int, int]], max_wait: int | None = None) -> Iterable[int | None]:
    """As `simulate`; None for a request that is refused, because it would wait longer than ``max_wait`` (ns)."""
    latest = last = None  # when a request was made, and when one was granted
    for request in requests:
        made, permits = request if isinstance(request, tuple) and len(request) == 2 else (request, 1)
        check_ns("simulate(): a request", made)
        if latest is not None and made < latest:
            raise ValueError(f"simulate(): requests must be in order of time; {made} came after {latest}.")
        latest = made
        at = made if last is None else max(made, last)
        at = max(scheduler.peek(permits, at), at)
        if max_wait is not None and at - made > max_wait:
            yield None
            continue
        scheduler.take(permits, at, max(made, at - _CATCH_UP))
        last = at
        yield at


DAY = 86_400 * NS_PER_SECOND


def check_scheduler(factory: Callable[[], Scheduler], *, examples: int = 100) -> None:
    """Try the laws of schedulers on those that the factory makes: ``check_scheduler(lambda: TokenBucket("7/s", burst=3))``.

    ``examples`` is the number of histories for each law; they are the same in each run. The schedule of a new scheduler must run from the
    first instant that it is given. Raises AssertionError, which names the law that is broken and shows the calls that break it.
    """
    for law in LAWS:
        for example in range(examples):
            dice, past = Random(example), History(factory())
            try:
                past.go_on(dice, example % 20)  # short ones first
                law(past, dice)
            except Exception as error:
                calls = "\n  ".join(past.calls[-60:])
                raise AssertionError(f"{law.__name__}: {error!r}\nThe law: {law.__doc__}\nThe history:\n  {calls}") from error


class History:
    """A scheduler, the calls made to it, and the grants that were not given back."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.now = scheduler, 0
        self.calls, self.grants, self.late = list[str](), list[list[int]](), 0  # a grant is [instant, permits]
        self.interval = scheduler.rate.period_ns // scheduler.rate.permits + 1
        self.due(1)  # the first instant given starts the schedule

    def size(self, dice: Random) -> int:
        most = self.scheduler.max_permits or 10
        return min(dice.choice((1, 2, 3, 7, most)), most)

    def call(self, name: str, *arguments: int | None) -> int:
        self.calls.append(f"{name}{arguments}")
        answer: int = getattr(self.scheduler, name)(*arguments)
        return answer

    def due(self, permits: int) -> int:
        return max(self.call("peek", permits, self.now), self.now)

    def take(self, permits: int, since: int | None = None) -> bool:
        if self.call("take", permits, self.now, since) > self.now:
            return False
        self.grants.append([self.now, permits])
        self.late = max(self.late, 0 if since is None else self.now - since)
        return True

    def give_back(self, grant: list[int], permits: int) -> None:
        self.call("give_back", permits, self.now, grant[0])
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


# The most telling first, because only one that is broken is reported.


def asking_changes_nothing(past: History, dice: Random) -> None:
    """Neither a question nor a refusal changes anything, whatever its instant."""
    twin, now = deepcopy(past), past.now
    for past.now in (now - DAY, now - 1, now):
        if past.due(permits := past.size(dice)) > past.now:
            assert not past.take(permits), "take() grants what peek() refuses"
    _same_future(past, twin, dice)


def granted_on_time(past: History, dice: Random) -> None:
    """A request is never granted before the instant named for it, and always at that instant or later. More permits are never sooner."""
    dues = [past.due(permits) for permits in range(1, 1 + min(past.scheduler.max_permits or 9, 9))]
    assert dues == sorted(dues), f"1, 2, 3 ... permits are due at {dues}"
    permits, begin = past.size(dice), past.now
    at = past.due(permits)
    for past.now in (begin - DAY, begin - 1, begin, (begin + at) // 2, at - 1) if at > begin else ():
        assert not deepcopy(past).take(permits), f"due at {at} and granted at {past.now}"
    for past.now in (at, at + 1, at + dice.randrange(9 * DAY)):
        assert deepcopy(past).take(permits), f"due at {at} and still refused at {past.now}"


def giving_back_leaves_no_trace(past: History, dice: Random) -> None:
    """A take that is given back at once, by its receipt, leaves no trace."""
    past.grants, permits = [], past.size(dice)  # schedulers may forget older grants
    twin = deepcopy(past)
    twin.now = past.now = past.due(permits) + dice.randrange(2 * past.interval)
    if past.take(permits):
        past.give_back(past.grants.pop(), permits)
    _same_future(past, twin, dice)


def bound_holds(past: History, dice: Random) -> None:
    """No window of any history holds more permits than bound() says, without those that were given back by their receipts."""
    past.go_on(dice, 20)
    grants = sorted(grant for grant in past.grants if grant[1])
    largest = max([1, *(permits for _, permits in grants)])
    for place, (first, _) in enumerate(grants):
        kept = 0
        for last, permits in grants[place:]:
            kept += permits
            bound = past.scheduler.bound(last - first + 1 + past.late, largest)
            assert bound is None or kept <= bound, f"{kept} permits from {first} to {last}, and bound() says {bound}"


def _same_future(past: History, twin: History, dice: Random) -> None:
    seed = dice.random()
    answers, others = past.go_on(Random(seed), 8), twin.go_on(Random(seed), 8)
    assert answers == others, f"one answers {answers}, and its twin {others}"


LAWS = [asking_changes_nothing, granted_on_time, giving_back_leaves_no_trace, bound_holds]
