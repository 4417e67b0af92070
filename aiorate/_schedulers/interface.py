"""The Scheduler interface, its laws and its defaults, and the checks that all strategies share.

A scheduler answers one question: *when may a request for n permits go?* It knows no loop, no clock and no waiter.
The caller passes the instant in, in whole nanoseconds on any monotonic origin.

The laws, which `aiorate.testing.check_scheduler` tries on any scheduler:

1.  A question changes nothing, and neither does a refusal. Only the first instant given may start the schedule.
2.  A request is never granted before the instant named for it, and always at that instant or later.
3.  More permits are never sooner, and a take makes nobody sooner.
4.  No window of any history holds more permits than `Scheduler.bound` says. Given back by its receipt, a permit counts as never granted;
    without one, as one fewer when it comes back.
5.  A take that is given back at once, by receipt, leaves no trace. Nor do the takes of one instant that come back whole with nothing in
    between, within 1 ns. After any return, no request is sooner than it would be without the take, or with the take kept.
6.  Adding a constant to all instants changes nothing else.
7.  A clock that goes back makes no progress and earns no credit.
8.  No drift: the k-th grant under load is due at exactly its share of the schedule.
9.  The permits that `Scheduler.available` counts are granted, then or later, as long as nothing else is taken.
10. A charge delays later requests as a take does where the take is due, and by no less where it is not.
11. With ``ahead``, `Scheduler.peek` is never later than the truth, and exact where permits lie on a straight line.
12. A grab of the scheduler's meter, if it has one, does what a take of one permit does, or nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from aiorate._errors import called, check_count
from aiorate._meter import NO_LINE
from aiorate._rate import NS_PER_SECOND, Rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._meter import Meter
    from aiorate._rate import Number

    Standing = tuple[int, Rate, int, int]


_MOST_AVAILABLE = 1 << 62  # as long as a range can be
NOBODY_KNOWS = 1 << 198
"""Returned by `Scheduler.take` instead of an instant. The limiter sets no timer, and is told when the answer changes."""


class Scheduler(ABC):
    """When may a request go? All instants and durations are whole nanoseconds.

    A custom strategy derives from this class, keeps `rate` and `max_permits`, and defines `take`, `peek`, `give_back`, `set_rate`
    and `bound`. The other members are defaults that fit most strategies.
    """

    __slots__ = ("_owner",)

    rate: Rate
    """The rate in force; `set_rate` changes it."""
    max_permits: int | None = None
    """The largest single request that can ever be granted; None: any."""
    books_since: bool = True
    """Whether `take` honours ``since``. If not, the limiter's guarantee needs no allowance for a late event loop."""
    members: tuple[Scheduler, ...] = ()
    """The schedulers of which this one consists."""
    _owner: str  # see `claim`
    _line: Any = None  # the meter of one that has one, where it keeps the instant of its next permit
    _metered_take: Callable[..., int] | None = None  # its `take`: a grab of the line does what ``take(1, now)`` does, or nothing
    _shown: tuple[str, ...] = ()  # the attributes that its ``repr()`` shows after the rate

    @property
    def _meter(self) -> Meter | None:
        """The line, if it is straight, and no subclass or attribute takes permits in another way."""
        line: Meter | None = self._line
        return line if line is not None and line.numbers[2] != NO_LINE and self.take == self._metered_take else None

    @property
    def _spilled(self) -> int:
        """Nanoseconds of schedule that were not used in time and are lost."""
        return max([member._spilled for member in self.members], default=0)

    @abstractmethod
    def take(self, permits: int, now: int, since: int | None = None) -> int:
        """The instant for which the request is scheduled. If that is ``now`` or earlier, the request is granted and spent.

        A later instant is a refusal. It changes nothing, and the same request is granted at that instant, provided that nothing
        else is taken in between. ``since`` (default ``now``) is the instant at which the request joined the line. Schedulers that
        pace book from ``max(due, since)``, so a late timer costs no rate. The receipt of a grant is its ``now``.
        """

    @abstractmethod
    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        """The answer that `take` would give. Changes nothing.

        With ``ahead``, that many permits are taken before, each as soon as it is due. The answer is exact where permits lie on a straight
        line, as in pools, buckets and the ticks accumulator, and never later than the truth elsewhere. It costs the same for any ``ahead``.
        """

    @abstractmethod
    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Credit permits that were not used.

        ``taken`` is their receipt: the ``now`` at which `take` granted them. The credit is then exact, or less. Without a receipt,
        pools and buckets fill up to capacity, windows forget their oldest entries, and pacing strategies lose the slot.
        """

    @abstractmethod
    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate from ``now`` on. Forgives no debt and gives no credit."""

    def lag(self, now: int) -> int:
        """How far behind schedule, in ns. The default is 0, for strategies that make up for nothing."""
        return max([member.lag(now) for member in self.members], default=0)

    @abstractmethod
    def bound(self, window: int, largest: int = 1) -> int | None:
        """The most permits ever granted within any half-open window of ``window`` ns; None: no bound.

        ``largest`` is the largest single request.
        """

    def _bound_when_late(self, window: int, largest: int, late: int) -> int | None:
        """The `bound` where requests are booked up to ``late`` ns before their grant."""
        parts = self.members or (self,)
        bounds = [part.bound(window + late if part.books_since else window, largest) for part in parts]
        return min([bound for bound in bounds if bound is not None], default=None)

    def charge(self, permits: int, now: int) -> None:
        """Take any number of permits that were used without a request. Later requests wait for them.

        This default takes portions of the largest request allowed, each as soon as it is due.
        """
        check_permits("charge()", permits)
        most = permits if self.max_permits is None else self.max_permits
        while permits > 0:
            portion = min(permits, most)
            now = max(self.peek(portion, now), now)
            self.take(portion, now)
            permits -= portion

    def apply(self, rate: Rate, burst_ratio: Number, now: int) -> None:
        """Change the rate and, if the strategy has one, the burst ratio."""
        if rate != self.rate:
            self.set_rate(rate, now)

    def restart(self, now: int) -> None:
        """Forget the backlog: empty the pools, and have no slot due before ``now``. A debt stays. The default does nothing."""
        for member in self.members:
            member.restart(now)

    def reset(self, now: int) -> None:
        """Return to the state of a new scheduler that starts at ``now``, at the rate in force."""
        raise RuntimeError(f"reset(): {type(self).__name__} has no method reset(now). Define it, or make a new limiter.")

    def available(self, now: int) -> int:
        """The number of permits that one request would be granted at ``now`` without a debt."""
        most = 1 if self.max_permits is None else min(self.max_permits, _MOST_AVAILABLE)
        return bisect_right(range(1, most + 1), now, key=lambda permits: self.peek(permits, now))

    def _standings(self, now: int) -> list[Standing]:
        """Each limit as a server tells it: the most permits at once, and the rate at which they come back; the permits available at
        ``now``, and the instant at which there is one more, if none is taken."""
        left, most = self.available(now), self.max_permits
        at = now if most is not None and left >= most else self.peek(left + 1, now)
        return [(most or self.bound(1) or max(1, self.rate._permits_in(NS_PER_SECOND)), self.rate, left, at)]

    def _rested(self, now: int) -> bool:
        """Whether a new scheduler in its place would serve no request sooner. By default, whether the largest request would be granted now
        or, if `max_permits` is None, one of a single permit."""
        return self.peek(1 if self.max_permits is None else self.max_permits, now) <= now

    def __repr__(self) -> str:
        shown = [f"{name.strip('_')}={getattr(self, name)}" for name in self._shown]
        return f"{type(self).__name__}({', '.join([repr(str(self.rate)), *shown])})"

    def _shift(self, ns: int) -> None:
        """Follow a pause of ``ns``. Only strategies that follow the calendar need it."""


