"""Defects that other libraries had, each named by its report."""

from __future__ import annotations

import asyncio
import random
from itertools import permutations, product

import pytest
from helpers.driving import SECOND, Crowd, one_loop, turns
from helpers.server import most_in_any_window
from helpers.strategies import EACH
from helpers.transcripts import S

import aiorate
from aiorate import SlidingWindow, TokenBucket, TokenPool
from aiorate.testing import ManualClock, simulate


@one_loop
async def test_a_loop_that_stalls_costs_no_rate_within_catch_up() -> None:
    """asynciolimiter (max_burst): half of the rate was lost under stalls. Within catch_up nothing is lost; the rest is counted."""
    dice = random.Random(10)
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(aiorate.BurstCompensation("100/s"), clock=clock, catch_up=0.02), clock)
    await crowd.queue(range(1001))

    while crowd.limiter.statistics().waiting:
        clock.set(clock.now() + dice.randrange(1, 20) * 1_000_000)
        await turns(6)

    assert crowd.limiter.statistics().skipped == 0
    assert 10 * SECOND <= crowd.granted[1000] <= 10 * SECOND + 20_000_000


@one_loop
@pytest.mark.parametrize("off", [-0.2, 0.2])
async def test_timers_off_by_a_fifth_either_way_keep_the_average(off: float) -> None:
    """dotnet/runtime#74056: 1.5 s for a permit instead of 1 s. libuv/libuv#4773: a timer that is early grants nothing."""

    class Off(ManualClock):
        """Its timers fire after 80 % or 120 % of the time."""

        def call_at(self, instant: int, callback: object) -> object:  # type: ignore[override]
            return super().call_at(instant + round(off * (instant - self.now())), callback)  # type: ignore[arg-type]

    clock, exact = Off(), simulate(EACH["TokenBucket-paced"](), [0] * 50)
    crowd = Crowd(aiorate.Limiter(EACH["TokenBucket-paced"](), clock=clock, catch_up=0.3), clock)
    await crowd.queue(range(50))

    await clock.run(30)

    late = [crowd.granted[k] - exact[k] for k in range(50)]
    assert min(late) >= 0
    assert max(late) <= (SECOND // 5 if off > 0 else 2_000_000)


@one_loop
async def test_waiters_at_full_load_leave_nothing_unused() -> None:
    """throttled-py, sidekiq/sidekiq#5315: 16 of 31 were admitted, because all polled with the same wait."""
    for name in EACH:
        clock = ManualClock()
        limiter = aiorate.Limiter(EACH[name](), clock=clock)
        crowd = Crowd(limiter, clock)
        await crowd.queue(range(300))

        await clock.run(20)

        rate = limiter.rate.per_second
        assert len(crowd.granted) >= 0.99 * rate * (20 - (2 if name == "SmoothWarmingUp" else 0)), name


@one_loop
async def test_last_of_a_thousand_settings_is_the_rate() -> None:
    """SGrondin/bottleneck#185: an update of the settings broke the refill for good."""
    dice, clock = random.Random(17), ManualClock()
    crowd = Crowd(aiorate.Limiter("10/s", clock=clock), clock)
    await crowd.queue(range(200))

    for _ in range(1000):
        crowd.limiter.set_rate(dice.choice(("1/s", "7/s", "50/s", "3/250ms")))
        await clock.run(0.001)
    crowd.limiter.set_rate("10/s")
    await clock.run(30)

    instants = list(crowd.granted.values())
    assert len(instants) == 200
    assert {later - at for at, later in zip(instants[-50:], instants[-49:], strict=False)} == {SECOND // 10}


def test_the_place_of_a_limit_among_others_changes_nothing() -> None:
    """envoyproxy/envoy#46390: a limit that came first kept another from being checked."""
    orders = permutations(("TokenBucket", "SlidingWindow", "AllOf"))

    schedules = [simulate(aiorate.AllOf(*(EACH[name]() for name in order)), [0] * 50) for order in orders]

    assert all(schedule == schedules[0] for schedule in schedules)


@one_loop
@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket"])
async def test_granted_task_may_cancel_all_others_at_once(name: str) -> None:
    """dotnet/runtime#85523: a cancellation from inside a grant waited for the lock that the grant held."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock), clock)
    while crowd.limiter.try_acquire():
        pass

    async def first() -> None:
        await crowd.limiter.acquire()
        for who in "ABC":
            crowd.tasks[who].cancel()
        crowd.ask("again")

    task = asyncio.ensure_future(first())
    await turns(2)
    await crowd.queue("ABC")
    await clock.run(5)

    assert task.done()
    assert list(crowd.granted) == ["again"]
    assert crowd.limiter.statistics().cancelled == 3


# Schedulers.


BOUNDED = [name for name in EACH if name not in ("TicksAccumulator", "BurstCompensation-half")]
MAKERS = (aiorate.TokenPool, aiorate.BurstCompensation, aiorate.SmoothBursty, aiorate.BurstRatio)


def test_a_day_of_idleness_is_one_burst() -> None:
    """pelikan-io/rustcommon#36: 31 at once instead of 1."""
    for name in BOUNDED:
        scheduler = EACH[name]()
        scheduler.peek(1, 0)
        now = 86_400 * S
        at_once = sum(scheduler.take(1, now) <= now for _ in range(200))

        assert at_once <= (scheduler.bound(1) or 0), name


def test_the_cap_holds_at_any_size_of_number_and_period() -> None:
    """sindresorhus/p-queue#126: ignored for large numbers and small periods. dotnet/runtime#109027: a small period became 0."""
    for make, permits, period in random.Random(1).sample(
        list(product(MAKERS, ("0.01", "1", "7", "100000"), ("1ms", "250ms", "s", "min", "day"))), 20
    ):
        granted = simulate(make(f"{permits}/{period}"), [0] * 500)
        length = make(f"{permits}/{period}").rate.period_ns

        assert most_in_any_window(granted, length) <= (make(f"{permits}/{period}").bound(length) or 0), (make, permits, period)
        assert granted[-1] > 0, (make, permits, period)


def test_a_clock_that_goes_back_and_forth_gives_nothing() -> None:
    """golang/go#71360, #65508, #23145, #56287: 5000 times the rate. One second repeated is still one second."""
    for name in BOUNDED:
        scheduler, dice = EACH[name](), random.Random(name)
        granted = sum(scheduler.take(1, now) <= now for now in (dice.randrange(S) for _ in range(1_000)))

        assert granted <= (scheduler.bound(S) or 0), name


def test_a_step_of_the_clock_makes_no_absurd_wait() -> None:
    """vutran1710/PyrateLimiter#45: 1.6e9 s. Any origin and a jump of years give a sensible wait."""
    for name in EACH:
        for origin in (-(10**18), 0, 1_700_000_000 * S):
            scheduler = EACH[name]()
            simulate(scheduler, [origin] * 30)
            now = origin + 50 * 365 * 86_400 * S
            assert scheduler.take(1, now) <= now, name
            assert max(scheduler.peek(1, now) - now, 0) <= S, name


def test_a_clock_that_moves_in_steps_keeps_the_rate() -> None:
    """MagicStack/uvloop#359: time stands still between calls. The line, served at the next step, loses nothing on average."""
    for step in [10**6, 15_600_000]:
        for name in ["TokenPool", "TokenBucket-paced", "BurstRatio", "SmoothBursty", "BurstCompensation-strict"]:
            coarse, exact = EACH[name](), simulate(EACH[name](), [0] * 500)
            now = 0
            for due in exact:
                while (at := coarse.take(1, now, since=0)) > now:
                    assert at == due, (step, name)
                    now = -(-at // step) * step
            assert now - exact[-1] < step, (step, name)


def test_a_period_under_a_millisecond_still_refills() -> None:
    """dotnet/runtime#109027, #130027: it was truncated to 0 and the refill stopped for ever."""
    for period in ["100us", "10us", "1us", "1ns"]:
        for scheduler in (TokenBucket(f"1/{period}", burst=1), SlidingWindow(f"1/{period}"), TokenPool(f"1/{period}", pool=1)):
            length = scheduler.rate.period_ns
            assert simulate(scheduler, [0] * 4) == [0, length, 2 * length, 3 * length], period
