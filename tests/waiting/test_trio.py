"""Under trio: the same limiter, line and instants as under asyncio, with trio's clock, scopes and tasks."""

from __future__ import annotations

import gc
import math
import weakref
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing
from helpers.driving import SECOND
from helpers.strategies import EACH
from helpers.under_trio import Crowd, now, run, run_on, settled

import aiorate
from aiorate.testing import ManualClock, simulate

MS = SECOND // 1000


def test_slots_are_those_of_asyncio() -> None:
    """Index, instant and lag, where the body is slow now and then."""

    async def main(name: str) -> list[tuple[int, float, float]]:
        seen = []
        async with aclosing(aiorate.Limiter(EACH[name]()).slots()) as slots:
            async for slot in slots:
                seen.append((slot.index, slot.scheduled_at, slot.lag))
                if len(seen) % 7 == 0:
                    await anyio.sleep(0.35)
                if len(seen) == 30:
                    break
        return seen

    for name in EACH:
        assert run_on("asyncio", main, name) == run_on("trio", main, name), name


def test_a_clock_that_has_run_for_long_is_still_exact() -> None:
    """Its seconds are a float, which after some weeks is coarser than a nanosecond: no wake-up is early because of that."""

    async def main(days: int) -> list[int]:
        await trio.sleep(days * 86_400)
        limiter = aiorate.Limiter("7/s")
        begun, granted = trio.current_time(), []
        for _ in range(100):
            await limiter.acquire()
            granted.append(round((trio.current_time() - begun) * SECOND))
        return granted

    expected = simulate(aiorate.TokenPool("7/s", pool=1), [0] * 100)
    for days in (0, 30, 90):
        off = max(abs(instant - exact) for instant, exact in zip(run(main, days), expected, strict=True))
        assert off <= 16 * (days > 0), days


def test_closing_fails_each_waiter_with_a_separate_error() -> None:
    """A single instance raised in many tasks would collect the frames of them all."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            limiter = aiorate.Limiter("10/s")
            await limiter.acquire()
            crowd = Crowd(limiter, nursery)
            await crowd.queue("ABC")
            await limiter.aclose()
            await settled()
            assert math.inf == trio.lowlevel.current_statistics().seconds_to_next_deadline
            crowd.ask("D")
        assert 0 == now()
        assert set("ABCD") == set(crowd.failed)
        assert all(isinstance(error, aiorate.LimiterClosed) for error in crowd.failed.values())
        assert 4 == len(set(map(id, crowd.failed.values())))

        limiter.apply("10,1.0,start")
        assert await limiter.acquire() == 0.1

    run(main)


# Errors in schedulers and clocks.


def flawed(strategy: type[Any]) -> Any:
    """A strategy of 10/s that can be told to fail."""

    class Flawed(strategy):  # type: ignore[misc]
        fails = False

        def take(self, permits: int, now: int, since: int | None = None) -> Any:
            if self.fails:
                raise RuntimeError("flawed")
            return super().take(permits, now, since)

    return Flawed("10/s", **({"burst": 1} if strategy is aiorate.TokenBucket else {}))


class Broken(ManualClock):
    """A clock that can be told to fail."""

    fails = False

    def now(self) -> int:
        if self.fails:
            raise RuntimeError("flawed")
        return super().now()


def test_an_error_in_a_decision_fails_waiters_not_the_limiter() -> None:
    """Otherwise it would be raised in what watches the timer, and leave the others waiting for ever. Under asyncio too."""

    async def main(strategy: type[Any] | None, at_a_change: bool) -> None:
        clock = Broken()
        culprit: Any = clock if strategy is None else flawed(strategy)
        limiter = aiorate.Limiter("10/s", clock=clock) if strategy is None else aiorate.Limiter(culprit)
        await limiter.acquire()
        async with anyio.create_task_group() as tasks:
            crowd = Crowd(limiter, tasks)
            for name in "ABC":
                crowd.ask(name)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            assert limiter.statistics().waiting == 3
            culprit.fails = True
            if at_a_change:
                limiter.refund(1)
            elif strategy is None:
                clock.advance(1)
        assert [RuntimeError] * 3 == [type(error) for error in crowd.failed.values()]
        assert 3 == len(set(map(id, crowd.failed.values())))
        with pytest.raises(RuntimeError, match="flawed"):
            await limiter.acquire()
        culprit.fails = False
        assert (0, 0) == (limiter.statistics().waiting, clock.timers)
        limiter.reset()
        assert await limiter.acquire() == 0.0

    for strategy, at_a_change in ((aiorate.TokenPool, False), (aiorate.TokenBucket, False), (aiorate.TokenBucket, True), (None, False)):
        for loop in ("asyncio", "trio"):
            run_on(loop, main, strategy, at_a_change)


# Clocks that the user passes.


def test_a_manual_clock_wakes_waiters_under_trio() -> None:
    """Users test their code with it, under asyncio and trio alike. All that is due is granted at once."""

    async def main() -> None:
        clock = ManualClock()
        async with trio.open_nursery() as nursery:
            crowd = Crowd(aiorate.Limiter("10/s", clock=clock), nursery)
            await crowd.queue("ABCD")
            served = [len(crowd.granted)]
            for _ in range(2):
                for seconds in (0.099999999, 0.000000001):
                    clock.advance(seconds)
                    await settled()
                    served.append(len(crowd.granted))
            crowd.cancel("C")
            await settled()
            assert 1 == clock.timers
            clock.advance(0.1)
        assert [1, 1, 2, 2, 3] == served
        assert {"A": 0.0, "B": 0.1, "C": 0.2, "D": 0.3} == crowd.waited | {"C": 0.2}
        assert (0, 0) == (clock.timers, now())

        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1500), clock=clock)
        limiter.pause(1)
        async with trio.open_nursery() as nursery:
            for _ in range(1500):
                nursery.start_soon(limiter.acquire)
            await settled()
            clock.advance(1)
        assert 0 == clock.timers

    run(main)


class Shifted:
    """A clock that only tells the time, with another origin than trio's."""

    def now(self) -> int:
        return round((trio.current_time() + 1_000) * SECOND)


