"""Budgets with `scope="process"`: one line for all loops and threads, and `with budget.reserve(...)` in synchronous code."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest
from helpers.driving import LONG
from helpers.threads import LoopThread, call_in_thread, in_thread, waiting

import aiorate
from aiorate import Budget, Limiter, TokenBucket
from aiorate.testing import ManualClock


def made(clock: ManualClock | None = None, **options: Any) -> Budget:
    """Ten requests and a hundred tokens at once, and as many in each second."""
    dimensions: dict[str, Any] = {"requests": TokenBucket("10/s", burst=10), "tokens": TokenBucket("100/s", burst=100)}
    return Budget(scope="process", clock=clock or ManualClock(), **{**dimensions, **options})


def blocked(budget: Budget, used: int | None = None, **amounts: Any) -> Future[aiorate.Lease]:

    def reserve() -> aiorate.Lease:
        with budget.reserve(**amounts) as lease:
            if used is not None:
                lease.settle(tokens=used)
        return lease

    return in_thread(reserve)


async def awaited(budget: Budget, **amounts: Any) -> aiorate.Lease:
    async with budget.reserve(**amounts) as lease:
        return lease


def test_threads_and_loops_stand_in_one_line() -> None:
    clock = ManualClock()
    budget = made(clock)
    with LoopThread() as loop:
        with budget.reserve(tokens=100):
            pass
        first = loop.start(lambda: awaited(budget, tokens=10))
        waiting(budget, 1)
        second = blocked(budget, tokens=10)
        waiting(budget, 2)
        third = loop.start(lambda: awaited(budget, tokens=10))
        waiting(budget, 3)
        for each in (first, second, third):
            clock.advance(0.1)
            lease = each.result(LONG)
            assert "tokens" == lease.limited_by

        assert 0 == budget.waiting
    assert [0.1, 0.2, 0.3] == pytest.approx([each.result(LONG).waited for each in (first, second, third)])


def test_of_many_threads_that_settle_one_counts() -> None:
    budget = made()
    barrier = threading.Barrier(8)
    with budget.reserve(tokens=100) as lease:
        for thread in [in_thread(lambda: (barrier.wait(LONG), lease.settle(tokens=90))) for _ in range(8)]:  # type: ignore[func-returns-value]
            thread.result(LONG)
    assert 10 == budget.available("tokens")


def test_max_wait_and_max_waiting_hold_for_threads() -> None:
    clock = ManualClock()
    budget = made(clock, max_waiting=1)
    with budget.reserve(tokens=100):
        pass
    with pytest.raises(aiorate.WaitTooLong, match="tokens"), budget.reserve(tokens=50, max_wait=0.4):
        pass
    late = blocked(budget, tokens=50, max_wait=0.5)
    waiting(budget, 1)
    with pytest.raises(aiorate.LineFull), budget.reserve():
        pass
    call_in_thread(lambda: budget.pause(10))
    clock.advance(1)

    assert isinstance(late.exception(LONG), aiorate.WaitTooLong)
    assert 0 == budget.waiting


def shared_limiter(clock: ManualClock) -> list[Budget]:
    limiter = Limiter(TokenBucket("10/s", burst=10), scope="process", clock=clock)
    return [made(clock, requests=limiter) for _ in range(2)]


def shared_budget(clock: ManualClock) -> list[Budget]:
    team = Budget(requests=TokenBucket("10/s", burst=10), scope="process", clock=clock)
    return [made(clock, shared=team) for _ in range(2)]


def test_a_shared_bound_holds_for_threads_and_loops() -> None:
    """Together, and what was not used comes back to both levels."""
    for shared in (shared_limiter, shared_budget):
        clock = ManualClock()
        first, second = shared(clock)
        with first.reserve(requests=8) as lease, LoopThread() as loop:
            task = loop.start(lambda: awaited(second, requests=5))  # noqa: B023
            waiting(second, 1)
            thread = blocked(second, requests=1)
            waiting(second, 2)
            lease.settle(requests=5)

            assert 0.0 == task.result(LONG).waited
            clock.advance(0.1)
            thread.result(LONG)
        assert 0 == second.waiting
