"""The meter: a permit from it has the same outcome as any other, and no bound is exceeded whatever callers do.

It is only open with the machine's monotonic clock, which other event loops use too. So that clock is replaced here and moved by hand.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from helpers.driving import SECOND, turns, until
from helpers.meters import Machine, at_once

import aiorate
from aiorate.testing import ManualClock

pytestmark = pytest.mark.asyncio


async def test_the_meter_never_passes_a_line(machine: Machine) -> None:
    """Three permits are available and the first in line wants five: a request for one is behind it, also after other calls."""
    looks: tuple[Callable[[aiorate.Limiter], object], ...] = (
        aiorate.Limiter.statistics,
        aiorate.Limiter.delay,
        aiorate.Limiter.try_acquire,
    )
    for look in looks:
        limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=5))
        assert await at_once(limiter)
        assert await at_once(limiter)
        large = asyncio.ensure_future(limiter.acquire(5))
        await turns(3)

        look(limiter)
        small = asyncio.ensure_future(limiter.acquire())
        await turns(3)

        assert (large.done(), small.done(), limiter.statistics().waiting) == (False, False, 2), look
        large.cancel()
        await turns(5)
        assert small.result() == 0.0


async def test_a_thousand_due_requests_are_granted_per_iteration(machine: Machine) -> None:
    """All 2500 in one iteration of the loop would block other tasks for too long."""
    for scheduler in (aiorate.SlidingWindow("5000/h"), aiorate.TokenPool("1/s", pool=5000 * SECOND)):
        limiter = aiorate.Limiter(scheduler)
        assert limiter.try_acquire()  # its schedule begins now
        limiter.pause(3600)
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(2500)]
        await turns(3)

        machine.instant += 7200 * SECOND
        granted = [limiter.statistics().granted for _ in range(2)]
        assert granted == [1001, 1001]
        await until(lambda tasks=tasks: all(task.done() for task in tasks))  # type: ignore[misc]

        assert limiter.statistics().granted == 2501


# The guarantee, for callers of any kind.

STRATEGIES: dict[str, Callable[[int], aiorate.Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TokenPool-burst": lambda rate: aiorate.TokenPool(rate, burst_ratio=1.5),
    "TokenPool-small": lambda rate: aiorate.TokenPool(rate, pool=200_000),
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=40),
    "TokenBucket-large": lambda rate: aiorate.TokenBucket(rate, burst=10_000, initial=0),
    "Strict": aiorate.BurstCompensation,
    "Ticks": aiorate.TicksAccumulator,
    "Window": lambda rate: aiorate.SlidingWindow(f"{rate}/s"),
}
RATES = [10**4, 10**5, 10**6, 3 * 10**7, 10**9]
GAPS = [0, 0, 0, 1, 20, 300, 1_500, 3_000, 50_000, 200_000, 10**6, SECOND, 3_600 * SECOND, -1, -700, -(10**6)]
CALLS = ["try_acquire"] * 6 + ["acquire", "async with", "more"]
OTHERS = ["pause", "charge", "refund", "delay", "statistics", "apply", "close", "wait and leave", "lag"]


class Caller:
    """A caller that uses a limiter in every awkward way, and notes its grants: of each instant, the sum."""

    def __init__(self, scheduler: aiorate.Scheduler) -> None:
        self.clock = ManualClock(SECOND)
        self.limiter = aiorate.Limiter(scheduler, clock=self.clock, catch_up=0)
        self.grants: list[tuple[int, int]] = []
        self.granted = self.refunded = 0
        self.largest = 1

    async def do(self, gap: int, call: str, number: int) -> None:
        limiter, clock = self.limiter, self.clock
        clock.set(max(0, clock.now() + gap))
        if call == "try_acquire":
            for _ in range(number):
                self.note(limiter.try_acquire(), 1)
        elif call == "more":
            number = min(number, limiter.scheduler.max_permits or number)
            self.note(limiter.try_acquire(number), number)
        elif call in ("acquire", "async with"):
            for _ in range(number):
                self.note(await self.at_once(call), 1)
        elif call == "wait and leave":
            tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(number)]
            await turns(6)
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                self.note(isinstance(outcome, float), 1)
        elif call == "pause":
            limiter.pause(number / 10**5)
            assert not limiter.try_acquire()
        elif call == "charge":
            limiter.charge(number)
        elif call == "refund":
            self.refunded += min(number, self.granted - self.refunded)
            limiter.refund(number)
        elif call == "delay":
            wait = limiter.delay()
            assert (wait == 0) == limiter.try_acquire()
            self.note(wait == 0, 1)
        elif call == "lag":
            assert limiter.lag >= 0
        elif call == "apply":
            limiter.apply(f"{limiter.rate.permits},1.0,stop")
            assert not limiter.try_acquire()
            limiter.apply(f"{limiter.rate.permits},1.0,restart")
        elif call == "close":
            await limiter.aclose()
            with pytest.raises(aiorate.LimiterClosed):
                limiter.try_acquire()
            limiter.apply(f"{limiter.rate.permits},1.0,start")
        else:
            assert limiter.statistics().granted == self.granted - self.refunded

    async def at_once(self, call: str) -> bool:
        """Acquire if that needs no wait."""
        task = asyncio.ensure_future(self.limiter.acquire() if call == "acquire" else self.enter())
        await asyncio.sleep(0)
        if task.done():
            return task.result() == 0
        task.cancel()
        await turns(6)
        return False

    async def enter(self) -> float:
        async with self.limiter as waited:
            return waited

    def note(self, granted: bool, permits: int) -> None:
        if granted:
            if not self.grants or self.grants[-1][0] != self.clock.now():
                self.grants.append((self.clock.now(), 0))
            self.grants[-1] = self.clock.now(), self.grants[-1][1] + permits
            self.granted += permits
            self.largest = max(self.largest, permits)

    def check_bound(self, bound: Callable[[int, int], int | None]) -> None:
        """Assert that no window exceeds its bound. Where the clock went back, the window spans all of its readings."""
        for first in range(len(self.grants)):
            total = 0
            start = end = self.grants[first][0]
            for instant, permits in self.grants[first:]:
                total += permits
                start, end = min(start, instant), max(end, instant)
                most = bound(end - start + 1, self.largest)
                assert most is None or total <= most, f"{total} permits within {end - start + 1} ns, and bound() says {most}"


async def play(name: str, rate: int, history: list[tuple[int, str, int]]) -> None:
    caller = Caller(STRATEGIES[name](rate))
    bound = STRATEGIES[name](rate).bound  # before the ratio is changed
    for step in history:
        await caller.do(*step)
    assert caller.limiter.statistics().granted == caller.granted - caller.refunded
    if not caller.refunded:
        caller.check_bound(bound)


@pytest.mark.usefixtures("every_clock", "each_meter")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_the_guarantee_holds_for_callers_of_any_kind(strategy: str) -> None:
    """It holds for any calls between two readings of the clock, and any readings."""
    dice = random.Random(strategy)
    for seed in range(10):
        verbs = CALLS * 2 + [verb for verb in OTHERS if verb != "refund" or seed % 3 == 0]
        length = dice.randint(5, 40)
        history = [(dice.choice(GAPS), dice.choice(verbs), dice.choice((1, 2, 5, 30, 90))) for _ in range(length)]
        rate = RATES[seed % len(RATES)]
        try:
            await play(strategy, rate, history)
        except AssertionError as error:
            raise AssertionError(f"{error}, at {rate}/s: {history}") from error
