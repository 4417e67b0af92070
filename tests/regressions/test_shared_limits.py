"""Limits above limits: every level grants, refunds, closes and estimates with those below it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from helpers.calls import Calls
from helpers.driving import SECOND, one_loop, turns
from helpers.levels import at_rest
from helpers.server import most_in_any_window
from helpers.stores import RealServer, TimedClient
from helpers.strategies import EACH

import aiorate
from aiorate import Budget, BurstCompensation, KeyedLimiter, Limiter, TokenBucket
from aiorate.redis import RedisLimiter
from aiorate.testing import ManualClock, VirtualLoop


def virtually(main: Coroutine[Any, Any, Any]) -> Any:
    """Run it in virtual time, for at most a virtual minute."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(asyncio.wait_for(main, 60))


@pytest.mark.parametrize("kind", ["keys", "budget"])
def test_three_levels_go_on_after_a_thousand_waits(kind: str) -> None:
    """The top level never heard that its grants had resumed, and granted nothing after the thousandth."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        top = Limiter("1000/s")
        tenants = KeyedLimiter[str](lambda key: "2000/s", shared=top)
        tenant = tenants["acme"]
        if kind == "keys":
            users = KeyedLimiter[int](lambda key: "1000/s", shared=tenant)
            await asyncio.gather(*(users.acquire(number % 3) for number in range(3_000)))
        else:
            budget = Budget(tokens="2000/s", requests=tenant)

            async def call() -> None:
                async with budget.reserve():
                    pass

            await asyncio.gather(*(call() for _ in range(3_000)))
        assert 0 == top._dispatcher.waiters.resuming == tenant._dispatcher.waiters.resuming
        assert 3_000 == top.statistics().granted == tenant.statistics().granted
        return loop.time()

    assert 2.9 < virtually(main()) < 3.2


class Tower:
    """Four levels of one bucket each, of ten permits and as many a second, by a clock moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock(SECOND)
        top = self.bucket()
        region = KeyedLimiter[str](lambda key: self.bucket(), shared=top)["region"]
        team = KeyedLimiter[str](lambda key: self.bucket(), shared=region)["team"]
        self.user = KeyedLimiter[str](lambda key: self.bucket(), shared=team)["user"]
        self.levels = [self.user, team, region, top]

    def bucket(self) -> Limiter:
        return Limiter(TokenBucket("10/s", burst=10), clock=self.clock)

    @property
    def available(self) -> list[int]:
        return [limiter._dispatcher.scheduler.available(self.clock.now()) for limiter in self.levels]

    @property
    def at_rest(self) -> bool:
        return at_rest(self.levels, self.clock)


@one_loop
@pytest.mark.parametrize("held_up", range(4))
@pytest.mark.parametrize("when", ["waiting", "granted"])
async def test_a_cancelled_request_gives_back_at_all_levels(held_up: int, when: str) -> None:
    """Whichever level it waited for, and also just after its grant."""
    tower = Tower()
    tower.levels[held_up]._dispatcher.scheduler.take(10, SECOND)
    waiting = asyncio.ensure_future(tower.user.acquire(4))
    await turns(3)
    assert [10] * held_up + [0] + [10] * (3 - held_up) == tower.available

    if when == "granted":
        tower.clock.advance(0.4)
        assert [6] * held_up + [0] + [6] * (3 - held_up) == tower.available
    waiting.cancel()
    await turns(3)

    left = 4 if when == "granted" else 0
    assert [10] * held_up + [left] + [10] * (3 - held_up) == tower.available
    assert tower.at_rest
    assert 0 == sum(limiter.statistics().granted for limiter in tower.levels)


@one_loop
async def test_a_grant_without_a_wait_leaves_no_receipt_at_any_level() -> None:
    """A grant after a wait leaves none either."""
    tower = Tower()
    assert tower.user.try_acquire(3)
    await tower.user.acquire(3)
    assert tower.at_rest

    waiting = asyncio.ensure_future(tower.user.acquire(6))
    await tower.clock.run(1)

    assert 0.2 == waiting.result()
    assert [6] * 4 == [limiter._dispatcher.granted - 6 for limiter in tower.levels]
    assert tower.at_rest


@one_loop
@pytest.mark.parametrize("level", range(1, 4))
async def test_pause_of_any_level_holds_the_levels_below(level: int) -> None:
    """Meanwhile no request stands in the lines above it."""
    tower = Tower()
    top = tower.levels[-1]
    top.charge(10)
    waiting = asyncio.ensure_future(tower.user.acquire())
    await turns(3)
    assert [1] * 4 == [limiter.statistics().waiting for limiter in tower.levels]

    tower.levels[level].pause(3)
    assert [1] * (level + 1) + [0] * (3 - level) == [limiter.statistics().waiting for limiter in tower.levels]
    await tower.clock.run(2.5)
    assert not waiting.done()
    await tower.clock.run(0.6)

    assert (3 if level < 3 else 3.1) == waiting.result()
    assert tower.at_rest