def test_a_clock_without_timers_uses_trios_deadlines() -> None:
    async def main(name: str) -> list[int]:
        await trio.sleep(5)
        limiter = aiorate.Limiter(EACH[name](), clock=Shifted())
        granted = []
        for _ in range(20):
            await limiter.acquire()
            granted.append(Shifted().now())
        return granted

    for name in ("TokenPool", "BurstRatio", "SlidingWindow", "AllOf"):
        # Deadlines are relative, in float seconds.
        expected = simulate(EACH[name](), [1_005 * SECOND] * 20)
        assert max(abs(instant - exact) for instant, exact in zip(run(main, name), expected, strict=True)) <= 2 * MS, name


def test_a_waiter_waits_for_a_thousand_years() -> None:
    """A deadline is a float, and an instant any whole number. No timer is set for longer than a day, and whom it wakes waits on."""

    async def main() -> bool:
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
        limiter.charge(10**400)
        async with trio.open_nursery() as nursery:
            crowd = Crowd(limiter, nursery)
            await crowd.queue("ABC")
            for day in range(20):
                await trio.sleep(86_400)
                if day == 10:
                    crowd.cancel("A")
                assert (3 - (day > 10), {}) == (limiter.statistics().waiting, crowd.failed)
            limiter.reset()
        return {"B": 20 * 86_400 * SECOND, "C": 20 * 86_400 * SECOND + SECOND // 10} == crowd.granted

    assert run(main)


# Nothing is left.


@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket", "AllOf"])
def test_an_idle_limiter_leaves_nothing_behind(name: str) -> None:
    """No task, no deadline, and no reference to the limiter, to tasks that waited, or to one that left a line that stays."""

    async def main() -> None:
        before = trio.lowlevel.current_statistics().tasks_living
        limiter = aiorate.Limiter(EACH[name]())
        tasks = []

        async def one(limiter: aiorate.Limiter) -> None:
            tasks.append(weakref.ref(trio.lowlevel.current_task()))
            await limiter.acquire()

        async def leaves(limiter: aiorate.Limiter) -> None:
            tasks.append(weakref.ref(trio.lowlevel.current_task().coro))
            with trio.move_on_after(0.01):
                await limiter.acquire()

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one, limiter)
            await settled()
            assert before + 20 >= trio.lowlevel.current_statistics().tasks_living
            nursery.start_soon(leaves, limiter)
            await trio.sleep(0.02)
            gc.collect()
            assert 1 <= limiter.statistics().waiting < 20
            assert tasks.pop()() is None
        await settled()
        after = trio.lowlevel.current_statistics()
        assert (before, math.inf) == (after.tasks_living, after.seconds_to_next_deadline)
        gc.collect()
        assert [None] * 20 == [task() for task in tasks]
        gone = weakref.ref(limiter)
        del limiter
        gc.collect()
        assert gone() is None

    run(main)
