"""Servers whose limit their clients don't know: pure, deterministic, in whole ns of virtual time; and the kinds of them in the table.

A server is asked in order of time, and answers at once whether it serves the request. It knows neither clients nor networks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import NamedTuple

SECOND = 1_000_000_000
_MILLI = 1000  # rates are kept in thousandths of a permit per second
_PERMIT = _MILLI * SECOND  # the unit in which a bucket counts: earned by a rate of 0.001/s in 1 ns


class Answer(NamedTuple):
    """What a server answers to one request, and the ns that it needs before; ``retry_after`` in seconds, None: not named."""

    served: bool
    service: int = 0
    retry_after: float | None = None


SERVED, REFUSED = Answer(True), Answer(False)


class Steps:
    """A number that changes at certain seconds: ``Steps((0, 100), (60, 30))`` is 100, and from the 60th second on 30."""

    def __init__(self, *steps: tuple[float, float]) -> None:
        self.steps = tuple((round(second * SECOND), value) for second, value in steps)
        self._instants = [instant for instant, _ in self.steps]

    @classmethod
    def of(cls, value: Steps | float) -> Steps:
        return value if isinstance(value, Steps) else cls((0, value))

    def at(self, now: int) -> float:
        return self.steps[max(0, bisect_right(self._instants, now) - 1)][1]

    def next(self, now: int, default: int) -> int:
        """The next instant at which it is more than 0."""
        return min((instant for instant, value in self.steps if value and instant > now), default=default)

    def parts(self, begin: int, until: int) -> list[tuple[int, float]]:
        """The time from ``begin`` to ``until`` as parts: their length (ns), and the number in them."""
        inside = [instant for instant in self._instants if begin < instant < until]
        return [(b - a, self.at(a)) for a, b in pairwise([begin, *inside, until]) if b > a]

    def over(self, until: int) -> float:
        """The sum of number times seconds from 0 to ``until`` (ns)."""
        return sum(length * value for length, value in self.parts(0, until)) / SECOND

    def changes(self) -> list[tuple[int, float, float]]:
        """The instants (ns) at which it changes, with the number before and after."""
        return [(after[0], before[1], after[1]) for before, after in pairwise(self.steps)]


class Server:
    """One that serves everything, where at most ``rate`` per second is asked of it."""

    def __init__(self, rate: Steps | float) -> None:
        self.rate = Steps.of(rate)

    def ask(self, now: int) -> Answer:
        return SERVED

    def allowed(self, until: int) -> float:
        """The number that an asker of unlimited speed could have had from 0 to an instant."""
        return self.rate.over(until)

    def limit(self, now: int) -> float:
        """The requests per second that it allows now."""
        return self.rate.at(now)


class Bucket(Server):
    """A token bucket, full at first. With ``counts`` a refused request takes a token too, down to a debt of a burst."""

    def __init__(self, rate: Steps | float, burst: int, *, counts: bool = False) -> None:
        super().__init__(rate)
        self.burst, self.counts = burst, counts
        self._level, self._last = burst * _PERMIT, 0

    def ask(self, now: int) -> Answer:
        earned = sum(length * round(value * _MILLI) for length, value in self.rate.parts(self._last, now))
        self._last, self._level = now, min(self.burst * _PERMIT, self._level + earned)
        if self._level >= _PERMIT:
            self._level -= _PERMIT
            return SERVED
        if self.counts:
            self._level = max(-self.burst * _PERMIT, self._level - _PERMIT)
        return REFUSED

    def allowed(self, until: int) -> float:
        return self.burst + super().allowed(until)


class FixedWindow(Server):
    """``permits`` in each window of ``seconds``, as they are when it begins. With ``hint``, a refusal names the time of the next one."""

    def __init__(self, permits: Steps | int, seconds: float, *, hint: bool = False) -> None:
        self.permits, self.window, self.hint = Steps.of(permits), round(seconds * SECOND), hint
        self._number, self._used = -1, 0

    def ask(self, now: int) -> Answer:
        number = now // self.window
        if number != self._number:
            self._number, self._used = number, 0
        if self._used < int(self.permits.at(number * self.window)):
            self._used += 1
            return SERVED
        return Answer(False, 0, ((number + 1) * self.window - now) / SECOND) if self.hint else REFUSED

    def allowed(self, until: int) -> float:
        return sum(int(self.permits.at(begin)) for begin in range(0, until, self.window))

    def limit(self, now: int) -> float:
        return self.permits.at(now // self.window * self.window) * SECOND / self.window


class SlidingWindow(FixedWindow):
    """At most ``permits`` in any window of ``seconds``."""

    def __init__(self, permits: Steps | int, seconds: float) -> None:
        super().__init__(permits, seconds)
        self._log: deque[int] = deque()

    def ask(self, now: int) -> Answer:
        while self._log and now - self._log[0] >= self.window:
            self._log.popleft()
        if len(self._log) >= int(self.permits.at(now)):
            return REFUSED
        self._log.append(now)
        return SERVED


class Concurrency(Server):
    """``places`` requests at a time, each of which takes ``service`` seconds, give or take a random ``spread`` of it.

    A rate cannot hold a concurrency: at exactly the limit, 8 % are refused without any spread, and 13 % with one of 0.5.
    """

    def __init__(self, places: int, service: Steps, spread: float) -> None:
        super().__init__(Steps(*((instant / SECOND, places / seconds) for instant, seconds in service.steps)))
        self.places, self.service, self.spread = places, service, spread
        self._random, self._ends = Random(0), list[int]()

    def ask(self, now: int) -> Answer:
        while self._ends and self._ends[0] <= now:
            heappop(self._ends)
        if len(self._ends) >= self.places:
            return REFUSED
        service = round(self.service.at(now) * SECOND * (1 + self.spread * (2 * self._random.random() - 1)))
        heappush(self._ends, now + service)
        return Answer(True, service)


class Neighbour(Server):
    """Another client of the same server, which asks ``takes`` times a second in even steps, whatever it is answered."""

    def __init__(self, inner: Server, takes: Steps) -> None:
        self.inner, self.takes, self._next = inner, takes, 0

    def ask(self, now: int) -> Answer:
        while self._next <= now:
            rate = self.takes.at(self._next)
            if rate:
                self.inner.ask(self._next)
            self._next = self._next + round(SECOND / rate) if rate else self.takes.next(self._next, 1 << 62)
        return self.inner.ask(now)

    def allowed(self, until: int) -> float:
        return self.inner.allowed(until) - self.takes.over(until)

    def limit(self, now: int) -> float:
        return self.inner.limit(now) - self.takes.at(now)


class Penalty(Bucket):
    """A bucket that, once it refuses, refuses everybody for ``seconds``. Each refusal names the rest of that time, or prolongs it."""

    def __init__(self, rate: float, burst: int, seconds: float, *, prolongs: bool = False) -> None:
        super().__init__(rate, burst)
        self.length, self.prolongs, self._until = round(seconds * SECOND), prolongs, 0

    def ask(self, now: int) -> Answer:
        if now >= self._until:
            answer = super().ask(now)
            if answer.served:
                return answer
            self._until = now + self.length
        if self.prolongs:
            self._until = now + self.length
            return REFUSED
        return Answer(False, 0, (self._until - now) / SECOND)


class Queue(Server):
    """Requests wait behind each other in a queue of ``length`` before ``rate`` serves them, so that answers come later near the limit."""

    def __init__(self, rate: float, length: int) -> None:
        super().__init__(rate)
        self.length, self._ends = length, deque[int]()

    def ask(self, now: int) -> Answer:
        ends = self._ends
        while ends and ends[0] <= now:
            ends.popleft()
        if len(ends) >= self.length:
            return REFUSED
        end = (ends[-1] if ends else now) + round(SECOND / self.rate.at(now))
        ends.append(end)
        return Answer(True, end - now)


# The kinds: functions of their parameters, with defaults for the table.


class Spec(NamedTuple):
    """One client: when it begins, its round trip as a multiple of the run's, and its demand."""

    begins: float = 0.0
    distance: float = 1.0
    demand: Steps | None = None


