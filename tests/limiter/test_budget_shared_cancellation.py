"""Reservations that are cancelled at any point of their way through a shared limit."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from helpers.calls import Calls, at_rest
from helpers.driving import SECOND, SteppedClock, one_loop, others, turns
from helpers.server import most_in_any_window
from helpers.strategies import EACH

from aiorate import Budget, Limiter, TokenBucket

pytestmark = one_loop


@pytest.fixture
def shared_in_real_time() -> Limiter:
    return Limiter(TokenBucket("1/h", burst=100))


class Scene:
    """Two budgets and a direct caller at one shared limit: "b" is cancelled at a given iteration after a given timer."""

    def __init__(self, name: str) -> None:
        self.clock = SteppedClock()
        self.shared = Limiter(EACH[name](), clock=self.clock)
        self.own = [TokenBucket("5/s", burst=1), TokenBucket("5/s", burst=1)]
        self.one, self.two = (Calls(Budget(own=own, tokens=self.shared, clock=self.clock), self.clock) for own in self.own)

    async def play(self, step: int, turn: int) -> dict[str, int]:
        """The instant of each grant. Timers are fired one by one, each followed by eight iterations of the loop."""
        self.shared.delay()  # its schedule begins now
        while self.shared.try_acquire():
            pass
        for name in "abc":
            self.one.ask(name)
            self.two.ask(name.upper())
        direct = asyncio.ensure_future(self.shared.acquire())
        await turns(5)
        fired = 0
        while self.clock.next_timer is not None and fired < 40:
            self.clock.fire()
            fired += 1
            for count in range(8):
                if fired == step and count == turn:
                    self.one.tasks["b"].cancel()
                await turns(1)
        assert direct.done()
        return {**self.one.granted, **self.two.granted}


@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket", "TokenBucket-paced", "SlidingWindow"])
async def test_a_reservation_may_be_cancelled_at_every_point(name: str) -> None:
    """No permit is lost by one in its own line, at its head, in the shared line, granted in either, or inside."""
    ended = set()
    for step in range(12):
        for turn in range(8):
            scene = Scene(name)
            granted = await scene.play(step, turn)
            task = scene.one.tasks["b"]
            cancelled = task.cancelled()
            ended.add((cancelled, "b" in granted))
            for calls in (scene.one, scene.two):
                await calls.end(*calls.granted)
            await turns(3)

            assert set(granted) | ({"b"} if cancelled else set()) == set("abcABC")
            assert at_rest(scene.shared, scene.one, scene.two)
            assert not any(own.receipts for own in scene.own)
            assert scene.shared.statistics().granted - len(granted) == EACH[name]().available(0) + 1
            assert (scene.clock.timers, others()) == (0, set())
    assert ended == {(True, False), (True, True), (False, True)}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket", "SlidingWindow", "BurstCompensation-strict"])
async def test_random_cancellations_lose_nothing_and_keep_the_bounds(name: str, seed: int) -> None:
    """Three budgets and direct callers at one shared limit, many of them cancelled at random iterations of the loop."""
    dice, clock = random.Random(seed), SteppedClock()
    shared = Limiter(EACH[name](), clock=clock)
    most = shared.scheduler.max_permits or 3
    own = [TokenBucket("3/s", burst=2) for _ in range(3)]
    everybody = [Calls(Budget(own=part, tokens=shared, clock=clock), clock) for part in own]
    used: list[int] = []

    async def direct() -> None:
        await shared.acquire()
        used.append(clock.now())

    tasks: list[asyncio.Task[None]] = []
    for number in range(60):
        calls = dice.choice(everybody)
        if dice.random() < 0.8:
            tasks.append(calls.ask(number, tokens=dice.randint(1, min(3, most))))
        else:
            tasks.append(asyncio.ensure_future(direct()))
        for _ in range(dice.choice((0, 0, 1, 3))):
            if clock.next_timer is not None:
                clock.fire()
            for _ in range(6):
                if dice.random() < 0.06:
                    dice.choice(tasks).cancel()
                await turns(1)
        for inside in [name for name in calls.granted if not calls.tasks[name].done()]:
            if dice.random() < 0.3:
                await calls.end(inside)
    await clock.run(120)
    for calls in everybody:
        await calls.end(*calls.granted)

    for calls, part in zip(everybody, own, strict=True):
        instants = list(calls.granted.values())
        assert not part.receipts
        assert most_in_any_window(instants, SECOND) <= part.bound_when_late(SECOND, 1, SECOND // 50)
        used += [at for name, at in calls.granted.items() for _ in range(calls.leases[name].amounts["tokens"])]
    assert at_rest(shared, *everybody)
    assert all(task.done() for task in tasks)
    assert most_in_any_window(used, SECOND) <= shared.bound(1, 3)
    assert shared.statistics().granted == len(used)
    assert (clock.timers, others()) == (0, set())


async def test_a_reservation_cancelled_while_it_yields_is_undone(shared_in_real_time: Limiter) -> None:
    """It is granted at once, but yields because the loop has not run for long, and is cancelled there."""
    shared, own = shared_in_real_time, TokenBucket("1/h", burst=10)
    budget = Budget(own=own, tokens=shared)

    async def greedy() -> None:
        async with budget.reserve(tokens=3):
            time.sleep(0.02)  # noqa: ASYNC251  # the loop is not run meanwhile
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
            async with budget.reserve(tokens=5):
                pytest.fail("it did not yield to the loop")

    task = asyncio.ensure_future(greedy())
    await asyncio.gather(task, return_exceptions=True)

    assert task.cancelled()
    assert (budget.available("own"), budget.available("tokens")) == (9, 97)
    assert (own.receipts, shared.scheduler.receipts) == (False, False)


async def test_waiters_cancelled_while_they_yield_are_undone(shared_in_real_time: Limiter) -> None:
    """Ten are granted in one step from the shared line. Slow bodies make the next ones yield, and each cancels the next."""
    shared, own = shared_in_real_time, TokenBucket("1/h", burst=50)
    budget = Budget(own=own, tokens=shared)
    shared.pause(3600)
    inside = 0

    async def slow(number: int) -> None:
        nonlocal inside
        async with budget.reserve():
            inside += 1
            time.sleep(0.02)  # noqa: ASYNC251
            if number < 9:
                asyncio.get_running_loop().call_soon(tasks[number + 1].cancel)

    tasks = [asyncio.ensure_future(slow(number)) for number in range(10)]
    await turns(3)

    shared.resume()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert 0 < inside < 10
    assert inside == sum(not task.cancelled() for task in tasks)
    assert (50 - inside, 100 - inside) == (budget.available("own"), budget.available("tokens"))
    assert (shared.statistics().granted, shared._dispatcher.waiters.resuming) == (inside, 0)
    assert (own.receipts, shared.scheduler.receipts) == (False, False)


async def test_a_waiter_that_left_the_shared_line_may_be_cancelled(shared_in_real_time: Limiter) -> None:
    """It left that line when it resumed; cancelled while it yields, it must not leave the line a second time."""
    shared = shared_in_real_time
    budget = Budget(own=TokenBucket("1/h", burst=50), tokens=shared)
    shared.pause(3600)
    goes = asyncio.Event()

    async def hog() -> None:
        await goes.wait()
        time.sleep(0.02)  # noqa: ASYNC251  # from now on the time since the loop ran is measured
        async with budget.reserve():
            time.sleep(0.02)  # noqa: ASYNC251
            asyncio.get_running_loop().call_soon(tasks[1].cancel)

    async def call() -> None:
        async with budget.reserve():
            pass

    tasks = [asyncio.ensure_future(each()) for each in (hog, call, call)]
    await turns(3)
    goes.set()  # so the hog runs before the tasks that are granted now
    shared.resume()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert [False, True, False] == [task.cancelled() for task in tasks]
    assert (shared.statistics().granted, shared._dispatcher.waiters.resuming) == (2, 0)
    assert (budget.available("own"), budget.available("tokens")) == (48, 98)


async def test_a_refused_reservation_asks_again_after_it_yields() -> None:
    """Permits that were settled meanwhile are taken."""
    budget = Budget(tokens=TokenBucket("1/h", burst=5))
    async with budget.reserve(tokens=5) as lease:
        time.sleep(0.02)  # noqa: ASYNC251
        asyncio.get_running_loop().call_soon(lambda: lease.settle(tokens=3))
        async with budget.reserve(tokens=2, max_wait=0) as other:
            assert (other.waited, budget.available("tokens")) == (0.0, 0)
