"""Every strategy in loops whose clocks and timers are those of Windows and macOS, played in virtual time.

The clock ticks every 15.6 ms, timers fire up to a tick early, waits end late: nothing is granted early, nothing spins, and no rate is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import cache, partial
from itertools import chain, product
from random import Random

import pytest
from helpers.driving import SECOND
from helpers.platform_loops import PLATFORMS, TICK, PlayedLoop, played
from helpers.server import most_in_any_window

import aiorate

MS = SECOND // 1000

EACH: dict[str, Callable[[str], aiorate.Scheduler]] = {
    **{name: getattr(aiorate, name) for name in ("TokenPool", "TicksAccumulator", "BurstCompensation", "SmoothBursty", "SlidingWindow")},
    "BurstRatio": lambda rate: aiorate.BurstRatio(rate, ratio=1.5),
    "SmoothWarmingUp": lambda rate: aiorate.SmoothWarmingUp(rate, warmup=0.1),
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=1),
    "CalendarWindow": lambda rate: aiorate.CalendarWindow(rate, "UTC", origin=0),
    "AllOf": lambda rate: aiorate.AllOf(aiorate.TokenBucket(rate, burst=1), aiorate.SlidingWindow(rate)),
}
PAIRS = [(list(PLATFORMS)[number % len(PLATFORMS)], strategy) for number, strategy in enumerate(EACH)]
on_pairs = pytest.mark.parametrize(
    "pairs", [pytest.param(PAIRS, id="some"), pytest.param(list(product(PLATFORMS, EACH)), id="all", marks=pytest.mark.slow)]
)
Pairs = Iterable[tuple[str, str]]


class Run:
    """Tasks that acquire again and again for a second. Instants are ns since the beginning."""

    def __init__(self, platform: str, strategy: str, rate: int, catch_up: float) -> None:
        self.read: list[int] = []
        """The instants of the grants, as the machine's clock shows them."""
        self.true: list[int] = []
        with played(PLATFORMS[platform]) as loop:
            self.limiter = aiorate.Limiter(EACH[strategy](f"{rate}/s"), catch_up=catch_up)
            begun, first = loop.true, loop.reading()

            async def call() -> None:
                while True:
                    await self.limiter.acquire()
                    self.read.append(loop.reading() - first)
                    self.true.append(loop.true - begun)

            for_a_second(loop, [call] * 20)
            self.seconds = (loop.true - begun) / SECOND
            self.iterations = loop.iterations


def for_a_second(loop: PlayedLoop, calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run these that long, and cancel them."""

    async def main() -> None:
        tasks = [asyncio.ensure_future(call()) for call in calls]
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    loop.run_until_complete(main())


run_of = cache(Run)


@on_pairs
def test_nothing_is_early_and_the_bound_holds(pairs: Pairs) -> None:
    """By the clock of the limiter; by a finer clock, a window may hold what falls due in one more tick."""
    for case in product(pairs, (10, 1000), (0, 0.1)):
        (platform, strategy), rate, catch_up = case
        run = run_of(platform, strategy, rate, catch_up)

        if "Window" not in strategy:  # it is never ahead of its schedule: the first permit, or the pool of two, and the rate from then on
            ahead = (2 if strategy == "TokenPool" else 1) * SECOND
            assert all(number * SECOND <= (at - run.read[0]) * rate + ahead for number, at in enumerate(run.read, 1)), case
        for window in (MS, 5 * MS, TICK, 50 * MS, SECOND):
            for instants, more in ((run.read, 0), (run.true, PLATFORMS[platform].clock)):
                bound = run.limiter.bound((window + more) / SECOND)
                assert bound is None or most_in_any_window(instants, window) <= bound, case


@on_pairs
def test_no_rate_is_lost_and_no_early_timer_makes_it_spin(pairs: Pairs) -> None:
    """At 1000/s a wait of 15.6 ms ends with fifteen permits due, or sixteen; SmoothWarmingUp grants a third of the rate at first.

    While the clock stands, a timer that fires early is given a millisecond more than the last time: it fires five times in a tick.
    """
    for case in product(pairs, ((10, 0.02), (1000, 0), (1000, 0.02), (1000, 0.1))):
        (platform, strategy), (rate, catch_up) = case
        run = run_of(platform, strategy, rate, catch_up)

        if catch_up == 0.02:
            assert len(run.read) >= 0.98 * rate * run.seconds - (100 if strategy == "SmoothWarmingUp" else 1), case
        assert run.iterations <= 7 * len(run.read) + 20, case


def test_without_catch_up_a_tick_grants_one_permit() -> None:
    """What docs/guarantees.md says: a late timer brings no two permits closer together, so there are 64 in a second, or a pool of two."""
    strategies = ("TokenPool", "BurstCompensation", "BurstRatio", "SmoothWarmingUp", "TokenBucket", "AllOf")  # that store nothing else
    for case in zip(("windows", "windows-fine-waits", "windows-3.13") * 2, strategies, strict=True):
        run, in_a_tick = run_of(*case, 1000, 0), 2 if case[1] == "TokenPool" else 1

        assert in_a_tick * 63 <= len(run.true) / run.seconds <= in_a_tick * 65, case


def test_keys_make_up_for_late_timers_at_a_shared_limit() -> None:
    """Keys had one permit of the shared limit for each late wake-up: three of them, 256 permits of 600.

    They take turns. A key that its own limit holds up does not wait at the shared one, and may miss the permits of one late wake-up.
    """
    for case in Random(2).sample([*product(PLATFORMS, (1, 3, 10), ("5000/s", "500/s"))], 10):
        keyed, granted = shared_by_keys(*case)

        counts = [len(instants) for instants in granted]
        assert max(counts) - min(counts) <= (2 if case[2] == "5000/s" else 10), case
        assert 440 <= sum(counts) <= 470, case
        assert most_in_any_window(list(chain(*granted)), SECOND) <= keyed.shared.bound(1), case
        assert max(most_in_any_window(instants, 100 * MS) for instants in granted) <= keyed[0].bound(0.1), case


def shared_by_keys(platform: str, keys: int, own: str) -> tuple[aiorate.KeyedLimiter[int], list[list[int]]]:
    """Ten callers for each key ask for a second."""
    granted: list[list[int]] = [[] for _ in range(keys)]
    with played(PLATFORMS[platform]) as loop:
        keyed = aiorate.KeyedLimiter[int](lambda key: aiorate.TokenBucket(own, burst=1), shared=aiorate.TokenBucket("450/s", burst=1))

        async def call(key: int) -> None:
            while True:
                await keyed.acquire(key)
                granted[key].append(loop.reading())

        for_a_second(loop, [partial(call, key) for key in range(keys) for _ in range(10)])
    return keyed, granted
