"""Waiting lines and `slots()`: order, which requests count for `max_waiting`, places, and how the schedule follows changes."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from helpers.driving import LONG, SECOND, Crowd, SteppedClock, one_loop, turns
from helpers.strategies import EACH

import aiorate
from aiorate import Limiter, LineFull, TokenPool
from aiorate.testing import ManualClock, VirtualLoop


@one_loop
async def test_a_task_that_was_cancelled_before_waits_like_any_other() -> None:
    """A task cleaning up after a cancellation counted as cancelled in a TokenPool: neither ``waiting`` nor ``max_waiting`` saw it."""
    clock = ManualClock()
    limiter = Limiter(TokenPool("1/s"), clock=clock, max_waiting=1)
    assert limiter.try_acquire()

    async def clean_up() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await limiter.acquire()

    task = asyncio.ensure_future(clean_up())
    await turns(2)
    task.cancel()
    await turns(3)

    assert 1 == limiter.statistics().waiting
    with pytest.raises(LineFull):
        await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(limiter.acquire())), 0.1)
    await clock.run(5)
    assert task.cancelled()


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_no_time_passes_while_a_thread_holds_a_place() -> None:
    """A waiter for a place set a timer for the year 2162, and virtual time jumped there."""
    loop, limiter = asyncio.get_running_loop(), Limiter("1000/s", max_concurrency=1)
    done = threading.Event()

    async def hold() -> None:
        async with limiter:
            await loop.run_in_executor(None, done.wait, LONG)

    async def enter() -> None:
        async with limiter:
            pass

    tasks = [asyncio.ensure_future(hold()), asyncio.ensure_future(enter())]
    threading.Timer(0.05, done.set).start()
    await asyncio.wait(tasks)
    assert loop.time() < 1


@pytest.mark.parametrize("run", [asyncio.run, trio.run])
def test_task_that_would_wait_for_itself_gets_an_error(run: Callable[..., Any]) -> None:
    """As with anyio's CapacityLimiter. It hung before, and so did every task behind it."""
    limiter = Limiter("1000/s", max_concurrency=1)

    async def main() -> None:
        async with limiter:
            await limiter.acquire()
            with pytest.raises(RuntimeError, match="would wait for itself"):
                async with limiter:
                    pass
            with pytest.raises(RuntimeError, match="would wait for itself"):
                await limited()
        async with limiter:
            pass
        await limited()

    @limiter
    async def limited() -> None:
        pass

    run(main) if run is trio.run else run(main())


# The schedule.


MS = SECOND // 1000


PACING: dict[str, Callable[[int], aiorate.Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=1),
}


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("strategy", ["TokenPool", "TokenBucket"])
async def test_the_index_of_a_slot_follows_the_schedule(strategy: str) -> None:
    """The fraction of a permit left over at each stall was dropped: 4735 instead of 5145 after 1000 slow bodies."""
    limiter, dice = aiorate.Limiter(PACING[strategy](331), catch_up=0.02), random.Random(13)

    behind, taken = [], 0
    async for slot in limiter.slots():
        taken += 1
        # Where the schedule was when the slot began.
        behind.append((slot.scheduled_at + slot.lag) * 331 - slot.index)
        assert slot.index == taken - 1 + limiter.statistics().skipped
        if taken == 1000:
            break
        await asyncio.sleep(dice.uniform(0, 0.1))

    # At most the catch-up, the pool and part of a permit, however long the run.
    assert -1e-6 < min(behind)
    assert max(behind) < 0.02 * 331 + 3


def test_slots_go_on_counting_skipped_ones_after_a_reset() -> None:
    """reset() made new counters, and slots() still looked at the old ones."""

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

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        seen, skipped = runner.run(main())

    assert skipped > 5
    assert seen == [0, 1, 2, 3 + skipped]


@one_loop
async def test_stopped_limiter_sets_no_timers_after_a_pause() -> None:
    """It set 141 timers in 10 s, and one that never fired."""
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


