"""Schedulers at work without a loop: what they would grant, and their laws, tried on random histories."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND
from aiorate._schedulers.interface import Scheduler, check_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_CATCH_UP = NS_PER_SECOND // 50  # as of a Limiter


def simulate(scheduler: Scheduler, requests: Iterable[int | tuple[int, int]]) -> list[int]:
    """The instants (ns) at which requests in one line are granted, if each is woken exactly on time.

    A request is the instant (ns) at which it is made, for one permit, or a pair (instant, permits). They must be in order of time.
    """
    return [at for at in grants(scheduler, requests) if at is not None]


def grants(scheduler: Scheduler, requests: Iterable[int | tuple[int, int]], max_wait: int | None = None) -> Iterable[int | None]:
    """As `simulate`, but None for a request that would wait longer than ``max_wait`` (ns)."""
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


_DAY = 86_400 * NS_PER_SECOND


def check_scheduler(factory: Callable[[], Scheduler], *, examples: int = 100) -> None:
    """Try the laws of schedulers on those that the factory makes: ``check_scheduler(lambda: TokenBucket("7/s", burst=3))``.

    ``examples`` is the number of histories for each law; they are the same in each run. The schedule of a new scheduler must run from the
    first instant that it is given. Raises AssertionError, which names the law that is broken and shows the calls that break it.
    """
    for disturb in (_giving_back_leaves_no_trace, _asking_changes_nothing):
        for example in range(examples):
            history = _History(factory(), factory())
            try:
                history.run(Random(example), 4 + example % 20, disturb)
                history.bound_holds()
            except Exception as error:
                calls = "\n  ".join(history.calls[-60:])
                law = error if isinstance(error, AssertionError) else f"{disturb.__name__[1:]}: {error!r}"
                raise AssertionError(f"{law}\nThe history:\n  {calls}") from error


class _History:
    """Two equal schedulers: both get the same calls, and one gets more, which should change nothing."""

    def __init__(self, plain: Scheduler, disturbed: Scheduler) -> None:
        self.plain, self.disturbed, self.now, self.late = plain, disturbed, 0, 0
        self.calls, self.grants, self.held = list[str](), list[list[int]](), list[list[int]]()  # [instant, permits]; what can come back
        self.interval = plain.rate.period_ns // plain.rate.permits + 1
        self.law = "asking_changes_nothing"
        self.both("peek", 1, 0)  # the first instant given starts the schedule

    def both(self, name: str, permits: int, now: int, *other: int | None) -> int:
        self.calls.append(f"{name}{(permits, now, *other)}")
        answer, disturbed = [max(getattr(each, name)(permits, now, *other) or now, now) for each in (self.plain, self.disturbed)]
        assert disturbed == answer, f"{self.law}: {self.calls[-1]} is {answer}, and with the further calls {disturbed}"
        return answer

    def more(self, name: str, *arguments: int | None) -> int:
        self.calls.append(f"  further: {name}{arguments}")
        answer: int = getattr(self.disturbed, name)(*arguments)
        return answer

    def run(self, dice: Random, steps: int, disturb: Callable[[_History, int, int], None]) -> None:
        self.law = disturb.__name__[1:]
        most = self.plain.max_permits or 10
        for _ in range(steps):
            permits = min(dice.choice((1, 2, 3, 7, most)), most)
            dues = [self.both("peek", each, self.now) for each in sorted({1, permits})]
            disturb(self, permits, dues[-1])
            wait = dice.choice((0, 0, 1, dice.randrange(3 * self.interval), 9 * self.interval, 200 * _DAY))
            self.now = dues[-1] if dice.random() < 0.5 else self.now + wait
            if self.held and dice.random() < 0.25:
                grant = self.held.pop(dice.randrange(len(self.held)))
                back = dice.randint(1, grant[1])
                self.both("give_back", back, self.now, grant[0])
                grant[1] -= back
                continue
            since = dice.choice((None, self.now - dice.randrange(2 * self.interval)))
            granted = self.both("take", permits, self.now, since) <= self.now
            on_time = granted is (self.now >= dues[-1]) and dues[0] <= dues[-1]
            assert on_time, f"granted_on_time: 1 permit is due at {dues[0]}, {permits} at {dues[-1]}, and {granted=} at {self.now}"
            if granted:
                self.grants.append([self.now, permits])
                self.held.append(self.grants[-1])
                self.late = max(self.late, 0 if since is None else self.now - since)

    def bound_holds(self) -> None:
        """No window holds more permits than bound() says, apart from those that were given back by their receipts."""
        largest = max([1, *(permits for _, permits in self.grants)])
        for place, (first, _) in enumerate(self.grants):
            kept = 0
            for last, permits in self.grants[place:]:
                kept += permits
                bound = self.plain.bound(last - first + 1 + self.late, largest)
                assert bound is None or kept <= bound, f"bound_holds: {kept} permits from {first} to {last}, and bound() says {bound}"


def _asking_changes_nothing(history: _History, permits: int, due: int) -> None:
    """Neither a question nor a refusal changes anything, whatever its instant."""
    for now in (history.now - _DAY, history.now - 1, history.now, due - 1):
        as_said = history.more("peek", permits, now) <= now or history.more("take", permits, now) > now
        assert as_said, f"granted_on_time: take({permits}, {now}) grants what peek() refuses"


def _giving_back_leaves_no_trace(history: _History, permits: int, due: int) -> None:
    """The only take of an instant leaves no trace if it is given back at once, by its receipt."""
    new = not history.grants or history.grants[-1][0] < history.now
    if new and due <= history.now and history.more("take", permits, history.now) <= history.now:
        history.more("give_back", permits, history.now, history.now)
        history.held.clear()  # schedulers may forget older grants
