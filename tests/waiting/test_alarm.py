"""The alarm: one timer for the first in line. A timer is a hint, the clock is the judge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, one_loop, others, turns

import aiorate
from aiorate.testing import ManualClock

pytestmark = one_loop
MS = SECOND // 1000

KINDS: dict[str, Callable[[str], aiorate.Scheduler]] = {
    "filler": lambda rate: aiorate.TokenPool(rate),
    "alarm": lambda rate: aiorate.TokenBucket(rate, burst=1),
}
both = pytest.mark.parametrize("kind", KINDS)


class Early(ManualClock):
    """Timers fire ``early`` ns before their instant, as those of event loops do."""

    def __init__(self, early: int) -> None:
        super().__init__()
        self.early = early
        self.rings = 0

    def call_at(self, instant: int, callback: Callable[[], None]) -> Any:
        def fire() -> None:
            self.rings += 1
            callback()

        return super().call_at(max(instant - self.early, self.now() + 1), fire)


class Coarse(ManualClock):
    """A reading that moves in steps, as on Windows and uvloop; timers fire at true instants, some of them before the step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def now(self) -> int:
        return self.true() // self.step * self.step

    def true(self) -> int:
        """The true time."""
        return super().now()

    def call_at(self, instant: int, callback: Callable[[], None]) -> Any:
        return super().call_at(self.true() + max(instant - self.now(), 0), callback)


@both
async def test_one_timer_and_no_task_for_thousands(kind: str) -> None:
    """dotnet and others keep a timer for each waiter."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(KINDS[kind]("10/s"), clock=clock), clock)

    await crowd.queue(range(1000))

    assert clock.timers == 1
    assert len(others() - set(crowd.tasks.values())) == (1 if kind == "filler" else 0)
    for task in crowd.tasks.values():
        task.cancel()
    await turns(5)


@both
@pytest.mark.parametrize("early", [1, 1000, MS // 2, MS])
async def test_an_early_timer_grants_nothing_early_and_does_not_spin(kind: str, early: int) -> None:
    """T4: bharel/asynciolimiter#14, python/cpython#127859, MagicStack/uvloop#233. At most two more wake-ups for each grant."""
    clock = Early(early)
    crowd = Crowd(aiorate.Limiter(KINDS[kind]("10/s"), clock=clock), clock)
    await crowd.queue(range(20))

    await clock.run(3)

    late = [at - who * SECOND // 10 for who, at in crowd.granted.items()]
    assert min(late) == 0
    assert max(late) <= MS
    assert clock.rings <= 3 * 19


@both
@pytest.mark.parametrize("step", [MS, 15_600_000])
@pytest.mark.parametrize("rate", [10, 100, 3000])
async def test_a_clock_that_moves_in_steps_costs_no_rate(kind: str, step: int, rate: int) -> None:
    """T5, MagicStack/uvloop#359: several calls at one reading, and timers that fire before it has moved."""
    clock = Coarse(step)
    crowd = Crowd(aiorate.Limiter(KINDS[kind](f"{rate}/s"), clock=clock), clock)
    count = 2 * rate

    async def worker() -> None:
        while len(crowd.granted) < count:
            await crowd.limiter.acquire()
            crowd.granted[len(crowd.granted)] = clock.true()

    tasks = [asyncio.ensure_future(worker()) for _ in range(100)]
    await clock.run(3)

    took = crowd.granted[count - 1]
    assert abs(took - (count - 1) * SECOND // rate) <= 2 * step
    assert all(at >= (who - 2) * SECOND // rate for who, at in crowd.granted.items())
    await crowd.limiter.aclose()
    await asyncio.gather(*tasks, return_exceptions=True)


@both
async def test_wake_ups_are_a_millisecond_apart_at_any_rate(kind: str) -> None:
    """T7, PyrateLimiter 4.3: a wait that rounds to zero must not become a spin; requests that fall due meanwhile are granted together."""
    clock = Early(0)
    crowd = Crowd(aiorate.Limiter(KINDS[kind]("1000000/s"), clock=clock), clock)
    await crowd.queue(range(5000))

    await clock.run(1)

    assert len(crowd.granted) == 5000
    assert clock.rings <= 7


@both
async def test_a_clock_that_goes_back_grants_nothing_and_hangs_nobody(kind: str) -> None:
    """T1: golang/go#71360, golang/go#65508. Time that goes back earns nothing, and nothing again when it returns."""
    clock = ManualClock(10 * SECOND)
    crowd = Crowd(aiorate.Limiter(KINDS[kind]("10/s"), clock=clock), clock)
    await crowd.queue(range(30))

    for back in (9, 5, 10, 0):
        before = len(crowd.granted)
        clock.set(back * SECOND)
        await turns(8)
        assert len(crowd.granted) == before or back == 10
        assert not crowd.limiter.try_acquire()
    await clock.run(20)

    assert list(crowd.granted) == list(range(30))
    assert sorted(crowd.granted.values())[-1] <= 13 * SECOND + SECOND // 10


@both
async def test_a_clock_that_leaps_ahead_gives_one_burst_at_most(kind: str) -> None:
    """T8, systemd/systemd#42919: a machine that slept for a day must not send a day's requests on waking."""
    clock = ManualClock()
    limiter = aiorate.Limiter(KINDS[kind]("10/s"), clock=clock)
    crowd = Crowd(limiter, clock)
    await crowd.queue(range(1000))

    clock.set(86_400 * SECOND)
    await turns(12)

    assert len(crowd.granted) - 1 <= limiter.bound(1e-9)  # type: ignore[operator]
    assert limiter.statistics().skipped > 863_000
    await limiter.aclose()
    await asyncio.wait(crowd.tasks.values())
    assert [task.exception() is None for task in crowd.tasks.values()].count(True) == len(crowd.granted)
