"""Schedulers at work, without waiting and without a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._errors import kind_of
from aiorate._rate import NS_PER_SECOND
from aiorate._schedulers.interface import Scheduler, check_ns

if TYPE_CHECKING:
    from collections.abc import Iterable


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
