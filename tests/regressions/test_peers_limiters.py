"""Defects that limiters of other libraries had, each named by its report."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from itertools import permutations
from time import monotonic

import pytest
from helpers.driving import LONG, SECOND, Crowd, one_loop, turns
from helpers.loops import FACTORIES
from helpers.server import most_in_any_window
from helpers.strategies import EACH
from helpers.threads import Recorded, in_thread

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
async def test_fill_drain_idle_and_burst_again_and_again() -> None:
    """bharel/asynciolimiter#17, #20: emptied once, the queue was never drained again."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=3), clock=clock)

    for _ in range(200):
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(4)]
        await turns(2)
        assert [task.done() for task in tasks] == [True, True, True, False]
        await clock.run(1)
        assert tasks[3].result() == 0.1


def test_only_the_missing_part_is_waited_for() -> None:
    """mjpieters/aiolimiter#217: slept for the whole amount."""
    clock = ManualClock()
    limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=10), clock=clock)
    assert limiter.try_acquire(7)

    assert limiter.delay(5) == 0.2


@one_loop
async def test_a_thousand_gathered_on_four_a_day_are_four() -> None:
    """alisaifee/limits#277: the cut-off was computed before the wait. joshrotenberg/tower-resilience#363: over-admission."""
    clock = ManualClock(SECOND)
    crowd = Crowd(aiorate.Limiter(aiorate.SlidingWindow("4/day"), clock=clock), clock)

    await crowd.queue(range(1000))
    await clock.run(86_399)

    assert list(crowd.granted) == [0, 1, 2, 3]
    await crowd.limiter.aclose()
    await asyncio.gather(*crowd.tasks.values(), return_exceptions=True)


def test_refusal_of_one_member_takes_from_none() -> None:
    """milvus-io/milvus#25597: the first limit was consumed although the second refused."""
    bucket, window = aiorate.TokenBucket("10/s", burst=5), aiorate.SlidingWindow("2/s")
    limiter = aiorate.Limiter(aiorate.AllOf(bucket, window), clock=ManualClock(SECOND))
    assert limiter.try_acquire(2)

    for _ in range(100):
        assert not limiter.try_acquire()

    assert bucket.peek(3, SECOND) == SECOND
    assert bucket.peek(4, SECOND) > SECOND


@one_loop
async def test_max_wait_0_succeeds_with_capacity() -> None:
    """vutran1710/PyrateLimiter 4.3 (#289): a timeout of 0 always failed."""
    for name in EACH:
        limiter = aiorate.Limiter(EACH[name](), clock=ManualClock(SECOND))

        assert await limiter.acquire(max_wait=0) == 0.0, name


def test_limit_of_0_is_refused() -> None:
    """DataDog/draino#15, spring-cloud/spring-cloud-gateway#168: a limit of 0 meant "never" in one and "unlimited" in the other."""
    for nothing in [0, 0.0, -1, "0/s"]:
        for make in (aiorate.Limiter, aiorate.TokenPool, aiorate.SlidingWindow, aiorate.BurstCompensation):
            with pytest.raises(ValueError, match="0"):
                make(nothing)  # type: ignore[arg-type]
        with pytest.raises((ValueError, TypeError), match=r"1|int"):
            aiorate.TokenBucket("1/s", burst=nothing)  # type: ignore[arg-type]


def test_stamps_of_two_clocks_never_meet() -> None:
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


def test_limits_that_contradict_each_other_are_all_kept() -> None:
    """vutran1710/PyrateLimiter 4.3 (#239): lists of rates in the wrong order were enforced wrongly, without an error."""
    for turned in [False, True]:
        members = [aiorate.SlidingWindow("10/s"), aiorate.SlidingWindow("5/min")]
        both = aiorate.AllOf(*(reversed(members) if turned else members))

        instants = simulate(both, [0] * 12)

        assert instants == [0] * 5 + [60 * SECOND] * 5 + [120 * SECOND] * 2, turned
        assert (both.bound(SECOND), both.bound(60 * SECOND), both.rate) == (5, 5, aiorate.Rate(5, per=60)), turned


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


def test_parallel_waiters_never_add_up_to_more_than_the_rate() -> None:
    """golang/go#43858, #45245: parallel waiters got more than the limit. Here many loops and threads, some of which give up."""
    bucket = Recorded("2000/s", burst=5)
    limiter = aiorate.Limiter(bucket, scope="process")
    end = monotonic() + 0.5
    kept: list[int] = []
    begin, factories = threading.Barrier(8), list(FACTORIES.values())

    def work_in_loop(number: int) -> None:
        dice, count = random.Random(number), 0

        async def task() -> None:
            nonlocal count
            while monotonic() < end:
                with suppress(TimeoutError):
                    async with asyncio.timeout(dice.choice((0, 0.001, 0.005, 10))):
                        await limiter.acquire()
                        count += 1

        async def main() -> None:
            await asyncio.gather(*(task() for _ in range(10)))

        begin.wait(LONG)
        with asyncio.Runner(loop_factory=factories[number % len(factories)]) as runner:
            runner.run(main())
        kept.append(count)

    def work_without(number: int) -> None:
        count = 0
        begin.wait(LONG)
        while monotonic() < end:
            limiter.acquire_blocking()
            count += 1
        kept.append(count)

    threads = [in_thread(lambda n=n: (work_in_loop if n < 6 else work_without)(n)) for n in range(8)]  # type: ignore[misc]
    for thread in threads:
        thread.result(LONG)

    for window in (1_000_000, 10_000_000, 100_000_000, SECOND):
        bound = limiter.bound(window / SECOND)
        assert bound is not None
        assert most_in_any_window(bucket.kept(), window) <= bound
    statistics = limiter.statistics()
    assert (0, sum(kept)) == (statistics.waiting, statistics.granted)
