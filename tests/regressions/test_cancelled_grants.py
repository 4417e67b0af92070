"""Permits that come back: who gets them next, and when; by receipt they leave no trace."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress

from helpers.driving import SECOND, Crowd, SteppedClock, one_loop, turns
from helpers.transcripts import S

import aiorate
import aiorate.testing
from aiorate import Rate, TokenBucket, TokenPool

MS = SECOND // 1000
PACED: dict[str, Callable[[], aiorate.Scheduler]] = {
    "TokenBucket": lambda: aiorate.TokenBucket("100/s", burst=1),
    "BurstCompensation": lambda: aiorate.BurstCompensation("100/s"),
    "AllOf": lambda: aiorate.AllOf(aiorate.TokenBucket("100/s", burst=1), aiorate.BurstCompensation("100/s")),
}
SPILLING: dict[str, Callable[[], aiorate.Scheduler]] = {
    "TokenBucket": lambda: aiorate.TokenBucket("100/s", burst=1),
    "TokenPool": lambda: aiorate.TokenPool("100/s", pool=10 * MS),
    "AllOf": lambda: aiorate.AllOf(aiorate.TokenBucket("100/s", burst=1), aiorate.TokenPool("100/s")),
}


def check_bound(limiter: aiorate.Limiter, grants: Iterable[int]) -> None:
    """Fail if a window from one grant to just after another holds more than the limiter's bound."""
    instants = sorted(grants)
    for first, begin in enumerate(instants):
        for end in sorted(set(instants[first:])):
            held, most = bisect_right(instants, end) - first, limiter.bound((end - begin + 1) / SECOND)
            assert most is None or held <= most, f"{held} permits from {begin} to {end} ns, and {most} are the most"


@one_loop
async def test_catch_up_does_not_add_up_over_cancelled_grants() -> None:
    """A cancelled grant was handed on with a new date. The catch-up of each hand-over added up to 75 permits at once."""
    for strategy in PACED:
        clock = SteppedClock()
        limiter = aiorate.Limiter(PACED[strategy](), clock=clock)
        crowd = Crowd(limiter, clock)
        while limiter.try_acquire():
            pass
        await crowd.queue(range(200))
        before = limiter.statistics().granted

        for _ in range(20):
            clock.advance(0.015)
            granted = limiter.statistics().granted - before
            for who in crowd.pending[:granted]:
                crowd.tasks[who].cancel()
            # Long enough to hand the grants on, too short for the new owners to run.
            await turns(1)
        await turns(12)

        kept = sorted(crowd.granted.values())
        assert kept, strategy
        check_bound(limiter, kept)
        await clock.run(10)
        check_bound(limiter, crowd.granted.values())
        assert not crowd.pending, strategy


@one_loop
async def test_a_window_is_exact_after_a_cancellation_and_a_stall() -> None:
    """B took over A's entry in the log but ran later, so C came less than a period after B."""
    clock = SteppedClock()
    limiter = aiorate.Limiter(aiorate.SlidingWindow("1/s"), clock=clock)
    crowd = Crowd(limiter, clock)
    assert limiter.try_acquire()
    await crowd.queue("ABC")

    clock.fire()
    clock.advance(0.02)
    crowd.tasks["A"].cancel()
    await clock.run(5)

    assert {"B": 1020 * MS, "C": 2020 * MS} == crowd.granted


def taken(limiter: aiorate.Limiter) -> int:
    count = 0
    while limiter.try_acquire():
        count += 1
    return count


def test_refund_to_a_window_frees_its_oldest_permit() -> None:
    """A's permit came back, but B's entry was forgotten: with B, three were granted within a tenth of a second."""
    clock = SteppedClock()
    limiter = aiorate.Limiter(aiorate.SlidingWindow("2/s"), clock=clock)

    assert limiter.try_acquire()  # A
    clock.advance(0.9)
    assert limiter.try_acquire()  # B
    limiter.refund(1)
    history = []
    for ms in (900, 1000, 1899, 1900, 2900):
        clock.set(ms * MS)
        history.append((ms, taken(limiter)))

    # One at once for the refund; the next two when B is a period old.
    assert [(900, 1), (1000, 0), (1899, 0), (1900, 2), (2900, 2)] == history


def test_refund_to_a_paced_strategy_lets_nobody_in_at_once() -> None:
    """A's permit came back, B's slot was undone for it, and C came at the same instant as B."""
    for scheduler in [
        lambda: aiorate.BurstCompensation("1/s"),
        lambda: aiorate.BurstRatio("1/s", ratio=1),
        lambda: aiorate.SmoothBursty("1/s", max_burst=0),
        lambda: aiorate.SmoothWarmingUp("1/s", warmup=0.001, cold_factor=1),
    ]:
        clock = SteppedClock()
        limiter = aiorate.Limiter(scheduler(), clock=clock)

        assert limiter.try_acquire()  # A
        clock.advance(1)
        assert limiter.try_acquire()  # B
        limiter.refund(1)

        assert not limiter.try_acquire(), scheduler
        assert 1.0 == limiter.delay(), scheduler