@one_loop
@pytest.mark.parametrize("level", range(1, 4))
async def test_closing_any_level_refuses_the_levels_below(level: int) -> None:
    """Waiters get an error, and so do later callers, whose wait would have no end."""
    tower = Tower()
    tower.levels[-1].charge(10)
    waiting = [asyncio.ensure_future(tower.user.acquire()) for _ in range(3)]
    await turns(3)

    await tower.levels[level].aclose()
    await turns(6)

    for task in waiting:
        assert isinstance(task.exception(), aiorate.LimiterClosed)
    with pytest.raises(aiorate.LimiterClosed):
        tower.user.try_acquire()
    with pytest.raises(aiorate.LimiterClosed):
        await tower.user.acquire(max_wait=1)
    assert float("inf") == tower.user.delay()
    assert tower.at_rest


@pytest.mark.parametrize("first", range(4))
def test_next_event_loop_begins_without_a_line_at_any_level(first: int) -> None:
    """Whichever level is asked first. Grants that could not resume leave no count behind."""
    tower = Tower()
    tower.levels[2].charge(9)
    tasks: list[asyncio.Task[float]] = []

    async def wait() -> None:
        tasks.extend(asyncio.ensure_future(tower.user.acquire()) for _ in range(3))
        await turns(3)
        assert [2, 1, 1, 0] == [limiter.statistics().waiting for limiter in tower.levels]
        tower.clock.advance(0.1)  # grants one, which can no longer resume
        asyncio.get_running_loop().stop()

    async def ask() -> None:
        tower.levels[first].delay()
        assert not tower.user.try_acquire()
        await tower.clock.run(1)
        assert tower.user.try_acquire()
        assert [0] * 4 == [limiter.statistics().waiting for limiter in tower.levels]

    loop = asyncio.new_event_loop()
    begun = loop.create_task(wait())
    loop.run_forever()
    del begun
    asyncio.run(ask())
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
    assert tower.at_rest


@pytest.mark.parametrize("first", range(3))
def test_next_event_loop_begins_without_a_line_of_budgets(first: int) -> None:
    """Whichever of three levels is asked first. A grant that could not resume leaves no count behind."""
    clock = ManualClock(SECOND)
    top = Budget(tokens=TokenBucket("10/s", burst=10), clock=clock)
    team = Budget(tokens=TokenBucket("10/s", burst=10), shared=top, clock=clock)
    levels = [Budget(tokens=TokenBucket("100/s", burst=100), shared=team, clock=clock), team, top]
    calls = Calls(levels[0], clock)

    async def wait() -> None:
        await calls.queue("abcd", tokens=10)
        assert [3, 1, 0] == [budget.waiting for budget in levels]
        clock.advance(1)  # grants one, which can no longer resume
        asyncio.get_running_loop().stop()

    async def ask() -> list[float]:
        levels[first].delay()
        await clock.run(60)
        waited = []
        for budget in levels:
            async with budget.reserve(tokens=3) as lease:
                waited.append(lease.waited)
        return waited

    loop = asyncio.new_event_loop()
    begun = loop.create_task(wait())
    loop.run_forever()
    del begun
    assert [0.0] * 3 == asyncio.run(ask())
    for task in calls.tasks.values():
        task.cancel()
    loop.run_until_complete(asyncio.gather(*calls.tasks.values(), return_exceptions=True))
    loop.close()
    assert [0] * 3 == [budget.waiting for budget in levels]
    assert not any(budget._dispatcher.scheduler.receipts for budget in levels)


@one_loop
@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("name", ["TokenPool", "BurstCompensation-strict", "BurstRatio", "TokenBucket-paced"])
async def test_a_shared_limit_is_late_by_its_own_catch_up(name: str, depth: int) -> None:
    """After a stall of 1 s, ten permits came in a tenth of a second, where the shared limit's bound is two."""
    clock = ManualClock(SECOND)
    shared = top = Limiter(EACH[name](), catch_up=0, clock=clock)
    for _ in range(depth - 2):
        shared = KeyedLimiter[str](lambda key: Limiter("100/s", catch_up=1, clock=clock), shared=shared)["between"]
    keyed = KeyedLimiter[str](lambda key: Limiter("9/s", catch_up=1, clock=clock), shared=shared)
    granted: list[int] = []

    async def ask() -> None:
        await keyed.acquire("a")
        granted.append(clock.now())

    tasks = [asyncio.ensure_future(ask()) for _ in range(60)]
    await clock.run(1)
    for _ in range(3):
        clock.set(clock.now() + SECOND)  # timers fire a second late
        await clock.run(0.3)
    await clock.run(20)

    assert all(task.done() for task in tasks)
    for seconds in (0.05, 0.1, 0.2, 0.5, 1):
        assert most_in_any_window(granted, int(seconds * SECOND)) <= (top.bound(seconds) or 0)


