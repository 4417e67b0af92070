"""Every strategy in loops whose clocks and timers are those of Windows and macOS, played in virtual time.

The clock ticks every 15.6 ms, timers fire up to a tick early, waits end late: nothing is granted early, nothing spins, and no rate is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from itertools import chain, product
from random import Random

import pytest
from helpers.driving import SECOND
from helpers.platform_loops import PLATFORMS, TICK, PlayedLoop, played
from helpers.server import most_in_any_window

import aiorate

MS = SECOND // 1000
Make = Callable[..., aiorate.Scheduler]

EACH: dict[str, Make] = {
    "TokenPool": aiorate.TokenPool,
    "TicksAccumulator": aiorate.TicksAccumulator,
    "BurstCompensation": aiorate.BurstCompensation,
    "BurstRatio": lambda rate: aiorate.BurstRatio(rate, ratio=1.5),
    "SmoothBursty": aiorate.SmoothBursty,
    "SmoothWarmingUp": lambda rate: aiorate.SmoothWarmingUp(rate, warmup=0.1),
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=1),
    "SlidingWindow": aiorate.SlidingWindow,
    "CalendarWindow": lambda rate: aiorate.CalendarWindow(rate, "UTC", origin=0),
    "AllOf": lambda rate: aiorate.AllOf(aiorate.TokenBucket(rate, burst=1), aiorate.SlidingWindow(rate)),
}
WINDOWS = ("SlidingWindow", "CalendarWindow")
NO_STORE = ("TokenPool", "BurstCompensation", "BurstRatio", "SmoothWarmingUp", "TokenBucket", "AllOf")
"""The strategies that make up for a late wake-up by ``catch_up`` alone."""
WARMING = 100
"""At 1000/s, SmoothWarmingUp grants a third of the rate at first."""

each = pytest.mark.parametrize("strategy", EACH)
everywhere = pytest.mark.parametrize("platform", PLATFORMS)


class Run:
    """Tasks that acquire again and again for a second. Instants are ns since the beginning."""

    def __init__(self, platform: str, strategy: str, rate: int, catch_up: float) -> None:
        self.read: list[int] = []
        """The instants of the grants, as the machine's clock shows them."""
        self.true: list[int] = []
        with played(PLATFORMS[platform]) as loop:
            self.limiter = aiorate.Limiter(EACH[strategy](f"{rate}/s"), catch_up=catch_up)
            begun, first = loop.true, loop.reading()
            loop.run_until_complete(self._main(loop))
            self.seconds = (loop.true - begun) / SECOND
            self.iterations = loop.iterations
        self.read = [instant - first for instant in self.read]
        self.true = [instant - begun for instant in self.true]

    async def _main(self, loop: PlayedLoop) -> None:
        async def call() -> None:
            while True:
                await self.limiter.acquire()
                self.read.append(loop.reading())
                self.true.append(loop.true)

        tasks = [asyncio.ensure_future(call()) for _ in range(20)]
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self.limiter.aclose()


run_of = cache(Run)


@each
@everywhere
def test_nothing_is_early_and_the_bound_holds(platform: str, strategy: str) -> None:
    """By the clock of the limiter; by a finer clock, a window may hold what falls due in one more tick."""
    for rate, catch_up in product((10, 1000), (0, 0.02, 0.1)):
        run = run_of(platform, strategy, rate, catch_up)

        if strategy not in WINDOWS:  # it is never ahead of its schedule: the first permit, or the pool of two, and the rate from then on
            ahead = 2 if strategy == "TokenPool" else 1
            first = run.read[0]
            assert all(number * SECOND <= (instant - first) * rate + ahead * SECOND for number, instant in enumerate(run.read, 1))
        for window in (MS, 5 * MS, TICK, 50 * MS, SECOND):
            bound, true_bound = run.limiter.bound(window / SECOND), run.limiter.bound((window + PLATFORMS[platform].clock) / SECOND)
            assert bound is None or most_in_any_window(run.read, window) <= bound
            assert true_bound is None or most_in_any_window(run.true, window) <= true_bound


@each
@everywhere
def test_no_rate_is_lost_with_the_default_catch_up(platform: str, strategy: str) -> None:
    """At 1000/s a wait of 15.6 ms ends with fifteen permits due, or sixteen."""
    for rate in (10, 1000):
        run = run_of(platform, strategy, rate, 0.02)

        assert len(run.read) >= 0.98 * rate * run.seconds - (WARMING if strategy == "SmoothWarmingUp" else 1)


