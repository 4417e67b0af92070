"""Schedulers at work, without waiting and without a loop."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from aiorate._errors import kind_of
from aiorate._schedulers.interface import Scheduler, check_instant

if TYPE_CHECKING:
    from collections.abc import Iterable


def simulate(scheduler: Scheduler, requests: Iterable[int | tuple[int, int]]) -> list[int]:
    """The instants (ns) at which requests in one line are granted, if each is woken exactly on time.

    A request is the instant (ns) at which it is made, for one permit, or a pair (instant, permits). They must be in order of time.
    """
    if not isinstance(scheduler, Scheduler):
        raise TypeError(f"simulate() takes a strategy such as TokenBucket('10/s', burst=5), not {kind_of(scheduler)}.")
    granted, now, latest = list[int](), 0, -inf
    for request in requests:
        if isinstance(request, tuple) and len(request) != 2:
            raise ValueError(f"simulate(): a request must be an instant in ns or a pair (instant, permits), not {request!r}.")
        made, permits = request if isinstance(request, tuple) else (request, 1)
        check_instant("simulate(): a request", made)
        if made < latest:
            raise ValueError(f"simulate(): requests must be in order of time; {made} came after {latest}.")
        latest = made
        now = max(now, made) if granted else made
        at = scheduler.take(permits, now, min(made, now))
        if at > now:
            now = at
            scheduler.take(permits, now, min(made, now))
        granted.append(now)
    return granted
