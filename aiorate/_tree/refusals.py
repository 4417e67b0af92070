"""Why a request gets no permits: the errors, in words. Durations are in ns; an unknown one is None."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from aiorate._errors import LimiterClosed, LineFull, WaitTooLong
from aiorate._rate import ns_to_seconds

if TYPE_CHECKING:
    from aiorate._schedulers.amounts import Permits


def named(permits: Permits) -> str:
    return f"acquire({permits})" if isinstance(permits, int) else "reserve()"


def closed(name: str | None) -> LimiterClosed:
    limit = repr(name) if name else "the limit"
    return LimiterClosed(f"{limit} is closed. Create a new one, or reopen a Limiter: limiter.apply(RateSpec(rate, burst_ratio, 'start')).")


def full(permits: Permits, most: int) -> LineFull:
    return LineFull(f"{named(permits)}: the line is full (max_waiting={most}). Nothing was spent. Try later.")


def too_long(permits: Permits, most_ns: int, wait: int | None, why: str = "") -> WaitTooLong:
    """The request would wait for ``wait``, and may wait for ``most_ns``."""
    seconds, most = inf if wait is None else ns_to_seconds(wait), ns_to_seconds(most_ns)
    return WaitTooLong(
        f"{named(permits)} would wait {seconds:.6g} s{why}, but max_wait is {most:g} s. Nothing was spent. Try later, or raise max_wait.",
        seconds,
        most,
    )


def too_large(permits: Permits, most: int) -> ValueError:
    """The request in line is for more than is granted at once since a rate was changed."""
    return ValueError(f"a request for {permits} can no longer be granted: {most} is the most at once now.")


def overdue(permits: Permits, most_ns: int, more: int | None) -> WaitTooLong:
    """The request has waited for ``most_ns``, and would wait for ``more`` on top."""
    seconds = ns_to_seconds(most_ns)
    return WaitTooLong(
        f"{named(permits)} was not granted within max_wait ({seconds:g} s). Nothing was spent. Try later, or raise max_wait.",
        inf if more is None else ns_to_seconds(most_ns + more),
        seconds,
    )


def no_lease(call: str) -> RuntimeError:
    return RuntimeError(
        f"{call}: without a lease, or outside an event loop, a RedisLimiter has permits only for those that wait, as a RedisBudget has."
        " Await acquire(max_wait=0), which asks the store once, or max_wait=0.1 if it is shared. Or make it with lease=0.05, which books"
        " permits ahead, and for code outside event loops with scope='process'."
    )
