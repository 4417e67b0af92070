"""The k-th grant is due at exactly its share of the schedule: after a thousand million grants, at any rate."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

import aiorate
from aiorate.testing import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

RATES = ["1/day", "0.3/s", "7/s", "3/250ms", "12345/s", "80000/s", "83300/s", "10_000_000/s", "3e9/s"]
PACED: dict[str, Callable[[str], aiorate.Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TokenPool-burst": lambda rate: aiorate.TokenPool(rate, burst_ratio=1.1),
    "TicksAccumulator": aiorate.TicksAccumulator,
    "BurstCompensation": aiorate.BurstCompensation,
    "BurstCompensation-0.3": lambda rate: aiorate.BurstCompensation(rate, strictness=0.3),
    "BurstRatio": lambda rate: aiorate.BurstRatio(rate, ratio=7.3),
    "SmoothBursty": aiorate.SmoothBursty,
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=1),
}


def share(rate: str, k: int | Fraction) -> int:
    """The instant at which the time of k permits has passed, rounded up to whole ns."""
    exact = aiorate.Rate.parse(rate)
    return -(-k * exact.period_ns // exact.permits)


def test_every_grant_under_load_is_due_at_exactly_its_share() -> None:
    """Even if a permit lasts a fraction of a nanosecond more: google/guava#5290 ran 83 300/s for 80 000/s."""
    for strategy, rate in product(PACED, RATES):
        assert simulate(PACED[strategy](rate), [0] * 250) == [share(rate, k) for k in range(250)], (strategy, rate)


def test_the_thousand_millionth_grant_is_due_at_its_share() -> None:
    """Large requests stand for many small ones: the next request is due at their share of the schedule."""
    sizes = [1, 999_999_999, 1, 1, 7, 3_000_000_019, 1, 1]
    for strategy, rate in product(set(PACED) - {"TokenBucket"}, RATES):
        scheduler, due, exact = PACED[strategy](rate), list[int](), list[int]()
        for place, permits in enumerate(sizes):
            due.append(max(scheduler.peek(permits, due[-1] if due else 0), 0))
            scheduler.take(permits, due[-1])
            paid_now = Fraction(0)
            if strategy.startswith("TokenPool"):  # it lets a request larger than itself through when it is full, and owes the rest
                paid_now = min(permits, max(2, Fraction(scheduler.rate.permits, scheduler.rate.period_ns) * 1_000_000)) - Fraction(1)
            exact.append(share(rate, sum(sizes[:place]) + paid_now))
        assert due == exact, (strategy, rate)


def test_a_full_bucket_adds_its_burst_and_nothing_else() -> None:
    """The n-th admission of a bucket of B is at (n - B) / rate."""
    for rate in ("7/s", "1/day", "80000/s", "12345/s"):
        assert simulate(aiorate.TokenBucket(rate, burst=5), [0] * 500) == [share(rate, max(0, k - 4)) for k in range(500)]


def test_a_window_lets_exactly_its_permits_through_per_period() -> None:
    for rate in ("7/s", "100/60s", "3/250ms", "1/day"):
        n, period = aiorate.Rate.parse(rate).permits, aiorate.Rate.parse(rate).period_ns
        assert simulate(aiorate.SlidingWindow(rate), [0] * (n * 20)) == [k // n * period for k in range(n * 20)]


def test_late_timers_do_not_add_up() -> None:
    """dotnet/runtime#74056: timers late by a little made 1.5 s per permit of 1 s. A request in line is booked from its due instant."""
    for strategy in set(PACED) - {"TicksAccumulator"}:
        scheduler, now = PACED[strategy]("7/s"), 0
        for k in range(300):
            due = max(scheduler.peek(1, now), 0)
            assert due == max(now, share("7/s", k)), strategy
            now = due + k * 7_919 % 20_000_000
            scheduler.take(1, now, since=0)
