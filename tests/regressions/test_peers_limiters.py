"""Defects that limiters of other libraries had: rates, timers, loops and settings. Each is named by its report."""

from __future__ import annotations

import asyncio
import random

import pytest
from helpers.driving import SECOND, Crowd, one_loop, turns
from helpers.server import most_in_any_window
from helpers.strategies import EACH

import aiorate
from aiorate.testing import ManualClock, VirtualLoop, simulate


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


@one_loop
@pytest.mark.parametrize("name", EACH)
async def test_waiters_at_full_load_leave_nothing_unused(name: str) -> None:
    """throttled-py, sidekiq/sidekiq#5315: 16 of 31 were admitted, because all polled with the same wait."""
    clock = ManualClock()
    limiter = aiorate.Limiter(EACH[name](), clock=clock)
    crowd = Crowd(limiter, clock)
    await crowd.queue(range(300))

    await clock.run(20)

    rate = limiter.rate.per_second
    assert len(crowd.granted) >= 0.99 * rate * (20 - (2 if name == "SmoothWarmingUp" else 0))


@one_loop
async def test_new_window_is_there_after_idling_through_an_edge() -> None:
    """sindresorhus/p-queue#251: delayed although a new window had begun."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.SlidingWindow("3/s"), clock=clock)
    assert limiter.try_acquire(3)

    clock.advance(1.0)

    assert limiter.delay(3) == 0.0


@one_loop
async def test_fill_drain_idle_and_burst_a_thousand_times() -> None:
    """bharel/asynciolimiter#17, #20: emptied once, the queue was never drained again."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=3), clock=clock)

    for _ in range(1000):
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(4)]
        await turns(2)
        assert [task.done() for task in tasks] == [True, True, True, False]
        await clock.run(1)
        assert tasks[3].result() == 0.1


@one_loop
async def test_only_the_missing_part_is_waited_for() -> None:
    """mjpieters/aiolimiter#217: slept for the whole amount."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=10), clock=clock)
    assert limiter.try_acquire(7)

    assert limiter.delay(5) == 0.2


@one_loop
async def test_ten_thousand_gathered_on_four_a_day_are_four() -> None:
    """alisaifee/limits#277: the cut-off was computed before the wait. joshrotenberg/tower-resilience#363: over-admission."""
    clock = ManualClock(SECOND)
    crowd = Crowd(aiorate.Limiter(aiorate.SlidingWindow("4/day"), clock=clock), clock)

    await crowd.queue(range(1000))
    await clock.run(86_399)

    assert list(crowd.granted) == [0, 1, 2, 3]
    await crowd.limiter.aclose()
    await asyncio.gather(*crowd.tasks.values(), return_exceptions=True)


@one_loop
async def test_each_of_several_limits_is_charged_once_in_a_long_line() -> None:
    """dotnet/runtime#113314: chained limiters counted twice when the inner one queued. temporalio/temporal#7590: a token served two."""
    bucket, window = aiorate.TokenBucket("10/s", burst=3), aiorate.SlidingWindow("20/3s")
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(aiorate.AllOf(bucket, window), clock=clock), clock)

    await crowd.queue(range(60))
    await clock.run(20)

    instants = list(crowd.granted.values())
    assert len(instants) == 60
    assert max(sum(at <= other < at + 3 * SECOND for other in instants) for at in instants) == 20


@one_loop
async def test_refusal_of_one_member_takes_from_none() -> None:
    """milvus-io/milvus#25597: the first limit was consumed although the second refused."""
    bucket, window = aiorate.TokenBucket("10/s", burst=5), aiorate.SlidingWindow("2/s")
    limiter = aiorate.Limiter(aiorate.AllOf(bucket, window), clock=ManualClock(SECOND))
    assert limiter.try_acquire(2)

    for _ in range(100):
        assert not limiter.try_acquire()

    assert bucket.peek(3, SECOND) == SECOND
    assert bucket.peek(4, SECOND) > SECOND