def claim(owner: str, *schedulers: Scheduler) -> None:
    """Give them to one owner. ValueError if one has an owner already: each would spend the other's permits."""
    for scheduler in schedulers:
        other = getattr(scheduler, "_owner", None)
        if other or (len(schedulers) > 1 and schedulers.count(scheduler) > 1):
            how = f"belongs to {other} already" if other else "is given twice"
            raise ValueError(f"{scheduler!r} {how}, so {owner} cannot have it. Make another scheduler, or share that limiter.")
    for scheduler in schedulers:
        scheduler._owner = owner


def check_ask(call: str, permits: int, now: int, other: int | None = None, most: int | None = None) -> None:
    """Check the arguments of `Scheduler.take`, `peek` or `give_back`. ``other``: ``since`` or ``taken``."""
    right = type(now) is int and isinstance(permits, int) and permits > 0 and permits is not True and (most is None or permits <= most)
    if right and (other is None or type(other) is int):
        return  # in a third of the time of the checks below
    check_permits(call, permits, most)
    check_ns(f"{call}(now)", now)
    check_ns(f"{call}({'taken' if call == 'give_back()' else 'since'})", 0 if other is None else other)


def check_permits(call: str, permits: int, most: int | None = None) -> None:
    """Raise TypeError or ValueError unless ``permits`` is an int from 1 to ``most``."""
    check_count(call, permits, " permits", least=1)
    if most is not None and permits > most:
        raise ValueError(
            f"{called(call, permits)}: this limiter never grants more than {most} permits at once. Ask for fewer, or raise its burst."
        )


def check_ns(what: str, ns: int, least: int | None = None) -> None:
    """Raise TypeError or ValueError unless it is an instant or a duration, of ``least`` ns or more."""
    if isinstance(ns, bool) or not isinstance(ns, int):
        raise TypeError(f"{what} must be whole ns, an int, not {type(ns).__name__}.")
    if least is not None and ns < least:
        raise ValueError(f"{called(what, ns)} must be {least} ns or more.")


def check_window(window: int, largest: int) -> None:
    """Check the arguments of `Scheduler.bound`."""
    check_ns("bound(window)", window, least=1)
    check_permits("bound(largest)", largest)