@dataclass(frozen=True)
class Kind:
    """A server, its clients, and what is measured."""

    server: Server
    seconds: float
    limit: float  # at first, per second: the start is a multiple of it
    clients: tuple[Spec, ...] = (Spec(),)
    changes: tuple[tuple[int, float, float], ...] = ()  # instants (ns) at which the limit changes, with the limit before and after
    fair_from: float = 0.0  # the second from which Jain's index is measured, if there are several clients
    starts: tuple[float, ...] = (0.1, 1.0, 10.0)
    lowest: float | None = None  # the range of the rate; None: a fiftieth of the limit, and 20 times the limit
    highest: float | None = None


def _permits(limit: float, seconds: float) -> int:
    return max(1, round(limit * seconds))


def bucket(limit: float = 100, fall: float = 0.3, rise: float = 1.2, burst: int = 10, seconds: float = 60) -> Kind:
    """The rate falls after ``seconds``, and rises after as long again: to these shares of the limit."""
    rate = Steps((0, limit), (seconds, limit * fall), (2 * seconds, limit * rise))
    return Kind(Bucket(rate, burst), 3 * seconds, limit, changes=tuple(rate.changes()))


def constant(limit: float = 100, burst: int = 10, seconds: float = 120, counts: bool = False) -> Kind:
    return Kind(Bucket(limit, burst, counts=counts), seconds, limit)