@one_loop
async def test_a_permit_that_would_have_spilled_is_not_given_back() -> None:
    """The bucket had been full since A's grant, so A's permit, never taken, would have spilled; C got it."""
    for strategy in SPILLING:
        clock = SteppedClock()
        limiter = aiorate.Limiter(SPILLING[strategy](), clock=clock, catch_up=0)
        crowd = Crowd(limiter, clock)
        taken(limiter)
        await crowd.queue("A")

        clock.fire()
        await turns(strategy == "TokenPool")  # the filler's task has to run first
        clock.advance(0.015)  # A is granted, and has not run yet
        assert limiter.try_acquire()  # B
        crowd.tasks["A"].cancel()
        await turns(5)

        assert not limiter.try_acquire()  # C
        clock.advance(0.01)
        assert limiter.try_acquire(), strategy


@one_loop
async def test_grant_cancelled_at_the_instant_of_a_reset_is_void() -> None:
    """The number granted became -1, and a pool or an empty bucket had one permit too many."""
    for make in [
        lambda: aiorate.TokenPool("1/s"),
        lambda: aiorate.TokenBucket("1/s", burst=3, initial=0),
        lambda: aiorate.SlidingWindow("1/s"),
    ]:
        clock = SteppedClock()
        limiter = aiorate.Limiter(make(), clock=clock)
        crowd = Crowd(limiter, clock)
        while limiter.try_acquire():
            pass
        await crowd.queue("A")
        clock.fire()
        await turns(isinstance(limiter.scheduler, aiorate.TokenPool))

        limiter.reset()
        fresh = limiter.delay(), limiter.delay(2) if limiter.scheduler.max_permits != 1 else None
        crowd.tasks["A"].cancel()
        await turns(3)

        assert 0 == limiter.statistics().granted, make
        assert fresh == (limiter.delay(), limiter.delay(2) if limiter.scheduler.max_permits != 1 else None), make


@one_loop
async def test_grant_cancelled_at_the_instant_of_a_reset_before_it_comes_back() -> None:
    """It was taken for one of before the reset, and a permit was lost."""
    clock = SteppedClock()
    limiter = aiorate.Limiter(TokenBucket("1/s", burst=3), clock=clock)
    crowd = Crowd(limiter, clock)
    limiter.reset()
    limiter.pause(1)
    await crowd.queue("A")
    limiter.resume()

    crowd.tasks["A"].cancel()
    await turns(3)

    assert 3 == limiter.statistics().available


def test_a_take_that_was_not_recorded_is_not_undone_as_an_older_one() -> None:
    """Two reservations that were refunded brought back two that were kept at the same instant: 180 permits of a bucket of 100."""

    async def main() -> None:
        budget = aiorate.Budget(tokens=TokenBucket("1/s", burst=100))
        kept = 0
        with suppress(aiorate.WaitTooLong):
            while True:
                async with budget.reserve(tokens=10, max_wait=0), budget.reserve(tokens=10, max_wait=0):
                    kept += 20
                for _ in range(2):
                    async with budget.reserve(tokens=10, max_wait=0) as lease:
                        lease.refund()
        assert kept <= 100

    with asyncio.Runner(loop_factory=aiorate.testing.VirtualLoop) as runner:
        runner.run(main())


def test_receipt_is_worth_a_permit_after_many_takes() -> None:
    """In the record of levels the highest seemed ever more recent: of 330 cancellations, 70 lost their permit."""
    for make in [lambda: TokenBucket("1/h", burst=1_000), lambda: TokenPool("1/h", pool=1_000 * 3_600 * SECOND)]:
        scheduler = make()
        scheduler.take(1, 0)
        scheduler.give_back(1_000, 0)  # full
        for now in range(1, 501):
            assert scheduler.take(1, now) <= now, make
        before = scheduler.available(501)

        scheduler.give_back(1, 501, 300)

        assert before + 1 == scheduler.available(501), make


def test_permit_returns_to_a_pool_at_no_more_than_the_price_it_was_taken_at() -> None:
    """Taken at 1000/s it cost 1 ms of schedule; returned at 10/s it must not bring 100 ms."""
    pool = TokenPool("1000/s", start=0)
    pool.take(1, S)
    pool.set_rate(Rate(10), S + 1)
    before = pool.active

    pool.give_back(1, S + 1, taken=S)

    assert 0 <= pool.active - before <= S // 1000


def test_the_peaks_of_a_pool_follow_its_rate() -> None:
    """The pool was full after the first take, so that permit would have spilled, whatever the rate is now."""
    pool = TokenPool("10/s", pool=S, start=0)
    pool.take(1, S)
    pool.take(1, 3 * S)
    pool.set_rate(Rate(1000), 3 * S)
    before = pool.active

    pool.give_back(1, 3 * S, taken=S)

    assert pool.active == before
