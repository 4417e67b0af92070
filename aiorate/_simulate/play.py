"""Plays arrivals through a scheduler, in virtual time: no event loop, no clock, whole nanoseconds.

Requests wait in one line in order of arrival, and are woken exactly on time. That is what a `Limiter` does on an event loop that is
never late. With keys, each key has a scheduler and a line, as in a `KeyedLimiter`.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorate._simulate.errors import ArrivalsError
from aiorate.meter import FAR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aiorate import Scheduler
    from aiorate._simulate.arrivals import Arrivals

__all__ = ["REFUSED", "Admission", "TooLong", "play"]

REFUSED = -1
"""In place of a wait."""
_CHUNK = 1 << 15
_LAST = (1 << 63) - 1  # what fits in an array


class TooLong(ArrivalsError):
    """A request would wait for centuries."""

    def __init__(self) -> None:
        super().__init__("some requests would wait for more than 200 years. Ask for a higher rate, or refuse some by --max-wait.")


@dataclass(frozen=True, slots=True)
class Admission:
    """What each request asks for, and when it is refused."""

    permits: int = 1
    max_wait: int | None = None
    """A request that would wait longer (ns) is refused; None: none is."""
    max_waiting: int | None = None
    """A request that would have to wait, and finds this number of others waiting, is refused; None: none is."""

    @property
    def refuses(self) -> bool:
        """Whether requests may be refused."""
        return self.max_wait is not None or self.max_waiting is not None


def _nothing() -> int:
    """In place of a meter's clock, or of a grab: nothing is taken."""
    return 0


def play(make: Callable[[], Scheduler], arrivals: Arrivals, admission: Admission) -> Iterator[array[int]]:
    """The waits of all requests in ns, in the order of ``arrivals``, in portions; `REFUSED` for a refused one.

    ``make`` makes a scheduler, one for each key. Raises ValueError if a request asks for more permits than can ever be granted,
    and `TooLong`.
    """
    waits = array("q")
    for begin, end in arrivals.lines():
        line = _Line(make(), admission)
        for place in range(begin, end, _CHUNK):
            part = arrivals.instants[place : min(place + _CHUNK, end)]
            more = list(map(line.ask, part)) if admission.refuses else line.serve(part)
            if line.now > _LAST:
                raise TooLong
            waits.extend(more)
            if len(waits) >= _CHUNK:  # together, where keys have few requests each
                yield waits
                waits = array("q")
    if waits:
        yield waits


class _Line:
    """One line before one scheduler."""

    def __init__(self, scheduler: Scheduler, admission: Admission) -> None:
        scheduler.receipts = False  # no permit comes back
        self._take = scheduler.take
        self._meter = scheduler.meter if admission.permits == 1 else None
        self._permits = admission.permits
        self._max_wait = admission.max_wait
        self._most = admission.max_waiting
        self._waiting: deque[int] = deque()  # when those in line are granted, if their number matters
        self.now = 0
        """When the latest request was granted."""

    def serve(self, instants: Sequence[int]) -> list[int]:
        """The waits of requests that are never refused."""
        take, permits, now, meter = self._take, self._permits, self.now, self._meter
        waits: list[int] = []
        append = waits.append
        grab, skip = _nothing, _nothing
        if meter is not None:  # it takes what lies ready, in a fraction of the time
            meter.read = skip = iter(instants).__next__  # each grab reads the instant of its request; for a request in line, none does
            meter.until = FAR
            grab = meter.grab
        for made in instants:
            if made >= now:  # nobody is in line
                if grab():
                    now = made
                    append(0)
                    continue
                at = take(permits, made)
                if at <= made:
                    now = made
                    append(0)
                    continue
                now = at
                take(permits, at, made)
            else:
                skip()
                at = take(permits, now, made)
                if at > now:
                    now = at
                    take(permits, at, made)
            append(now - made)
        self.now = now
        return waits

    def ask(self, made: int) -> int:
        """The wait of one request, or `REFUSED`."""
        take, permits, now, max_wait, most = self._take, self._permits, self.now, self._max_wait, self._most
        if made > now:
            now = made
        # Behind others it is refused before it is tried, because what is tried may be granted.
        if now > made and (self._is_full(made) or (max_wait is not None and now - made > max_wait)):
            return REFUSED
        at = take(permits, now, made)
        if at > now:
            if (max_wait is not None and at - made > max_wait) or (now == made and self._is_full(made)):
                return REFUSED
            now = at
            take(permits, at, made)
        self.now = now
        if most is not None and now > made:
            self._waiting.append(now)
        return now - made

    def _is_full(self, made: int) -> bool:
        """Whether as many requests wait at that instant as may."""
        if self._most is None:
            return False
        waiting = self._waiting
        while waiting and waiting[0] <= made:
            waiting.popleft()
        return len(waiting) >= self._most