@each
@everywhere
def test_no_early_timer_makes_it_spin(platform: str, strategy: str) -> None:
    """While the clock stands, a timer that fires early is given a millisecond more than the last time: it fires five times in a tick."""
    for rate, catch_up in product((10, 1000), (0, 0.02, 0.1)):
        run = run_of(platform, strategy, rate, catch_up)

        assert run.iterations <= 7 * len(run.read) + 20


@pytest.mark.parametrize("strategy", NO_STORE)
@pytest.mark.parametrize("platform", ["windows", "windows-fine-waits", "windows-3.13"])
def test_without_catch_up_a_tick_grants_one_permit(platform: str, strategy: str) -> None:
    """What docs/guarantees.md says: a late timer brings no two permits closer together, so there are 64 in a second, or a pool of two."""
    run = run_of(platform, strategy, 1000, 0)

    in_a_tick = 2 if strategy == "TokenPool" else 1
    assert in_a_tick * 63 <= len(run.true) / run.seconds <= in_a_tick * 65


@each
@everywhere
def test_cancelled_callers_and_pauses_cost_and_give_nothing(platform: str, strategy: str) -> None:
    """A third of the callers gives up, some of them just as they are granted; the limiter pauses twice."""
    random = Random(7)
    granted: list[int] = []
    with played(PLATFORMS[platform]) as loop:
        limiter = aiorate.Limiter(EACH[strategy]("200/s"))

        async def call() -> None:
            await limiter.acquire()
            granted.append(loop.reading())

        async def main() -> None:
            tasks = [asyncio.ensure_future(call()) for _ in range(400)]
            for number, task in enumerate(random.sample(tasks, 133)):
                await asyncio.sleep(random.choice([0, 0.001, 0.01]))
                task.cancel()
                if number in (40, 80):
                    limiter.pause(0.1)
            await asyncio.wait(tasks)

        loop.run_until_complete(main())

    statistics = limiter.statistics()
    assert (len(granted), statistics.waiting) == (statistics.granted, 0)
    assert len(granted) + statistics.cancelled >= 400
    for window in (TICK, 100 * MS, SECOND):
        bound = limiter.bound(window / SECOND)
        assert bound is None or most_in_any_window(granted, window) <= bound


@everywhere
@pytest.mark.parametrize(("own", "apart"), [("5000/s", 2), ("500/s", 10)])
@pytest.mark.parametrize("keys", [1, 3, 10])
def test_keys_make_up_for_late_timers_at_a_shared_limit(platform: str, keys: int, own: str, apart: int) -> None:
    """Keys had one permit of the shared limit for each late wake-up: three of them, 256 permits of 600.

    They take turns. A key that its own limit holds up does not wait at the shared one, and may miss the permits of one late wake-up.
    """
    granted: list[list[int]] = [[] for _ in range(keys)]
    with played(PLATFORMS[platform]) as loop:
        keyed = aiorate.KeyedLimiter[int](lambda key: aiorate.TokenBucket(own, burst=1), shared=aiorate.TokenBucket("450/s", burst=1))

        async def call(key: int) -> None:
            while True:
                await keyed.acquire(key)
                granted[key].append(loop.reading())

        async def main() -> None:
            tasks = [asyncio.ensure_future(call(key)) for key in range(keys) for _ in range(10)]
            await asyncio.sleep(1)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

        loop.run_until_complete(main())

    counts = [len(instants) for instants in granted]
    assert max(counts) - min(counts) <= apart
    assert 440 <= sum(counts) <= 470
    assert keyed.shared is not None
    assert most_in_any_window(list(chain(*granted)), SECOND) <= (keyed.shared.bound(1) or 0)
    bound = keyed[0].bound(0.1)
    assert bound is not None
    assert max(most_in_any_window(instants, 100 * MS) for instants in granted) <= bound


@everywhere
def test_a_caller_that_never_waits_lets_other_tasks_run(platform: str) -> None:
    """Within the 10 ms of the guarantee, and a tick: a coarse clock shows neither sooner."""
    with played(PLATFORMS[platform]) as loop:
        limiter = aiorate.Limiter(aiorate.TicksAccumulator("1000000000/s"))
        turns: list[int] = []

        async def greedy() -> None:
            for _ in range(2_000):
                await limiter.acquire()
                loop.true += 50_000  # ns of work

        async def other() -> None:
            while True:
                turns.append(loop.true)
                await asyncio.sleep(0)

        async def main() -> None:
            task = asyncio.ensure_future(other())
            await greedy()
            task.cancel()

        begun = loop.true
        loop.run_until_complete(main())
        ended = loop.true

    apart = [later - sooner for sooner, later in zip([begun, *turns], [*turns, ended], strict=True)]
    assert max(apart) <= 10 * MS + PLATFORMS[platform].clock
