"""The statistics of a limiter: imported only when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from aiorate._rate import ns_to_seconds
from aiorate._schedulers.amounts import count_of
from aiorate._tree.node import Node

if TYPE_CHECKING:
    from aiorate._rate import Rate
    from aiorate._tree.limit import Limit


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts since the limiter was made."""

    granted: int
    """Permits granted and kept: neither given back by a cancellation nor refunded."""
    refused: int
    """Requests refused by `try_acquire`, `max_wait` or `max_waiting`."""
    cancelled: int
    """Requests cancelled while in line, or waiting for a place, or before they could run."""
    refunded: int
    """Permits refunded."""
    waiting: int
    """Requests in line, including those that wait for a place under ``max_concurrency``."""
    waited_total: float
    """Seconds that granted requests waited in all, for a place too."""
    waited_max: float
    """Seconds of the longest wait of a granted request."""
    waited_p50: float
    """Seconds that half of the requests that waited did not exceed; this and the next two are at most 7 % too long."""
    waited_p90: float
    """Seconds that 90 % of the requests that waited did not exceed."""
    waited_p99: float
    """Seconds that 99 % of the requests that waited did not exceed."""
    charged: int
    """Permits charged."""
    available: int
    """Whole permits available now, at once: a server reports them as ``RateLimit: r``. 0 while somebody waits, and while paused.

    For a limit in a store: those in hand, and what the store had left when it answered this process last.
    """
    skipped: int
    """Permits that fell due while somebody waited and the loop was late by more than `catch_up`, and are given up."""
    rate: Rate
    """The rate in force."""
    paused_until: float | None
    """Clock reading in seconds at which the pause ends; None: not paused; infinite: stopped."""
    next_at: float | None
    """Clock reading in seconds for when the first in line is scheduled; None: nobody waits; infinite: stopped, or unknown."""
    state: str
    """``local``; of a limit that processes share, ``shared``, or ``degraded`` while its store does not answer."""


def snapshot(node: Limit, places: Limit | None = None) -> Statistics:
    """The counters as they are now. ``places`` is the line of requests that wait for a place."""
    node.informed()
    counters = node.counters
    next_at: float | None = None
    if (first := node.first()) is not None:
        wait = node.wait_for(first.wanted, node.now(), 0, first if isinstance(first, Node) else None)
        next_at = inf if wait is None else ns_to_seconds(node.tree.read() + wait)
    paused_until = None if node.paused_until is None else ns_to_seconds(node.paused_until + node.tree.shift)
    return Statistics(
        granted=count_of(node.granted - counters.given_back),
        refused=counters.refused,
        cancelled=counters.cancelled,
        refunded=counters.refunded,
        waiting=node.line.waiting + (0 if places is None else places.line.waiting - (places.standing is not None)),
        waited_total=ns_to_seconds(counters.waited_total),
        waited_max=ns_to_seconds(counters.waited_max),
        waited_p50=ns_to_seconds(counters.percentile(50)),
        waited_p90=ns_to_seconds(counters.percentile(90)),
        waited_p99=ns_to_seconds(counters.percentile(99)),
        charged=counters.charged,
        available=node.available(),
        skipped=counters.skipped,
        rate=node.scheduler.rate,
        paused_until=inf if node.stopped else paused_until,
        next_at=next_at,
        state=node.provider.state,
    )
