"""Defects of ours in what was granted, and to whom: numbers 3, 4, 5, 13 and 15.

Exact histories on a clock by hand. What was kept is compared with `Limiter.bound`, and with the very instants where there is one answer.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, one_loop, turns
from helpers.strategies import EACH

import aiorate
from aiorate.testing import ManualClock

MS = SECOND // 1000


def check_bound(limiter: aiorate.Limiter, grants: Iterable[int]) -> None:
    """No window that begins at a grant and ends just after another holds more than the limiter's bound."""
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
async def test_a_grant_that_is_handed_on_gets_no_younger(strategy: str) -> None:
    """Defect 3: the heir of a cancelled grant was dated anew, and what was caught up with at each hand came to 75 permits at once."""
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
        # Until they have handed on what they had, and not until the heirs run.
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
    """Defect 4: B inherited A's entry in the log but ran later, so C came less than a period after B."""
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
async def test_a_window_is_exact_whoever_is_cancelled_after_a_stall(permits: int) -> None:
    """Defects 3 and 4: histories with stalls, in which all are cancelled that had been granted; no period ever holds more than n."""
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
            clock.advance(dice.choice((0.001, 0.015, 0.2)))  # a stall: those who were granted have not run yet
            for who in crowd.pending[: limiter.statistics().granted - before]:
                crowd.tasks[who].cancel()
            await turns(12)
        await clock.run(60)

        assert all(task.done() for task in crowd.tasks.values())
        check_bound(limiter, crowd.granted.values())


def taken(limiter: aiorate.Limiter) -> int:
    """How many are to be had now."""
    count = 0
    while limiter.try_acquire():
        count += 1
    return count


def test_a_refund_to_a_window_frees_what_was_granted_first() -> None:
    """Defect 5: A's permit came back, and B's entry was forgotten: with B, three were granted within a tenth of a second."""
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

    # One at once for the one that came back; the next when B is a period old.
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
def test_a_refund_to_a_strategy_that_paces_lets_nobody_in_at_once(scheduler: Callable[[], aiorate.Scheduler]) -> None:
    """Defect 5: A's permit came back, B's slot was undone for it, and C came at B's very instant."""
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
    """Defect 5: the bucket had been full since A was granted, so A's permit, had it never been taken, would be gone; C got it."""
    clock = SteppedClock()
    limiter = aiorate.Limiter(SPILLING[strategy](), clock=clock, catch_up=0)
    crowd = Crowd(limiter, clock)
    taken(limiter)
    await crowd.queue("A")

    clock.fire()
    await turns(strategy == "TokenPool")  # the filler decides in its own turn
    clock.advance(0.015)  # A is granted, and has not run yet
    assert limiter.try_acquire()  # B
    crowd.tasks["A"].cancel()
    await turns(5)

    assert not limiter.try_acquire()  # C
    clock.advance(0.01)
    assert limiter.try_acquire()


@pytest.mark.parametrize("strategy", EACH)
def test_by_its_receipt_a_permit_goes_back_to_where_it_came_from(strategy: str) -> None:
    """Defect 5: whatever is given back and when, the permits that are kept are within the bound: 40 histories of each strategy."""
    for seed in range(40):
        dice = random.Random(seed)
        scheduler = EACH[strategy]()
        kept: list[int] = []
        now = 0
        for _ in range(60):
            now += dice.choice((0, 0, 30, 100, 150, 1000)) * MS
            if dice.random() < 0.4 and kept:
                receipt = kept.pop(dice.randrange(len(kept)))
                scheduler.give_back(1, now, receipt)
            elif scheduler.take(1, now) <= now:
                kept.append(now)

        instants = sorted(kept)
        for first, begin in enumerate(instants):
            for end in sorted(set(instants[first:])):
                most = scheduler.bound(end - begin + 1)
                assert most is None or bisect_right(instants, end) - first <= most


PACING: dict[str, Callable[[int], aiorate.Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=1),
    "BurstCompensation": aiorate.BurstCompensation,
    "SmoothBursty": lambda rate: aiorate.SmoothBursty(rate, max_burst=0),
}


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("rate", [97, 331, 1000])
@pytest.mark.parametrize("strategy", PACING)
async def test_the_index_of_a_slot_follows_the_schedule(strategy: str, rate: int) -> None:
    """Defect 13: the fraction of a permit that was left at each stall was dropped: 4735 for 5145 after 1000 slow bodies."""
    limiter, dice = aiorate.Limiter(PACING[strategy](rate), catch_up=0.02), random.Random(13)

    behind, taken = [], 0
    async for slot in limiter.slots():
        taken += 1
        # Where the schedule was when the slot began.
        behind.append((slot.scheduled_at + slot.lag) * rate - slot.index)
        assert slot.index == taken - 1 + limiter.statistics().skipped
        if taken == 1000:
            break
        await asyncio.sleep(dice.uniform(0, 0.1))

    # What may be caught up with, what the pool holds and a part of a permit; never more, however long it goes on.
    assert -1e-6 < min(behind)
    assert max(behind) < 0.02 * rate + 3


@pytest.mark.asyncio
async def test_a_member_of_all_of_changes_its_rate_for_those_in_line_too() -> None:
    """Defect 15: ``members[0].set_rate()`` did not time the line anew; whoever waited was still there 58 s later."""
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
