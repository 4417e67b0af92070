"""Defects that a reading of the core found. Each is written as what should be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import trio
from helpers.driving import SECOND, Crowd, turns

import aiorate
from aiorate.testing import ManualClock, VirtualLoop

one_loop = pytest.mark.asyncio(loop_factories=["asyncio"])


def virtually(main: Any) -> Any:
    """Run it in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def test_a_newcomer_behind_a_line_that_outlasted_a_pause_is_asked_at_the_limiters_own_time() -> None:
    """It was asked at the clock's reading, later by the pause: refused for 2.6 s where it waits 0.65 s."""

    async def main() -> tuple[float, float]:
        limiter = aiorate.Limiter("20/s")
        waiting = [asyncio.ensure_future(limiter.acquire()) for _ in range(20)]
        await asyncio.sleep(0)
        limiter.pause(2)
        await asyncio.sleep(2.35)
        said = limiter.delay()
        waited = await limiter.acquire(max_wait=1.5)
        await asyncio.wait(waiting)
        return said, waited

    said, waited = virtually(main)

    assert said == waited < 0.75


def test_slots_go_on_counting_what_is_skipped_after_a_reset() -> None:
    """reset() made new counters, and slots() went on to look at the old ones."""

    async def main() -> tuple[list[int], int]:
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1))
        seen = []
        async for slot in limiter.slots():
            seen.append(slot.index)
            if len(seen) == 2:
                limiter.reset()
            if len(seen) == 4:
                break
            await asyncio.sleep(1.05 if len(seen) == 3 else 0)
        return seen, limiter.statistics().skipped

    seen, skipped = virtually(main)

    assert skipped > 5
    assert seen == [0, 1, 2, 3 + skipped]


@one_loop
async def test_the_rest_of_a_skipped_permit_goes_with_the_rate_it_belongs_to() -> None:
    """Measured by a slow rate, it was taken for thousands of permits of a fast one."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(aiorate.TokenBucket("10000/day", burst=1), clock=clock), clock)
    await crowd.queue("AB")
    clock.set(clock.now() + 10 * SECOND)
    await turns(5)
    crowd.limiter.set_rate("100/s")
    crowd.ask("C")
    await turns(3)
    clock.set(clock.now() + 1 * SECOND)
    await turns(5)

    assert crowd.limiter.statistics().skipped < 110
    assert not crowd.pending


class Broken(aiorate.TokenBucket):
    """Fails once, at its fourth take."""

    takes = 0

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        self.takes += 1
        if self.takes == 4:
            raise ArithmeticError("as if")
        return super().take(permits, now, since)


@one_loop
async def test_a_strategy_that_fails_in_the_middle_of_a_line_leaves_the_limiter_whole() -> None:
    """Grants before the failure were not counted as such, and records were kept for good."""
    clock = ManualClock()
    scheduler = Broken("10/s", burst=3)
    crowd = Crowd(aiorate.Limiter(scheduler, clock=clock), clock)
    crowd.limiter.pause(1)
    await crowd.queue("ABCDE")
    await clock.run(1)

    assert list(crowd.granted) == ["A", "B", "C"]
    assert [type(crowd.tasks[name].exception()) for name in "DE"] == [ArithmeticError] * 2
    await clock.run(1)
    assert await crowd.limiter.acquire() == 0.0
    assert not scheduler.receipts


@one_loop
async def test_a_grant_from_before_a_reset_is_not_put_back_into_the_new_schedule() -> None:
    """Cancelled afterwards, it made permits out of nothing, and a count of -1."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(aiorate.TokenBucket("10/s", burst=2, initial=1), clock=clock), clock)
    await crowd.queue("AB")
    clock.advance(0.1)  # grants B, which does not run yet
    clock.set(clock.now() + 1)
    crowd.limiter.reset()
    crowd.tasks["B"].cancel()
    await turns(5)

    assert crowd.limiter.statistics().granted == 0
    assert [crowd.limiter.try_acquire() for _ in range(2)] == [True, False]


def test_a_pause_that_is_over_does_not_show() -> None:
    """repr() said "paused" until somebody asked for the time."""
    clock = ManualClock()
    limiter = aiorate.Limiter("10/s", clock=clock)
    limiter.pause(1)
    assert "paused" in repr(limiter)

    clock.advance(2)

    assert "paused" not in repr(limiter)


@one_loop
async def test_a_stopped_limiter_sets_no_timers_for_a_pause_that_is_over() -> None:
    """141 timers in 10 s, and one for ever."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock), clock)
    await crowd.queue("AB")
    crowd.limiter.pause(0.05)
    crowd.limiter.apply("10,1.0,stop")

    await clock.run(10)

    assert clock.timers == 0
    crowd.limiter.apply("10,1.0,start")
    await clock.run(1)
    assert not crowd.pending


def test_trio_as_a_guest_of_asyncio_has_its_own_driver() -> None:
    """Its tasks were given futures of asyncio, which trio cannot wait for."""

    async def guest() -> float:
        limiter = aiorate.Limiter("20/s")
        await limiter.acquire()
        return await limiter.acquire()

    async def host() -> float:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(guest, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=done.set_result)
        limiter = aiorate.Limiter("20/s")
        await limiter.acquire()
        await limiter.acquire()
        waited: float = (await done).unwrap()
        return waited

    assert 0 < asyncio.run(host())


def test_a_clock_by_hand_lets_tasks_run_under_trio_too() -> None:
    """``await clock.run()`` called asyncio."""

    async def main() -> int:
        clock = ManualClock()
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock)
        await limiter.acquire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.acquire)
            await clock.run(1)
        return limiter.statistics().granted

    assert trio.run(main) == 2
