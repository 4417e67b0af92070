"""Defects that others had, as tests of ours: rates, time and input at the level of the limiter."""

from __future__ import annotations

import asyncio
import random

import pytest
from helpers.driving import SECOND, Crowd, one_loop, turns
from helpers.strategies import EACH

import aiorate
from aiorate.testing import ManualClock

pytestmark = one_loop


async def test_a_loop_that_stalls_costs_no_rate_within_catch_up() -> None:
    """asynciolimiter (max_burst): half of the rate was lost under stalls. Within catch_up nothing is; beyond, it is counted."""
    dice = random.Random(10)
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(aiorate.BurstCompensation("100/s"), clock=clock, catch_up=0.02), clock)
    await crowd.queue(range(1001))

    while crowd.limiter.statistics().waiting:
        clock.set(clock.now() + dice.randrange(1, 20) * 1_000_000)
        await turns(6)

    assert crowd.limiter.statistics().skipped == 0
    assert 10 * SECOND <= crowd.granted[1000] <= 10 * SECOND + 20_000_000


async def test_timers_late_by_a_fifth_keep_the_average() -> None:
    """dotnet/runtime#74056: 1.5 s for a permit instead of 1 s."""
    dice = random.Random(11)
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter("1/s", clock=clock, catch_up=0.3), clock)
    await crowd.queue(range(100))

    for k in range(1, 100):
        clock.set(k * SECOND + dice.randrange(SECOND // 5))
        await turns(6)

    assert len(crowd.granted) == 100
    assert crowd.granted[99] < 99 * SECOND + SECOND // 5


@pytest.mark.parametrize("name", EACH)
async def test_waiters_at_full_load_leave_nothing_unused(name: str) -> None:
    """throttled-py, sidekiq/sidekiq#5315: 16 of 31 were admitted, because all polled with one shared wait."""
    clock = ManualClock()
    limiter = aiorate.Limiter(EACH[name](), clock=clock)
    crowd = Crowd(limiter, clock)
    await crowd.queue(range(300))

    await clock.run(20)

    rate = limiter.rate.per_second
    assert len(crowd.granted) >= 0.99 * rate * (20 - (2 if name == "SmoothWarmingUp" else 0))


async def test_after_idling_through_an_edge_the_new_window_is_there_at_once() -> None:
    """sindresorhus/p-queue#251: delayed although a new window had begun."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.SlidingWindow("3/s"), clock=clock)
    assert limiter.try_acquire(3)

    clock.advance(1.0)

    assert limiter.delay(3) == 0.0


async def test_fill_drain_idle_and_burst_a_thousand_times() -> None:
    """C6, bharel/asynciolimiter#17, #20: emptied once, the queue was never drained again."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=3), clock=clock)

    for _ in range(1000):
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(4)]
        await turns(2)
        assert [task.done() for task in tasks] == [True, True, True, False]
        await clock.run(1)
        assert tasks[3].result() == 0.1


async def test_only_the_missing_part_is_waited_for() -> None:
    """C7, mjpieters/aiolimiter#217: slept for the whole amount."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=10), clock=clock)
    assert limiter.try_acquire(7)

    assert limiter.delay(5) == 0.2


async def test_ten_thousand_gathered_on_four_a_day_are_four() -> None:
    """L5, alisaifee/limits#277: the cut-off was computed before the wait. C8, joshrotenberg/tower-resilience#363: over-admission."""
    clock = ManualClock(SECOND)
    crowd = Crowd(aiorate.Limiter(aiorate.SlidingWindow("4/day"), clock=clock), clock)

    await crowd.queue(range(1000))
    await clock.run(86_399)

    assert list(crowd.granted) == [0, 1, 2, 3]
    await crowd.limiter.aclose()
    await asyncio.gather(*crowd.tasks.values(), return_exceptions=True)


async def test_several_limits_charge_each_member_once_however_long_the_line() -> None:
    """M1, dotnet/runtime#113314: chained limiters counted twice when the inner one queued. M4, temporalio/temporal#7590."""
    bucket, window = aiorate.TokenBucket("10/s", burst=3), aiorate.SlidingWindow("20/3s")
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(aiorate.AllOf(bucket, window), clock=clock), clock)

    await crowd.queue(range(60))
    await clock.run(20)

    instants = list(crowd.granted.values())
    assert len(instants) == 60
    assert max(sum(at <= other < at + 3 * SECOND for other in instants) for at in instants) == 20


async def test_what_one_member_refuses_is_taken_from_none() -> None:
    """M2, milvus-io/milvus#25597: the first limit was consumed although the second refused."""
    bucket, window = aiorate.TokenBucket("10/s", burst=5), aiorate.SlidingWindow("2/s")
    limiter = aiorate.Limiter(aiorate.AllOf(bucket, window), clock=ManualClock(SECOND))
    assert limiter.try_acquire(2)

    for _ in range(100):
        assert not limiter.try_acquire()

    assert bucket.peek(3, SECOND) == SECOND
    assert bucket.peek(4, SECOND) > SECOND


@pytest.mark.parametrize("name", [name for name in EACH if name != "TicksAccumulator" and "half" not in name])
async def test_a_day_idle_gives_no_more_than_the_bound(name: str) -> None:
    """R3, pelikan-io/rustcommon#36: after idling 31 were granted instead of one."""
    clock = ManualClock()
    limiter = aiorate.Limiter(EACH[name](), clock=clock)
    limiter.try_acquire()
    clock.advance(86_400)

    burst = sum(limiter.try_acquire() for _ in range(1000))

    assert burst <= limiter.bound(1e-9)  # type: ignore[operator]


@pytest.mark.parametrize("name", EACH)
async def test_what_is_tried_one_by_one_is_what_the_scheduler_would_grant(name: str) -> None:
    """A limiter adds nothing and takes nothing away, at whatever pace it is asked."""
    dice = random.Random(12)
    clock, alone = ManualClock(SECOND), EACH[name]()
    limiter = aiorate.Limiter(EACH[name](), clock=clock)
    wrong = []

    for step in range(2000):
        granted, expected = limiter.try_acquire(), alone.take(1, clock.now()) <= clock.now()
        if granted is not expected:
            wrong.append((step, granted))
        clock.advance(dice.choice((0, 0, 0, 0.0001, 0.05, 0.3)))

    assert wrong == []
