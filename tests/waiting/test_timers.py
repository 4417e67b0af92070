"""A timer is a hint, the clock is the judge: timers that fire early, clocks that move in steps, leap, go back or only tell the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from time import monotonic_ns
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, alive, others, turns

import aiorate
from aiorate.testing import ManualClock

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
        return super().now()

    def call_at(self, instant: int, callback: Callable[[], None]) -> Any:
        return super().call_at(self.true() + max(instant - self.now(), 0), callback)


@both
@pytest.mark.asyncio
async def test_one_timer_and_no_task_for_thousands(kind: str) -> None:
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(KINDS[kind]("10/s"), clock=clock), clock)

    await crowd.queue(range(1000))

    assert clock.timers == 1
    assert len(others() - set(crowd.tasks.values())) == (1 if kind == "filler" else 0)
    await crowd.limiter.aclose()
    await asyncio.wait(crowd.tasks.values())


@both
@pytest.mark.asyncio
async def test_an_early_timer_grants_nothing_early_and_does_not_spin(kind: str) -> None:
    """bharel/asynciolimiter#14, python/cpython#127859, MagicStack/uvloop#233. At most two more wake-ups for each grant."""
    for early in (1, 1000, MS // 2, MS):
        clock = Early(early)
        crowd = Crowd(aiorate.Limiter(KINDS[kind]("10/s"), clock=clock), clock)
        await crowd.queue(range(20))

        await clock.run(3)

        late = [at - who * SECOND // 10 for who, at in crowd.granted.items()]
        assert (min(late), len(late)) == (0, 20), early
        assert max(late) <= MS, early
        assert clock.rings <= 3 * 19, early


@both
@pytest.mark.asyncio
async def test_a_clock_that_moves_in_steps_costs_no_rate(kind: str) -> None:
    """MagicStack/uvloop#359: several calls at one reading, and timers that fire before it has moved."""
    for step, rate in ((MS, 10), (MS, 3000), (15_600_000, 100), (15_600_000, 3000)):
        clock = Coarse(step)
        crowd = Crowd(aiorate.Limiter(KINDS[kind](f"{rate}/s"), clock=clock), clock)
        count = rate

        async def worker(crowd: Crowd = crowd, clock: Coarse = clock, count: int = count) -> None:
            while len(crowd.granted) < count:
                await crowd.limiter.acquire()
                crowd.granted[len(crowd.granted)] = clock.true()

        tasks = [asyncio.ensure_future(worker()) for _ in range(20)]
        await clock.run(2)

        took = crowd.granted[count - 1]
        assert abs(took - (count - 1) * SECOND // rate) <= 2 * step, (step, rate)
        assert all(at >= (who - 2) * SECOND // rate for who, at in crowd.granted.items()), (step, rate)
        await crowd.limiter.aclose()
        await asyncio.gather(*tasks, return_exceptions=True)


@both
@pytest.mark.asyncio
async def test_wake_ups_are_a_millisecond_apart_at_any_rate(kind: str) -> None:
    """PyrateLimiter 4.3: a wait that rounds to zero must not become a spin; requests that fall due meanwhile are granted together."""
    clock = Early(0)
    crowd = Crowd(aiorate.Limiter(KINDS[kind]("1000000/s"), clock=clock), clock)
    await crowd.queue(range(2000))

    await clock.run(1)

    assert len(crowd.granted) == 2000
    assert clock.rings <= 4


@both
@pytest.mark.asyncio
async def test_a_clock_that_goes_back_grants_nothing_and_hangs_nobody(kind: str) -> None:
    """golang/go#71360, golang/go#65508. Time that goes back earns nothing, and nothing again when it returns."""
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
@pytest.mark.asyncio
async def test_a_clock_that_leaps_ahead_gives_one_burst_at_most(kind: str) -> None:
    """systemd/systemd#42919: a machine that slept for a day must not send a day's requests on waking."""
    clock = ManualClock()
    limiter = aiorate.Limiter(KINDS[kind]("10/s"), clock=clock)
    crowd = Crowd(limiter, clock)
    await crowd.queue(range(1000))

    clock.set(3_600 * SECOND)
    await turns(12)

    assert 1 < len(crowd.granted) <= 1 + (limiter.bound(1e-9) or 0)
    assert limiter.statistics().skipped > 35_000
    await limiter.aclose()
    await asyncio.wait(crowd.tasks.values())
    assert [task.exception() is None for task in crowd.tasks.values()].count(True) == len(crowd.granted)


# Which clock is read.


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_real_loops_are_timed_by_the_monotonic_clock() -> None:
    """uvloop's own time moves in steps of 1 ms (MagicStack/uvloop#359); wall-clock time is never used."""
    limiter = aiorate.Limiter("1/h")
    await limiter.acquire()
    before = monotonic_ns()

    limiter.pause(3600)

    until = limiter.statistics().paused_until
    assert until is not None
    assert before <= round(until * SECOND) - 3600 * SECOND + 1000
    assert round(until * SECOND) - 3600 * SECOND - 1000 <= monotonic_ns()


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_virtual_loops_are_timed_by_their_own_time() -> None:
    """A frozen test clock must not become a wait of years."""
    limiter = aiorate.Limiter("1/h")

    assert [await limiter.acquire() for _ in range(3)] == [0.0, 3600.0, 3600.0]
    assert asyncio.get_running_loop().time() >= 7200


def test_uvloops_timers_are_set_for_the_end_of_a_millisecond() -> None:
    """It rounds to the nearest: a timer of 0.4 ms would fire at once, again and again (MagicStack/uvloop#233)."""
    uvloop = pytest.importorskip("uvloop")
    waits: list[float] = []

    class Watched(uvloop.Loop):
        __module__ = "uvloop"

        def call_later(self, delay: float, *arguments: Any, **options: Any) -> Any:
            waits.append(delay)
            return super().call_later(delay, *arguments, **options)

    async def main() -> None:
        for rate in ("700/s", "300/s", "1/s"):
            limiter = aiorate.Limiter(aiorate.TokenBucket(rate, burst=1))
            await limiter.acquire()
            task = asyncio.ensure_future(limiter.acquire())
            await turns(2)
            task.cancel()
            await turns(2)

    with asyncio.Runner(loop_factory=Watched) as runner:
        runner.run(main())

    assert len(waits) >= 1
    assert [round(1000 * wait, 6) % 1 for wait in waits] == [0.0] * len(waits)
    assert min(waits) >= 0


class Bare:
    """A clock with only now(), as a user would write it."""

    instant = 0

    def now(self) -> int:
        return self.instant


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_clock_without_timers_is_read_again_by_the_loops() -> None:
    """While the clock stands still nothing is granted, and the loop is not kept busy."""
    clock = Bare()
    limiter = aiorate.Limiter("10/s", clock=clock)
    assert await limiter.acquire() == 0.0
    task = asyncio.ensure_future(limiter.acquire())

    await asyncio.sleep(60)
    assert not task.done()
    clock.instant = SECOND // 10
    await asyncio.sleep(1)

    assert task.result() == 0.1


def test_a_pause_of_any_length_is_taken_as_it_is() -> None:
    """From 0 to a length that a float of seconds cannot express in nanoseconds."""
    for seconds in (0, 0.0, 1e-9, 1e300, 10**300):
        limiter = aiorate.Limiter("10/s", clock=ManualClock())

        limiter.pause(seconds)

        assert limiter.try_acquire() is (seconds == 0), seconds
        limiter.resume()
        assert limiter.statistics().paused_until is None, seconds
        assert limiter.try_acquire() is (seconds != 0), seconds


# What is kept of deadlines.


@pytest.mark.asyncio
async def test_only_the_earliest_deadline_has_a_timer() -> None:
    """A request with an earlier deadline takes the timer over at once, and none stays after the last."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/min", burst=1), clock=clock)
    limiter.try_acquire()
    tasks = [asyncio.ensure_future(limiter.acquire(max_wait=max_wait)) for max_wait in (9_000, 8_000, 7_300)]
    await turns(2)
    assert clock.timers == 1  # for the line and the deadlines
    limiter.pause(20_000)

    for seconds, left in ((7_299, 3), (1, 2), (699, 2), (1, 1), (999, 1), (1, 0)):
        await clock.run(seconds)
        assert limiter.statistics().waiting == left, seconds
    assert clock.timers == 0
    assert {type(task.exception()) for task in tasks} == {aiorate.WaitTooLong}


@both
@pytest.mark.asyncio
async def test_no_timer_of_a_deadline_stays_after_the_grant(kind: str) -> None:
    """Nor after a coroutine with a deadline was closed, whose future is never done."""
    clock = ManualClock()
    limiter = aiorate.Limiter(KINDS[kind]("1/s"), clock=clock)
    limiter.try_acquire()
    tasks = [asyncio.ensure_future(limiter.acquire(max_wait=max_wait)) for max_wait in (100, None)]
    await turns(3)
    assert clock.timers == 1
    await clock.run(1)
    assert (True, 1) == (tasks[0].done(), clock.timers)

    coroutine = limiter.acquire(max_wait=10_000)
    coroutine.send(None)
    assert clock.timers == 1
    coroutine.close()
    assert clock.timers == 1

    await clock.run(1)
    assert clock.timers == 0
    await asyncio.wait(tasks)


@pytest.mark.asyncio
async def test_requests_with_far_deadlines_do_not_pile_up() -> None:
    """Granted or cancelled long before, behind one with a sooner deadline: a line that never ends would keep them for hours."""
    for cancel in (False, True):
        clock = ManualClock()
        limiter = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
        limiter.try_acquire()
        line: list[asyncio.Task[float]] = []
        before = alive(asyncio.Future)
        for step in range(300):
            line.append(asyncio.ensure_future(limiter.acquire(max_wait=5 if step % 2 else 10_000)))
            await turns(2)
            if cancel and step % 2 == 0:
                line.pop().cancel()
            elif step >= 2:
                await clock.run(1)
            line = [task for task in line if not task.done()]
        assert len(line) >= 1, cancel
        del line
        assert alive(asyncio.Future) - before < 50, cancel
        await limiter.aclose()


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_thousand_deadlines_fail_per_iteration() -> None:
    """All 2500 at once would block other tasks of the loop."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=1))
    limiter.try_acquire()
    refused = 0

    async def ask() -> None:
        nonlocal refused
        try:
            await limiter.acquire(max_wait=10)
        except aiorate.WaitTooLong:
            refused += 1

    tasks = [asyncio.ensure_future(ask()) for _ in range(2_500)]
    await turns(3)
    limiter.pause(60)
    await asyncio.sleep(9.999)
    seen = [refused]
    while refused < 2_500:
        await asyncio.sleep(0.000_1)
        seen.append(refused)

    assert seen[0] == 0
    assert max(later - before for before, later in pairwise(seen)) == 1_000
    await asyncio.wait(tasks)
