"""A signal handler that raises while keys are evicted or a lease is settled: no lock stays taken, no limit is exceeded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.driving import LONG
from helpers.interrupts import Interrupt
from helpers.threads import in_thread

from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, TokenBucket
from aiorate.testing import ManualClock

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a finalizer that it interrupts


def limiters(clock: ManualClock) -> Any:
    return KeyedLimiter[str](lambda key: Limiter(TokenBucket("10/s", 2), scope="process", clock=clock), scope="process", max_keys=2)


def budgets(clock: ManualClock) -> Any:
    return KeyedBudget[str](lambda key: Budget(requests=TokenBucket("10/s", 2), scope="process", clock=clock), scope="process", max_keys=2)


def look_up(keyed: Any) -> None:
    for key in ("a", "c", "d", "a", "b"):
        keyed[key]


@pytest.mark.parametrize("act", [lambda keyed: keyed.evict(), look_up], ids=["evict", "look up"])
@pytest.mark.parametrize("make", [limiters, budgets])
def test_interrupted_evictions_leave_keys_to_threads(make: Callable[[ManualClock], Any], act: Callable[[Any], object]) -> None:
    """Keys in use stay the same, and other threads look keys up."""
    instant, interrupted = 0, True
    while interrupted:
        instant += 1
        keyed, interrupt = make(ManualClock()), Interrupt(instant, KeyboardInterrupt)
        held = [keyed["a"], keyed["b"]]

        interrupted = interrupt.run(lambda keyed=keyed: act(keyed))

        found = in_thread(lambda keyed=keyed: [keyed[key] for key in ("a", "b")])
        assert held == found.result(LONG), interrupt.where
        assert {"a", "b"} <= set(keyed), interrupt.where
    assert instant > 10


@pytest.mark.parametrize("used", [0, 10, 45])
@pytest.mark.parametrize("shares", [False, True])
def test_an_interrupted_correction_is_not_made_twice(used: int, shares: bool) -> None:
    """Nor is more refunded at the end of the block than the lease took."""
    instant, interrupted = 0, True
    while interrupted:
        instant += 1
        clock = ManualClock()
        team = Budget(tokens=TokenBucket("1/h", 100), scope="process", clock=clock) if shares else None
        budget = Budget(tokens=TokenBucket("1/h", 100), scope="process", clock=clock, shared=team)
        with budget.reserve(tokens=50):
            pass
        interrupt = Interrupt(instant, KeyboardInterrupt)

        def settle(budget: Budget = budget) -> None:
            with budget.reserve(tokens=30, on_error="refund") as lease:
                lease.settle(tokens=used)

        interrupted = interrupt.run(settle)

        for limit in (budget, team):
            assert limit is None or limit.available("tokens") <= 50, interrupt.where
    assert instant > 10