def window(limit: float = 100, period: float = 1, seconds: float = 120, hint: bool = False) -> Kind:
    return Kind(FixedWindow(_permits(limit, period), period, hint=hint), seconds, limit)


def sliding(limit: float = 100, period: float = 1, seconds: float = 120) -> Kind:
    return Kind(SlidingWindow(_permits(limit, period), period), seconds, limit)


def concurrency(places: int = 10, service: float = 0.05, slower: float = 4, seconds: float = 60, spread: float = 0) -> Kind:
    """After ``seconds`` the service takes ``slower`` times as long, and after as long again as at first."""
    times = Steps((0, service), (seconds, service * slower), (2 * seconds, service))
    return Kind(Concurrency(places, times, spread), 3 * seconds, places / service)


def neighbour(limit: float = 100, takes: float = 0.6, burst: int = 10, seconds: float = 40) -> Kind:
    """A neighbour takes a share of a bucket, every other ``seconds``."""
    rate = Steps(*((n * seconds, limit * takes * (n % 2)) for n in range(5)))
    return Kind(Neighbour(Bucket(limit, burst), rate), 5 * seconds, limit)


def penalty(limit: float = 20, after: float = 30, burst: int = 10) -> Kind:
    return Kind(Penalty(limit, burst, after), min(3600, max(180, 40 * after)), limit)


def unlimited(ceiling: float = 1000, seconds: float = 40) -> Kind:
    """The rate climbs from 1 % of the highest."""
    return Kind(Server(ceiling), seconds, ceiling, starts=(0.01,), lowest=ceiling / 1000, highest=ceiling)


def three(limit: float = 100, late: float = 0, apart: float = 1, period: float = 0) -> Kind:
    """Clients that begin ``late`` seconds after each other, each ``apart`` times as far away as the one before.

    The server has a token bucket, or a fixed window of ``period`` seconds.
    """
    clients = tuple(Spec(number * late, apart ** (number - 1)) for number in range(3))
    server = FixedWindow(_permits(limit, period), period) if period else Bucket(limit, 10)
    return Kind(server, 240, limit, clients, fair_from=60)


def wanting(demand: Steps, seconds: float, starts: tuple[float, ...] = (0.1, 1.0)) -> Kind:
    """A client of a bucket of 100/s that wants so much."""
    return Kind(Bucket(100, 10), seconds, 100, (Spec(demand=demand),), starts=starts)


# The function of each kind, and the parameters that differ from its defaults.
KINDS: dict[str, tuple[Callable[..., Kind], Mapping[str, float]]] = {
    "bucket": (bucket, {}),
    "window1": (window, {}),
    "window10": (window, {"period": 10}),
    "sliding": (sliding, {}),
    "concurrency": (concurrency, {}),
    "varied": (concurrency, {"spread": 0.5}),
    "neighbour": (neighbour, {}),
    "retry1": (penalty, {"after": 1, "limit": 100}),
    "retry30": (penalty, {"after": 30}),
    "retry89": (penalty, {"after": 89}),
    "unlimited": (unlimited, {}),
    "equal": (three, {}),
    "late": (three, {"late": 20}),
    "apart": (three, {"apart": 6}),
    "equal1": (three, {"period": 1}),
    "equal10": (three, {"period": 10}),
    "slow": (constant, {"limit": 3, "burst": 3, "seconds": 300}),
    "fast": (constant, {"limit": 1500, "burst": 150, "seconds": 40}),
    "demand": (lambda: wanting(Steps.of(20), 120), {}),
}


def build(name: str, **changed: float) -> Kind:
    """A fresh server of that kind, with these parameters."""
    function, own = KINDS[name]
    return function(**{**own, **changed})