@one_loop
async def test_charging_and_refunding_nothing_does_nothing() -> None:
    """``charge(used - estimate)`` failed when the estimate was exact."""
    for strategy in ("TokenPool", "TokenBucket", "SlidingWindow"):
        clock = ManualClock()
        limiter, untouched = (aiorate.Limiter(EACH[strategy](), clock=clock) for _ in range(2))
        for each in (limiter, untouched):
            while each.try_acquire():
                pass
        crowd = Crowd(limiter, clock)
        await crowd.queue("A")

        limiter.charge(0)
        limiter.refund(0)

        due = untouched.delay()
        assert due == limiter.statistics().next_at, strategy
        assert (0, untouched.statistics().granted) == (limiter.statistics().refunded, limiter.statistics().granted), strategy
        await clock.run(due)
        assert {"A": round(due * SECOND)} == crowd.granted, strategy
        for call in (limiter.charge, limiter.refund):
            with pytest.raises(TypeError):
                call(False)
            with pytest.raises(TypeError):
                call(0.0)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="or more"):
                call(-1)


@one_loop
async def test_restart_restarts_a_limiter_that_was_stopped() -> None:
    """``apply("10,1.5,restart")`` after a stop only started: pools stayed full and the backlog was caught up with."""
    for scheduler in [
        lambda: aiorate.TokenPool("10/s", burst_ratio=1.5),
        lambda: aiorate.TicksAccumulator("10/s"),
        lambda: aiorate.BurstCompensation("10/s", strictness=0),
        lambda: aiorate.BurstRatio("10/s", ratio=1.5),
    ]:
        clock = ManualClock()
        limiter = aiorate.Limiter(scheduler(), clock=clock)
        crowd = Crowd(limiter, clock)
        assert limiter.try_acquire(), scheduler
        clock.advance(10)
        behind = limiter.lag
        limiter.apply("10,1.5,stop")
        await crowd.queue("ABC")
        await clock.run(5)
        assert {} == crowd.granted, scheduler

        limiter.apply("10,1.5,restart")
        lag = limiter.lag
        await clock.run(1)

        assert behind > 9, scheduler
        assert 0 == lag, scheduler
        # A waits for one permit in an empty pool, and for nothing elsewhere. The others follow at the rate.
        first = (15_100 if isinstance(limiter.scheduler, aiorate.TokenPool) else 15_000) * MS
        assert {"A": first, "B": first + 100 * MS, "C": first + 200 * MS} == crowd.granted, scheduler
        assert limiter.statistics().paused_until is None, scheduler


@one_loop
async def test_rate_of_one_member_changes_for_waiters_too() -> None:
    """``members[0].set_rate()`` did not set the timer of the line again; its waiters were still there 58 s later."""
    clock = SteppedClock()
    limiter = aiorate.Limiter(aiorate.AllOf(aiorate.TokenBucket("1/min", burst=1), aiorate.TokenBucket("100/s", burst=5)), clock=clock)
    crowd = Crowd(limiter, clock)
    assert limiter.try_acquire()
    await crowd.queue("AB")
    await clock.run(2)

    limiter.set_rate("10/s", member=0)
    await clock.run(1)

    # 58/60 of a permit are missing, at ten per second.
    assert {"A": 2 * SECOND + 96_666_667, "B": 2 * SECOND + 196_666_667} == crowd.granted
    with pytest.raises(RuntimeError, match="member=0"):
        limiter.set_rate("10/s")
    with pytest.raises(ValueError, match="2 members"):
        limiter.set_rate("10/s", member=2)


def test_time_goes_on_from_a_start_and_the_end_of_a_pause() -> None:
    """The time between a start, or the end of a pause, and the next reading was lost."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=100), clock=clock)
    assert limiter.try_acquire(100)
    limiter.apply("1,1,stop")
    clock.advance(10)
    limiter.apply("1,1,start")
    clock.advance(2)
    assert limiter.statistics().available == 2

    limiter.pause(5)
    clock.advance(8)
    limiter.resume()

    assert limiter.statistics().available == 5


@one_loop
async def test_a_slot_that_waits_for_a_reset_takes_no_skipped_ones_back() -> None:
    """What had been given up before was counted as less than nothing: -49 permits skipped."""
    clock = ManualClock()
    limiter = Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock)
    slots = limiter.slots()
    await anext(slots)
    clock.advance(5)
    await anext(slots)
    waiting = asyncio.ensure_future(anext(slots))
    await turns(2)
    assert limiter.statistics().skipped == 48
    limiter.reset()

    assert (await waiting).index == 50
    assert limiter.statistics().skipped == 0
