"""Grants that are cancelled or refunded: the next owner of the permit, and when it is granted.

Exact histories on a clock moved by hand. The permits kept are compared with `Limiter.bound`, and with exact instants where only one answer
is right.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, one_loop, turns

import aiorate
from aiorate.testing import ManualClock

MS = SECOND // 1000


def check_bound(limiter: aiorate.Limiter, grants: Iterable[int]) -> None:
    """Fail if a window from one grant to just after another holds more than the limiter's bound."""
    instants = sorted(grants)
    for first, begin in enumerate(instants):
        for end in sorted(set(instants[first:])):
            held, most = bisect_right(instants, end) - first, limiter.bound((end - begin + 1) / SECOND)
            assert most is None or held <= most, f"{held} permits from {begin} to {end} ns, and {most} are the most"


PACED: dict[str, Callable[[], aiorate.Scheduler]] = {
    "TokenBucket": lambda: aiorate.TokenBucket("100/s", burst=1),
    "TokenPool": lambda: aiorate.TokenPool("100/s", pool=10 * MS),
    "BurstCompensation": lambda: aiorate.BurstCompensation("100/s"),
    "BurstRatio": lambda: aiorate.BurstRatio("100/s", ratio=1),
    "SmoothBursty": lambda: aiorate.SmoothBursty("100/s", max_burst=0),
    "SmoothWarmingUp": lambda: aiorate.SmoothWarmingUp("100/s", warmup=0.001, cold_factor=1),
    "AllOf": lambda: aiorate.AllOf(aiorate.TokenBucket("100/s", burst=1), aiorate.BurstCompensation("100/s")),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("strategy", PACED)
async def test_catch_up_does_not_add_up_over_cancelled_grants(strategy: str) -> None:
    """A cancelled grant was handed on with a new date. The catch-up of each hand-over added up to 75 permits at once."""
    clock = SteppedClock()
    limiter = aiorate.Limiter(PACED[strategy](), clock=clock)
    crowd = Crowd(limiter, clock)
    while limiter.try_acquire():
        pass
    await crowd.queue(range(600))
    before = limiter.statistics().granted

    for _ in range(50):
        clock.advance(0.015)
        granted = limiter.statistics().granted - before
        for who in crowd.pending[:granted]:
            crowd.tasks[who].cancel()
        # Long enough to hand the grants on, too short for the new owners to run.
        await turns(1)
    await turns(12)

    kept = sorted(crowd.granted.values())
    assert kept
    check_bound(limiter, kept)
    await clock.run(10)
    check_bound(limiter, crowd.granted.values())
    assert not crowd.pending


@pytest.mark.asyncio
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


@one_loop
@pytest.mark.parametrize("permits", [1, 2, 3])
async def test_window_is_exact_after_grants_of_a_stall_are_cancelled(permits: int) -> None:
    """In histories with stalls, all granted waiters are cancelled; no period ever holds more than n permits."""
    dice = random.Random(permits)
    for _ in range(30):
        clock = ManualClock()
        limiter = aiorate.Limiter(aiorate.SlidingWindow(aiorate.Rate(permits, 1)), clock=clock)
        crowd = Crowd(limiter, clock)
        await crowd.queue(range(40))
        for _ in range(30):
            await clock.run(dice.choice((0, 0.3, 0.9)))
            before = limiter.statistics().granted
            clock.advance(dice.choice((0.1, 0.7, 1.0)))
            clock.advance(dice.choice((0.001, 0.015, 0.2)))  # a stall: granted waiters have not run yet
            for who in crowd.pending[: limiter.statistics().granted - before]:
                crowd.tasks[who].cancel()
            await turns(12)
        await clock.run(60)

        assert all(task.done() for task in crowd.tasks.values())
        check_bound(limiter, crowd.granted.values())


def taken(limiter: aiorate.Limiter) -> int:
    """Take every permit available now, and count them."""
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


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda: aiorate.BurstCompensation("1/s"),
        lambda: aiorate.BurstRatio("1/s", ratio=1),
        lambda: aiorate.SmoothBursty("1/s", max_burst=0),
        lambda: aiorate.SmoothWarmingUp("1/s", warmup=0.001, cold_factor=1),
    ],
    ids=["BurstCompensation", "BurstRatio", "SmoothBursty", "SmoothWarmingUp"],
)
def test_refund_to_a_paced_strategy_lets_nobody_in_at_once(scheduler: Callable[[], aiorate.Scheduler]) -> None:
    """A's permit came back, B's slot was undone for it, and C came at the same instant as B."""
    clock = SteppedClock()
    limiter = aiorate.Limiter(scheduler(), clock=clock)

    assert limiter.try_acquire()  # A
    clock.advance(1)
    assert limiter.try_acquire()  # B
    limiter.refund(1)

    assert not limiter.try_acquire()
    assert 1.0 == limiter.delay()


SPILLING: dict[str, Callable[[], aiorate.Scheduler]] = {
    "TokenBucket": lambda: aiorate.TokenBucket("100/s", burst=1),
    "TokenPool": lambda: aiorate.TokenPool("100/s", pool=10 * MS),
    "AllOf": lambda: aiorate.AllOf(aiorate.TokenBucket("100/s", burst=1), aiorate.TokenPool("100/s")),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("strategy", SPILLING)
async def test_a_permit_that_would_have_spilled_is_not_given_back(strategy: str) -> None:
    """The bucket had been full since A's grant, so A's permit, never taken, would have spilled; C got it."""
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
    assert limiter.try_acquire()


@one_loop
async def test_grant_cancelled_after_a_reset_creates_no_permit() -> None:
    """It was put back into the new schedule, which added a permit and made the count -1."""
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


@one_loop
@pytest.mark.parametrize(
    "make",
    [lambda: aiorate.TokenPool("1/s"), lambda: aiorate.TokenBucket("1/s", burst=3, initial=0), lambda: aiorate.SlidingWindow("1/s")],
    ids=["TokenPool", "TokenBucket", "SlidingWindow"],
)
async def test_grant_cancelled_at_the_instant_of_a_reset_is_void(make: Callable[[], aiorate.Scheduler]) -> None:
    """The number granted became -1, and a pool or an empty bucket had one permit too many."""
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

    assert 0 == limiter.statistics().granted
    assert fresh == (limiter.delay(), limiter.delay(2) if limiter.scheduler.max_permits != 1 else None)
