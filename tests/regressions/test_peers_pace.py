"""Defects that others had, as tests of ours: rates as a whole limiter delivers them, its line and its timers included."""

from __future__ import annotations

import random

import pytest
from helpers.driving import SECOND, Crowd, one_loop, turns
from helpers.server import most_in_any_window
from helpers.strategies import EACH

import aiorate
from aiorate.testing import ManualClock, simulate

pytestmark = one_loop


async def test_hammering_around_an_edge_gives_no_double_batch() -> None:
    """R4, SGrondin/bottleneck's README, sindresorhus/p-throttle#26: one batch before the edge of a window, another behind it."""
    clock = ManualClock(SECOND - 1_000_000)
    crowd = Crowd(aiorate.Limiter(aiorate.SlidingWindow("5/s"), clock=clock), clock)
    await crowd.queue(range(20))

    await clock.run(5)

    instants = list(crowd.granted.values())
    assert [most_in_any_window(instants, window) for window in (SECOND, SECOND + 1)] == [5, 10]


@pytest.mark.parametrize("rate", ["0.01/s", "1/ms", "100000/ms", "100000/s", "7/250ms", "100000/day"])
@pytest.mark.parametrize("make", [aiorate.TokenPool, aiorate.BurstCompensation])
async def test_the_cap_holds_for_large_numbers_and_small_periods(make: type[aiorate.TokenPool], rate: str) -> None:
    """R6, sindresorhus/p-queue#126: ignored. T6, dotnet/runtime#109027, dotnet/runtime#130027: a small period never refilled."""
    clock = ManualClock()
    limiter = aiorate.Limiter(make(rate), clock=clock, catch_up=0)
    crowd = Crowd(limiter, clock)
    await crowd.queue(range(200))
    needed = 200 / limiter.rate.per_second + 0.3

    await clock.run(needed)

    assert len(crowd.granted) == 200
    assert crowd.granted[199] >= simulate(make(rate), [0] * 200)[-1]


@pytest.mark.parametrize("name", EACH)
async def test_looking_at_random_instants_wears_nothing_away(name: str) -> None:
    """R7, firecracker-microvm/firecracker#3370, spring-cloud/spring-cloud-gateway#1117: a fraction was lost at each look."""
    dice, clock, quiet = random.Random(7), ManualClock(), ManualClock()
    watched = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    alone = Crowd(aiorate.Limiter(EACH[name](), clock=quiet), quiet)
    for crowd in (watched, alone):
        await crowd.queue(range(40))

    await alone.clock.run(20)
    while watched.pending:
        await clock.run(dice.randrange(1, 10**8) / 1e9)
        watched.limiter.try_acquire()
        watched.limiter.delay()
        _ = watched.limiter.lag

    assert watched.granted == alone.granted


async def test_a_rate_finer_than_any_timer_is_kept() -> None:
    """R8, google/guava#5290: 80 000 per second became 83 300. Wake-ups are 1 ms apart, and no later than that is anybody."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(aiorate.TicksAccumulator("80000/s"), clock=clock), clock)
    await crowd.queue(range(801))

    await clock.run(0.02)

    late = [crowd.granted[k] - k * SECOND // 80_000 for k in range(801)]
    assert min(late) == 0
    assert max(late) < 1_000_000


@pytest.mark.parametrize("off", [-0.2, 0.2])
@pytest.mark.parametrize("name", [name for name in EACH if name not in ("SlidingWindow", "AllOf")])  # they count from what was
async def test_timers_off_by_a_fifth_either_way_keep_the_average(name: str, off: float) -> None:
    """R10, dotnet/runtime#74056: 1.5 s for a permit instead of 1 s. T4, libuv/libuv#4773: a timer that is early grants nothing."""

    class Off(ManualClock):
        """Its timers ring after four fifths of the time, or six."""

        def call_at(self, instant: int, callback: object) -> object:  # type: ignore[override]
            return super().call_at(instant + round(off * (instant - self.now())), callback)  # type: ignore[arg-type]

    clock, exact = Off(), simulate(EACH[name](), [0] * 50)
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock, catch_up=0.3), clock)
    await crowd.queue(range(50))

    await clock.run(30)

    late = [crowd.granted[k] - exact[k] for k in range(50)]
    assert min(late) >= 0
    assert max(late) <= (SECOND // 5 if off > 0 else 2_000_000)


@pytest.mark.parametrize(("idle", "at_once"), [(499_999_999, 4), (500_000_000, 5), (500_000_001, 5)])
async def test_the_edge_of_the_slack_is_where_it_should_be(idle: int, at_once: int) -> None:
    """R11, uber-go/ratelimit#124, uber-go/ratelimit#60: wrong after being idle for just the slack."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=5), clock=clock)
    assert limiter.try_acquire(5)

    clock.set(idle)

    assert sum(limiter.try_acquire() for _ in range(10)) == at_once


@pytest.mark.parametrize("name", [name for name in EACH if name != "TicksAccumulator" and "half" not in name])
async def test_no_timing_of_the_asker_beats_the_bound(name: str) -> None:
    """R12, matrix-org/synapse#13018: who asked, left and asked again at the right moments earned a burst on top."""
    dice = random.Random(name)
    for _ in range(10):
        clock = ManualClock(SECOND)
        limiter = aiorate.Limiter(EACH[name](), clock=clock)
        crowd, taken = Crowd(limiter, clock), []
        for step in range(60):
            crowd.ask(step)
            await turns(2)
            if dice.random() < 0.3:
                crowd.tasks[step].cancel()
            taken += [clock.now()] * limiter.try_acquire()
            await clock.run(dice.choice((0, limiter.delay(), 0.05, 0.3)))
        await clock.run(30)
        instants = sorted([*crowd.granted.values(), *taken])

        for seconds in (1e-9, 0.1, 1):
            assert most_in_any_window(instants, round(seconds * SECOND)) <= (limiter.bound(seconds) or 0)


@pytest.mark.parametrize("name", EACH)
async def test_nothing_to_wait_for_succeeds_with_capacity(name: str) -> None:
    """I5, vutran1710/PyrateLimiter 4.3 (#289): a timeout of 0 always failed."""
    limiter = aiorate.Limiter(EACH[name](), clock=ManualClock(SECOND))

    assert await limiter.acquire(max_wait=0) == 0.0


@pytest.mark.parametrize("nothing", [0, 0.0, -1, "0/s"])
async def test_nothing_is_neither_never_nor_everything(nothing: object) -> None:
    """I2, DataDog/draino#15, spring-cloud/spring-cloud-gateway#168: a limit of 0 meant never here and unlimited there."""
    for make in (aiorate.Limiter, aiorate.TokenPool, aiorate.SlidingWindow, aiorate.BurstCompensation):
        with pytest.raises(ValueError, match="0"):
            make(nothing)  # type: ignore[arg-type]
    with pytest.raises((ValueError, TypeError), match=r"1|int"):
        aiorate.TokenBucket("1/s", burst=nothing)  # type: ignore[arg-type]


async def test_stamps_of_two_clocks_never_meet() -> None:
    """T3, vutran1710/PyrateLimiter#302: monotonic and Unix stamps in one log, and a wait of half a century."""
    unix, monotonic = ManualClock(1_700_000_000 * SECOND), ManualClock(12_345)
    waits = []
    for clock in (unix, monotonic):
        limiter = aiorate.Limiter(aiorate.SlidingWindow("2/s"), clock=clock)
        assert limiter.try_acquire(2)
        waits.append(limiter.delay())

    assert waits == [1.0, 1.0]
