"""The guarantee of a scheduler holds with the meter open too: for callers of any kind, and by the laws of all schedulers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from helpers.driving import SECOND, turns
from helpers.samples import examples, histories, sampled
from hypothesis import given
from hypothesis import strategies as st

import aiorate
from aiorate.testing import ManualClock
from aiorate.testing.histories import Trial
from aiorate.testing.laws import LAWS, run_law

pytestmark = pytest.mark.usefixtures("every_clock", "each_meter")

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


steps = st.tuples(st.sampled_from(GAPS), st.sampled_from(CALLS * 2 + OTHERS), st.sampled_from([1, 2, 5, 30, 90]))


class Caller:
    """A caller that uses a limiter in every awkward way, and notes its grants."""

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
            self.grants.append((self.clock.now(), permits))
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


def run(history: Callable[[], Coroutine[None, None, None]]) -> None:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(history())


@sampled
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_guarantee_holds_for_callers_of_any_kind(strategy: str, rate: int) -> None:
    """It holds for any calls between two readings of the clock, and any readings."""

    @examples(15)
    @given(st.lists(steps, min_size=5, max_size=40))
    def check(history: list[tuple[int, str, int]]) -> None:
        async def ask() -> None:
            caller = Caller(STRATEGIES[strategy](rate))
            bound = STRATEGIES[strategy](rate).bound  # before the ratio is changed
            for step in history:
                await caller.do(*step)
            assert caller.limiter.statistics().granted == caller.granted - caller.refunded
            if not caller.refunded:
                caller.check_bound(bound)

        run(ask)

    check()


class ThroughLimiter(aiorate.Scheduler):
    """A limiter in the shape of a scheduler, so that the laws can be tested on both together."""

    books_since = False

    def __init__(self, make: Callable[[], aiorate.Scheduler], calls: list[tuple[str, Any, int]] | None = None) -> None:
        self.make = make
        self.calls: list[tuple[str, Any, int]] = []
        self.clock = ManualClock()
        self.limiter = aiorate.Limiter(make(), clock=self.clock, catch_up=0)
        self.max_permits = self.limiter.scheduler.max_permits
        self.bound = self.limiter.scheduler.bound  # type: ignore[method-assign]
        for call in calls or ():
            self.do(*call)

    def __deepcopy__(self, memo: object) -> ThroughLimiter:
        """Make another limiter and repeat all calls, since a limiter cannot be copied."""
        return ThroughLimiter(self.make, self.calls)

    def do(self, name: str, argument: Any, now: int) -> Any:
        self.calls.append((name, argument, now))
        self.clock.set(now)
        return getattr(self.limiter, name)(*([] if argument is None else [argument]))

    @property
    def rate(self) -> aiorate.Rate:  # type: ignore[override]
        return self.limiter.rate

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if self.do("try_acquire", permits, now):
            return now
        return self.limiter.scheduler.peek(permits, now)

    def peek(self, permits: int, now: int) -> int:
        self.do("delay", permits, now)  # which may be the first call at all
        return self.limiter.scheduler.peek(permits, now)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        if taken is None:
            self.do("refund", permits, now)

    def set_rate(self, rate: aiorate.Rate, now: int) -> None:
        self.do("set_rate", rate, now)

    def lag(self, now: int) -> int:
        return round(self.do("delay", None, now) * SECOND)

    def bound(self, window: int, largest: int = 1) -> int | None:
        raise NotImplementedError  # the limiter's


# A limiter gives nothing back by receipt on demand, and nobody shifts its time.
OTHER_LAWS = ("giving_back_leaves_no_trace", "shifting_changes_nothing")
LAWS_HERE = [law for law in LAWS if law.__name__ not in OTHER_LAWS]


@sampled
@pytest.mark.parametrize("law", LAWS_HERE, ids=lambda law: law.__name__)
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "Window"])  # which refuses large requests with an error
def test_the_laws_hold_through_the_limiter(strategy: str, law: Callable[[Trial], None]) -> None:
    """Through a limiter in a loop, so that permits come from the meter."""

    async def prove() -> None:
        run_law(law, lambda: ThroughLimiter(lambda: STRATEGIES[strategy](10**6)), histories(30))

    run(prove)