@one_loop
@pytest.mark.parametrize("depth", [2, 3, 4])
async def test_late_timers_cost_no_rate_at_any_depth(depth: int) -> None:
    """A late wake-up of one limit is made up for below and above it, within the catch_up of each."""
    clock = ManualClock(SECOND)
    shared = Limiter(BurstCompensation("10/s"), clock=clock)
    for _ in range(depth - 1):
        shared = KeyedLimiter[str](lambda key: Limiter(BurstCompensation("10/s"), clock=clock), shared=shared)["key"]
    granted: list[int] = []

    async def ask() -> None:
        await shared.acquire()
        granted.append(clock.now())

    tasks = [asyncio.ensure_future(ask()) for _ in range(101)]
    for step in range(1, 10_000 // 15 + 2):  # timers fire up to 15 ms late
        await turns(6)
        clock.set(SECOND + step * 15_000_000)
    await turns(6)

    assert all(task.done() for task in tasks)
    assert granted[-1] <= 11 * SECOND + 15_000_000


@one_loop
async def test_a_refund_and_a_charge_of_a_key_reach_all_levels() -> None:
    """A refund of 5 to a key never reached the limits above, and neither did its debt."""
    tower = Tower()
    assert tower.user.try_acquire(8)

    tower.user.refund(5)
    assert [7] * 4 == tower.available
    tower.user.charge(6)
    assert [1] * 4 == tower.available
    assert [(5, 6, 3)] * 4 == [
        (statistics.refunded, statistics.charged, statistics.granted) for statistics in map(Limiter.statistics, tower.levels)
    ]
    waiting = asyncio.ensure_future(tower.user.acquire(4))
    await turns(3)
    tower.user.refund(3)
    await turns(6)

    assert 0 == waiting.result()
    assert [0] * 4 == tower.available
    assert tower.at_rest


@one_loop
@pytest.mark.parametrize(("used", "left"), [(1, 9), (8, 2), (0, 10), (4, 6)])
async def test_settling_a_lease_reaches_all_levels(used: int, left: int) -> None:
    """Unused permits return by receipt and more is owed, in each limit that the reservation took from."""
    tower = Tower()
    calls = Calls(Budget(requests=TokenBucket("10/s", burst=10), tokens=tower.user, clock=tower.clock), tower.clock)
    await calls.queue("a", tokens=4)
    assert [6] * 4 == tower.available

    await calls.end("a", tokens=used)

    assert [left] * 4 == tower.available
    assert tower.at_rest


@one_loop
async def test_a_failed_call_is_refunded_at_all_levels() -> None:
    """Also a call that had to wait for the top level."""
    tower = Tower()
    tower.levels[-1].charge(10)
    budget = Budget(requests=TokenBucket("10/s", burst=10), tokens=tower.user, clock=tower.clock, on_error="refund")
    calls = Calls(budget, tower.clock)
    await calls.queue("a", tokens=5)
    await tower.clock.run(0.5)
    assert [5, 5, 5, 0] == tower.available

    await calls.end("a", error=OSError("the server hung up"))

    assert [10, 10, 10, 5] == tower.available
    assert tower.at_rest


def test_a_charge_of_a_key_reaches_a_limit_in_the_store() -> None:
    """The tenth of a second owed at the top was not waited for. A refund returns nothing there, as documented."""

    async def main(store: RealServer) -> None:
        loop, shared = asyncio.get_running_loop(), RedisLimiter(TimedClient(store), "shared-limits", "10/s")
        keyed = KeyedLimiter[str](lambda key: TokenBucket("100/s", burst=100), shared=shared)
        await keyed.acquire("a")
        begun = loop.time()
        keyed["a"].charge(10)
        keyed["a"].refund(5)
        await keyed.acquire("b")
        assert pytest.approx(1.1, abs=0.01) == loop.time() - begun
        assert (10, 5) == (shared.statistics().charged, shared.statistics().refunded)
        await keyed.aclose()
        await shared.aclose()

    with RealServer() as store:
        virtually(main(store))


def test_a_limit_whose_keys_are_held_is_not_evicted() -> None:
    """Another would be made in its place, and the tenant would have two."""
    tenants = KeyedLimiter[str](lambda key: TokenBucket("10/s", burst=10))
    users = KeyedLimiter[str](lambda key: TokenBucket("10/s", burst=10), shared=tenants["acme"])
    ann = users["ann"]
    del users

    assert 0 == tenants.evict()
    assert "acme" in tenants
    del ann
    assert 1 == tenants.evict()


@one_loop
async def test_the_estimate_counts_the_lines_of_all_levels() -> None:
    """With a request in line, only two levels were asked, so max_wait admitted callers that could not be served in time."""
    tower = Tower()
    tower.levels[-1].set_rate("1/s")
    tower.levels[-1].charge(10)
    waiting = [asyncio.ensure_future(limiter.acquire()) for limiter in (tower.user, tower.user, tower.levels[1], tower.levels[2])]
    await turns(3)

    assert [5, 4, 3, 2] == [limiter.delay() for limiter in tower.levels]
    with pytest.raises(aiorate.WaitTooLong):
        await tower.user.acquire(max_wait=4.9)
    late = asyncio.ensure_future(tower.user.acquire(max_wait=5))
    await tower.clock.run(10)

    assert [1, 2, 3, 4, 5] == sorted([task.result() for task in [*waiting, late]])
    assert tower.at_rest
