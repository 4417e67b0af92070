"""Searches the smallest burst and the smallest rate that keep goals, by runs of the same arrivals.

The search doubles a number until a run keeps the goals, and then bisects. So the number found keeps them, and the next smaller one does
not: both were run. It is the smallest of all if more never hurts. That is so for a bucket and a window that refuse nothing, because a
larger one grants each request at the same instant or sooner: the k-th grant is the latest of its arrival, the grant before it, and the
instant at which the permits are there, and a larger limit makes none of these later. Where requests are refused,
a larger limit may refuse others, and all that is known is that one less is not enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiorate._simulate.play import TooLong, play
from aiorate.rate import NS_PER_SECOND, Rate

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterable

    from aiorate import Scheduler
    from aiorate._simulate.arrivals import Arrivals
    from aiorate._simulate.goals import Goal
    from aiorate._simulate.play import Admission

__all__ = ["Search", "keeps", "smallest"]

_FASTEST = 1_000_000_000  # permits per second


@dataclass(frozen=True, slots=True)
class Search:
    """What is run again and again."""

    arrivals: Arrivals
    admission: Admission
    goals: tuple[Goal, ...]
    watch: Callable[[int], object]
    """Is told how many requests were run in all."""

    def smallest_burst(self, make: Callable[[int], Scheduler]) -> int | None:
        """The smallest burst, of which ``make`` makes a scheduler; None: no burst is enough."""
        permits = self.admission.permits
        return smallest(self._runs(make), permits, permits * len(self.arrivals.instants))

    def smallest_rate(self, make: Callable[[Rate], Scheduler], period_ns: int) -> Rate | None:
        """The smallest whole number of permits in ``period_ns``; None: no rate up to 1 000 000 000/s is enough."""
        most = max(1, _FASTEST * period_ns // NS_PER_SECOND)
        number = smallest(self._runs(lambda number: make(Rate.exactly(number, period_ns))), 1, most)
        return None if number is None else Rate.exactly(number, period_ns)

    def _runs(self, make: Callable[[int], Scheduler]) -> Callable[[int], bool]:
        return lambda number: keeps(play_watched(self, lambda: make(number)), self.goals, len(self.arrivals.instants))


def play_watched(search: Search, make: Callable[[], Scheduler]) -> Iterable[array[int]]:
    """A run; it is cut short if requests would never be granted, or not in this century."""
    most = make().max_permits
    if most is not None and most < search.admission.permits:
        return
    try:
        for waits in play(make, search.arrivals, search.admission):
            yield waits
            search.watch(len(waits))
    except TooLong:
        return


def keeps(run: Iterable[array[int]], goals: tuple[Goal, ...], requests: int) -> bool:
    """Whether the waits keep the goals. Ends as soon as too many missed one. A run that is too short does not."""
    left = [goal.allowed(requests) for goal in goals]
    for waits in run:
        requests -= len(waits)
        for place, goal in enumerate(goals):
            left[place] -= goal.missed(waits)
        if min(left) < 0:
            return False
    return requests == 0


def smallest(enough: Callable[[int], bool], least: int, most: int) -> int | None:
    """A number from ``least`` to ``most`` that is enough while the next smaller one is not, or is below ``least``; None: ``most`` is not.

    The smallest, if every number above one that is enough is enough too.
    """
    low, high = least - 1, least  # low is not enough
    while not enough(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