@one_loop
@pytest.mark.parametrize("name", [name for name in EACH if name != "TicksAccumulator" and "half" not in name])
async def test_day_of_idling_gives_at_most_the_bound(name: str) -> None:
    """pelikan-io/rustcommon#36: after idling, 31 were granted instead of one."""
    clock = ManualClock()
    limiter = aiorate.Limiter(EACH[name](), clock=clock)
    limiter.try_acquire()
    clock.advance(86_400)

    burst = sum(limiter.try_acquire() for _ in range(1000))

    assert burst <= limiter.bound(1e-9)  # type: ignore[operator]


@one_loop
@pytest.mark.parametrize("name", EACH)
async def test_try_acquire_grants_exactly_what_the_scheduler_grants(name: str) -> None:
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


@one_loop
async def test_hammering_around_an_edge_gives_no_double_batch() -> None:
    """SGrondin/bottleneck's README, sindresorhus/p-throttle#26: one batch before the edge of a window, another after it."""
    clock = ManualClock(SECOND - 1_000_000)
    crowd = Crowd(aiorate.Limiter(aiorate.SlidingWindow("5/s"), clock=clock), clock)
    await crowd.queue(range(20))

    await clock.run(5)

    instants = list(crowd.granted.values())
    assert [most_in_any_window(instants, window) for window in (SECOND, SECOND + 1)] == [5, 10]


@one_loop
@pytest.mark.parametrize("rate", ["0.01/s", "1/ms", "100000/ms", "100000/s", "7/250ms", "100000/day"])
@pytest.mark.parametrize("make", [aiorate.TokenPool, aiorate.BurstCompensation])
async def test_the_cap_holds_for_large_numbers_and_small_periods(make: type[aiorate.TokenPool], rate: str) -> None:
    """sindresorhus/p-queue#126: ignored. dotnet/runtime#109027, dotnet/runtime#130027: a small period never refilled."""
    clock = ManualClock()
    limiter = aiorate.Limiter(make(rate), clock=clock, catch_up=0)
    crowd = Crowd(limiter, clock)
    await crowd.queue(range(200))
    needed = 200 / limiter.rate.per_second + 0.3

    await clock.run(needed)

    assert len(crowd.granted) == 200
    assert crowd.granted[199] >= simulate(make(rate), [0] * 200)[-1]


@one_loop
@pytest.mark.parametrize("name", EACH)
async def test_looking_at_random_instants_loses_no_fraction(name: str) -> None:
    """firecracker-microvm/firecracker#3370, spring-cloud/spring-cloud-gateway#1117: a fraction was lost at each look."""
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


