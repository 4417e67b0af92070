"""Defects of limits that share others, found by random histories."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from helpers.strategies import EACH

from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, LimiterClosed, Scheduler, SlidingWindow, TokenBucket
from aiorate.testing import VirtualLoop


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("look", ["statistics", "available"])
def test_first_look_at_a_shared_limit_is_by_the_loops_clock(name: str, look: str) -> None:
    """It was by the monotonic clock, and in a loop of virtual time the shared limit granted nothing for hours."""

    async def main(looks: bool) -> float:
        shared = Limiter(EACH[name]())
        if look == "statistics":
            key = KeyedLimiter[str](lambda key: "1000/s", shared=shared)["a"]
            if looks:
                key.statistics()
        else:
            budget = Budget(tokens="1000/s", calls=shared)
            if looks:
                budget.available("calls")
        return sum([await shared.acquire() for _ in range(20)])

    waited: list[float] = []
    for looks in (False, True):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            waited.append(runner.run(main(looks)))
    assert waited[1] == pytest.approx(waited[0], abs=0.2)  # which is how long it takes to earn a permit or two


class _Interrupted(TokenBucket):
    """A bucket in which the garbage collector calls a finalizer in the middle of a decision."""

    finalizer: Callable[[], object] | None = None
    grants_before: int = 0

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        at = super().take(permits, now, since)
        if at <= now and self.finalizer is not None:
            self.grants_before -= 1
            if self.grants_before < 0:
                finalizer, self.finalizer = self.finalizer, None
                finalizer()
        return at


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("grants_before", [0, 1])
@pytest.mark.parametrize("end", ["cancel", "close"])
def test_finalizer_that_ends_the_request_in_turn_harms_no_other(end: str, grants_before: int, level: int) -> None:
    """All others in line failed with an InvalidStateError, or one never heard of its grant, and receipts were kept forever."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        buckets = [_Interrupted("10/s", burst=2) for _ in range(3)]
        user, team, everybody = limiters = [Limiter(bucket) for bucket in buckets]
        teams = KeyedLimiter[str](lambda key: team, shared=everybody)
        users = KeyedLimiter[str](lambda key: user, shared=lambda key: teams[key])
        assert users.try_acquire("a", 2)
        first = users.acquire("a")
        if end == "close":
            first.send(None)
            finalizer: Callable[[], object] = first.close
        else:
            finalizer = loop.create_task(first).cancel
        others = [loop.create_task(users.acquire("a")) for _ in range(2)]
        await asyncio.sleep(0)
        buckets[level].finalizer, buckets[level].grants_before = finalizer, grants_before
        user.refund(2)  # one decision, for two of them
        await asyncio.wait_for(asyncio.gather(*others), 60)
        assert loop.time() == 0
        assert buckets[level].finalizer is None
        for limiter in limiters:
            assert limiter.statistics().granted == 2
            assert limiter._dispatcher.counters.returnable == limiter._dispatcher.waiters.resuming == 0

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize("amount", [0, 1])
@pytest.mark.parametrize("waits", [False, True])
def test_closed_shared_budget_refuses_requests_that_take_0_of_it(waits: bool, amount: int) -> None:
    """They were granted if that was possible at once, although `delay()` was infinite, and refused if they had to wait."""

    async def main() -> None:
        team = Budget(requests="1/s")
        user = KeyedBudget[str](lambda key: Budget(tokens="10/s"), shared=team)["ann"]
        if waits:
            async with user.reserve(tokens=2):
                pass
        await team.aclose()
        with pytest.raises(LimiterClosed, match="shared budget of requests is closed"):
            await user.reserve(tokens=1, requests=amount).__aenter__()
        assert user.delay(tokens=1, requests=amount) == float("inf")

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
def test_reservation_above_a_lower_rate_names_the_dimension(waits: bool, keyed: bool) -> None:
    """The error named `take()`, or `acquire()`, which nobody had called."""

    async def main() -> None:
        calls = Limiter(SlidingWindow("10/s"))
        budget = Budget(tokens="100/s", calls=calls)
        if keyed:
            budget = KeyedBudget[str](lambda key: Budget(tokens="100/s"), shared=budget)["ann"]
        lease = budget.reserve(calls=50)
        if waits:
            async with budget.reserve(calls=1):
                entering = asyncio.create_task(lease.__aenter__())
                await asyncio.sleep(0)
                calls.set_rate("4/s")
        else:
            calls.set_rate("4/s")
            entering = asyncio.create_task(lease.__aenter__())
        with pytest.raises(ValueError, match=r"reserve\(calls=10\) can no longer be granted: 4 is the most at once now. Reserve again."):
            await entering
        async with budget.reserve(calls=3 if waits else 4) as granted:
            assert granted.waited == 0

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize("shared", [SlidingWindow("20/s"), TokenBucket("20/s", burst=20)], ids=["window", "bucket"])
def test_estimate_beside_more_callers_than_fit_at_once(shared: Scheduler) -> None:
    """It raised a ValueError: those behind the first 32 were taken for one request, of more permits than the limit ever grants."""

    async def main() -> None:
        limit = Limiter(shared)
        keyed = KeyedLimiter[str](lambda key: TokenBucket("12/min", burst=1, initial=0), shared=limit)
        tasks = [asyncio.create_task(limit.acquire()) for _ in range(100)]
        await asyncio.sleep(0)
        estimate = keyed["a"].delay()
        assert 5 <= estimate <= await keyed.acquire("a", max_wait=estimate + 1)
        for task in tasks:
            task.cancel()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize("name", EACH)
def test_reset_keeps_no_receipts_that_nobody_holds(name: str) -> None:
    """Two strategies kept records of all takes after a reset."""
    limiter = Limiter(EACH[name]())
    limiter.reset()
    assert not limiter.scheduler.receipts
