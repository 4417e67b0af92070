"""Models of servers whose limit is not known to their clients: pure, deterministic, in whole nanoseconds of virtual time.

Knows neither clients nor networks. A server is asked in order of time, and answers at once whether it serves the request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import NamedTuple, Protocol

SECOND = 1_000_000_000
_MILLI = 1000  # rates are kept in thousandths of a permit per second
_PERMIT = _MILLI * SECOND  # the unit in which a bucket counts: earned by a rate of 0.001/s in 1 ns


class Answer(NamedTuple):
    """What a server answers to one request."""

    served: bool
    service: int = 0
    """The ns that the server needs before the answer leaves."""
    retry_after: float | None = None
    """Seconds; None: the answer names none."""


SERVED = Answer(True)
REFUSED = Answer(False)


class Server(Protocol):
    """A server with a limit.

    ``ask`` decides a request that arrives now, ``allowed`` is the number that an asker of unlimited speed could have had from 0 to an
    instant, and ``limit`` the requests per second that it allows now.
    """

    def ask(self, now: int) -> Answer: ...
    def allowed(self, until: int) -> float: ...
    def limit(self, now: int) -> float: ...


class Steps:
    """A number that changes at certain seconds: ``Steps((0, 100), (60, 30))`` is 100, and from the 60th second on 30."""

    def __init__(self, *steps: tuple[float, float]) -> None:
        self.steps: tuple[tuple[int, float], ...] = tuple((round(second * SECOND), value) for second, value in steps)
        self._instants = [instant for instant, _ in self.steps]

    @classmethod
    def of(cls, value: Steps | float) -> Steps:
        """A constant number, or the steps as they are."""
        return value if isinstance(value, Steps) else cls((0, value))

    def at(self, now: int) -> float:
        """The number at an instant (ns)."""
        return self.steps[max(0, bisect_right(self._instants, now) - 1)][1]

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


class Bucket:
    """A token bucket, full at first: ``rate`` per second, ``burst`` permits. With ``counts_refused`` a refused request takes a token too.

    The debt of refused requests is at most a burst.
    """

    def __init__(self, rate: Steps | float, burst: int, *, counts_refused: bool = False) -> None:
        self.rate: Steps = Steps.of(rate)
        self.burst: int = burst
        self.counts_refused: bool = counts_refused
        self._level = burst * _PERMIT
        self._last = 0

    def ask(self, now: int) -> Answer:
        rate = self.rate
        if len(rate.steps) == 1:
            earned = (now - self._last) * round(rate.steps[0][1] * _MILLI)
        else:
            earned = sum(length * round(value * _MILLI) for length, value in rate.parts(self._last, now))
        self._last = now
        self._level = min(self.burst * _PERMIT, self._level + earned)
        if self._level >= _PERMIT:
            self._level -= _PERMIT
            return SERVED
        if self.counts_refused:
            self._level = max(-self.burst * _PERMIT, self._level - _PERMIT)
        return REFUSED

    def allowed(self, until: int) -> float:
        return self.burst + self.rate.over(until)

    def limit(self, now: int) -> float:
        return self.rate.at(now)


class FixedWindow:
    """``permits`` in each window of ``seconds``. ``permits`` is the number at the beginning of a window."""

    def __init__(self, permits: Steps | int, seconds: float, *, hint: bool = False) -> None:
        self.permits: Steps = Steps.of(permits)
        self.window: int = round(seconds * SECOND)
        self.hint: bool = hint
        """Whether a refusal names the seconds until the next window."""
        self._number = -1
        self._used = 0

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


class SlidingWindow:
    """At most ``permits`` in any window of ``seconds``. With ``counts_refused``, refused requests stand in the log too."""

    def __init__(self, permits: Steps | int, seconds: float, *, counts_refused: bool = False) -> None:
        self.permits: Steps = Steps.of(permits)
        self.window: int = round(seconds * SECOND)
        self.counts_refused: bool = counts_refused
        self._log: deque[int] = deque()

    def ask(self, now: int) -> Answer:
        log = self._log
        while log and now - log[0] >= self.window:
            log.popleft()
        served = len(log) < int(self.permits.at(now))
        if served or self.counts_refused:
            log.append(now)
        return SERVED if served else REFUSED

    def allowed(self, until: int) -> float:
        return sum(int(self.permits.at(begin)) for begin in range(0, until, self.window))

    def limit(self, now: int) -> float:
        return self.permits.at(now) * SECOND / self.window


class Concurrency:
    """``places`` requests at a time, each of which takes ``service`` seconds, give or take a random ``spread`` of it."""

    def __init__(self, places: int, service: Steps | float, *, spread: float = 0.5, seed: int = 0) -> None:
        self.places: int = places
        self.service: Steps = Steps.of(service)
        self.spread: float = spread
        self._random = Random(seed)
        self._ends: list[int] = []

    def ask(self, now: int) -> Answer:
        ends = self._ends
        while ends and ends[0] <= now:
            heappop(ends)
        if len(ends) >= self.places:
            return REFUSED
        service = round(self.service.at(now) * SECOND * (1 + self.spread * (2 * self._random.random() - 1)))
        heappush(ends, now + service)
        return Answer(True, service)

    def allowed(self, until: int) -> float:
        return sum(length / SECOND * self.places / service for length, service in self.service.parts(0, until))

    def limit(self, now: int) -> float:
        return self.places / self.service.at(now)


class Neighbour:
    """Another client of the same server, which asks ``rate`` times a second in even steps, whatever it is answered."""

    def __init__(self, inner: Server, rate: Steps) -> None:
        self.inner: Server = inner
        self.rate: Steps = rate
        self._next = 0

    def ask(self, now: int) -> Answer:
        while self._next <= now:
            rate = self.rate.at(self._next)
            if rate:
                self.inner.ask(self._next)
                self._next += round(SECOND / rate)
            else:
                self._next = min((instant for instant, value in self.rate.steps if value and instant > self._next), default=1 << 62)
        return self.inner.ask(now)

    def allowed(self, until: int) -> float:
        return self.inner.allowed(until) - self.rate.over(until)

    def limit(self, now: int) -> float:
        return self.inner.limit(now) - self.rate.at(now)


class Penalty:
    """Once the inner server refuses, everybody is refused for ``seconds``. Each refusal names the rest of that time."""

    def __init__(self, inner: Server, seconds: float) -> None:
        self.inner: Server = inner
        self.length: int = round(seconds * SECOND)
        self._until = 0

    def ask(self, now: int) -> Answer:
        if now >= self._until:
            answer = self.inner.ask(now)
            if answer.served:
                return answer
            self._until = now + self.length
        return Answer(False, 0, (self._until - now) / SECOND)

    def allowed(self, until: int) -> float:
        return self.inner.allowed(until)

    def limit(self, now: int) -> float:
        return self.inner.limit(now)


@dataclass(slots=True)
class NoLimit:
    """Serves everything. ``ceiling`` is the most per second that is asked of it."""

    ceiling: float

    def ask(self, now: int) -> Answer:
        return SERVED

    def allowed(self, until: int) -> float:
        return self.ceiling * until / SECOND

    def limit(self, now: int) -> float:
        return self.ceiling


class Queue:
    """Requests wait behind each other in a queue of ``length`` before ``rate`` serves them, so that answers come later near the limit."""

    def __init__(self, rate: Steps | float, length: int) -> None:
        self.rate: Steps = Steps.of(rate)
        self.length: int = length
        self._ends: deque[int] = deque()

    def ask(self, now: int) -> Answer:
        ends = self._ends
        while ends and ends[0] <= now:
            ends.popleft()
        if len(ends) >= self.length:
            return REFUSED
        end = (ends[-1] if ends else now) + round(SECOND / self.rate.at(now))
        ends.append(end)
        return Answer(True, end - now)

    def allowed(self, until: int) -> float:
        return self.rate.over(until)

    def limit(self, now: int) -> float:
        return self.rate.at(now)