@one_loop
async def test_a_rate_finer_than_any_timer_is_kept() -> None:
    """google/guava#5290: 80 000 per second became 83 300. Wake-ups are 1 ms apart, and no permit is later than that."""
    clock = ManualClock()
    crowd = Crowd(aiorate.Limiter(aiorate.TicksAccumulator("80000/s"), clock=clock), clock)
    await crowd.queue(range(801))

    await clock.run(0.02)

    late = [crowd.granted[k] - k * SECOND // 80_000 for k in range(801)]
    assert min(late) == 0
    assert max(late) < 1_000_000


@one_loop
@pytest.mark.parametrize("off", [-0.2, 0.2])
@pytest.mark.parametrize("name", [name for name in EACH if name not in ("SlidingWindow", "AllOf")])  # they count from past grants
async def test_timers_off_by_a_fifth_either_way_keep_the_average(name: str, off: float) -> None:
    """dotnet/runtime#74056: 1.5 s for a permit instead of 1 s. libuv/libuv#4773: a timer that is early grants nothing."""

    class Off(ManualClock):
        """Its timers fire after 80 % or 120 % of the time."""

        def call_at(self, instant: int, callback: object) -> object:  # type: ignore[override]
            return super().call_at(instant + round(off * (instant - self.now())), callback)  # type: ignore[arg-type]

    clock, exact = Off(), simulate(EACH[name](), [0] * 50)
    crowd = Crowd(aiorate.Limiter(EACH[name](), clock=clock, catch_up=0.3), clock)
    await crowd.queue(range(50))

    await clock.run(30)

    late = [crowd.granted[k] - exact[k] for k in range(50)]
    assert min(late) >= 0
    assert max(late) <= (SECOND // 5 if off > 0 else 2_000_000)


@one_loop
@pytest.mark.parametrize(("idle", "at_once"), [(499_999_999, 4), (500_000_000, 5), (500_000_001, 5)])
async def test_the_edge_of_the_slack_is_where_it_should_be(idle: int, at_once: int) -> None:
    """uber-go/ratelimit#124, uber-go/ratelimit#60: wrong after idling for exactly the slack."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=5), clock=clock)
    assert limiter.try_acquire(5)

    clock.set(idle)

    assert sum(limiter.try_acquire() for _ in range(10)) == at_once


@one_loop
@pytest.mark.parametrize("name", [name for name in EACH if name != "TicksAccumulator" and "half" not in name])
async def test_no_timing_of_the_caller_beats_the_bound(name: str) -> None:
    """matrix-org/synapse#13018: asking, leaving and asking again at the right moments earned an extra burst."""
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


@one_loop
@pytest.mark.parametrize("name", EACH)
async def test_max_wait_0_succeeds_with_capacity(name: str) -> None:
    """vutran1710/PyrateLimiter 4.3 (#289): a timeout of 0 always failed."""
    limiter = aiorate.Limiter(EACH[name](), clock=ManualClock(SECOND))

    assert await limiter.acquire(max_wait=0) == 0.0


@one_loop
@pytest.mark.parametrize("nothing", [0, 0.0, -1, "0/s"])
async def test_limit_of_0_is_refused(nothing: object) -> None:
    """DataDog/draino#15, spring-cloud/spring-cloud-gateway#168: a limit of 0 meant "never" in one and "unlimited" in the other."""
    for make in (aiorate.Limiter, aiorate.TokenPool, aiorate.SlidingWindow, aiorate.BurstCompensation):
        with pytest.raises(ValueError, match="0"):
            make(nothing)  # type: ignore[arg-type]
    with pytest.raises((ValueError, TypeError), match=r"1|int"):
        aiorate.TokenBucket("1/s", burst=nothing)  # type: ignore[arg-type]


@one_loop
async def test_stamps_of_two_clocks_never_meet() -> None:
    """vutran1710/PyrateLimiter#302: monotonic and Unix stamps in one log, and a wait of half a century."""
    unix, monotonic = ManualClock(1_700_000_000 * SECOND), ManualClock(12_345)
    waits = []
    for clock in (unix, monotonic):
        limiter = aiorate.Limiter(aiorate.SlidingWindow("2/s"), clock=clock)
        assert limiter.try_acquire(2)
        waits.append(limiter.delay())

    assert waits == [1.0, 1.0]


MODULE_LEVEL = aiorate.Limiter("10/s")


def test_a_limiter_made_at_import_serves_five_loops() -> None:
    """mjpieters/aiolimiter#292, open-webui/open-webui#29973: pinned to the loop that imported it."""

    async def main() -> float:
        async with MODULE_LEVEL:
            return await MODULE_LEVEL.acquire()

    for _ in range(5):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            assert runner.run(main()) <= 0.2


@pytest.mark.asyncio
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


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_waiting_never_holds_up_the_loop() -> None:
    """Arize-ai/phoenix#15462: a blocking sleep inside a coroutine."""
    beats = []

    async def heartbeat() -> None:
        for _ in range(20):
            beats.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.01)

    limiter = aiorate.Limiter("10/s")
    await asyncio.gather(heartbeat(), limiter.acquire(), limiter.acquire(), limiter.acquire())

    assert [round(beat * 100) for beat in beats] == list(range(20))
